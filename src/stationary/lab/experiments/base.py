"""The contract of an experiment: a folder with config.py, run.py and report.py, each imported only when it is needed.

``stationary list`` and ``stationary status`` import config.py, which imports nothing heavy. A process that computes
imports run.py, and needs neither matplotlib nor jinja2. Only ``stationary report`` imports report.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from stationary.lab.report.content import Section
    from stationary.lab.runs.store import Arrays


class ConfigModule(Protocol):
    """config.py: what there is to compute. It imports neither torch, numpy, pandas nor matplotlib."""

    @property
    def TITLE(self) -> str:
        """The heading of the experiment in the report."""

    @property
    def REPRODUCES(self) -> str:
        """Which part of the paper the experiment reproduces, as ``stationary list`` shows it."""

    @property
    def DURATION(self) -> Mapping[str, str]:
        """By scale, how long all its runs take, in words."""

    @property
    def VERSION(self) -> int:
        """Version of the experiment; a higher number makes stored results invalid."""

    @property
    def LOCKSTEP(self) -> str | None:
        """Name of a setting that is a tuple, such as "folds", in which runs may differ that run together; or None.

        Each configuration of ``configs`` has a tuple of one entry, and a result is stored for each. On a GPU,
        configurations that differ in nothing else run as one configuration with all their entries; the arrays that
        ``run`` returns then have one row for each entry.
        """

    @property
    def Config(self) -> type[Any]:
        """The class of configurations: a frozen dataclass of numbers, strings and tuples; an instance is one run."""

    def configs(self, scale: str) -> Sequence[Any]:
        """Return the configurations of a scale: "smoke" (a moment), "demo" (minutes) or "paper" (the paper's own)."""


class RunModule(Protocol):
    """run.py: how a configuration is computed. It imports neither matplotlib nor jinja2."""

    def run(self, config: Any, device: str = "cpu") -> "Arrays":
        """Compute one configuration on a device and return its arrays; it writes no results."""


@runtime_checkable
class NeedsData(Protocol):
    """A run.py that needs data or models which may not be on this machine."""

    def missing(self, configs: Sequence[Any]) -> str | None:
        """Say why these configurations cannot run here and what to do about it; None if they can run.

        It is called before a run, with the configurations that have no result yet. If it returns a reason, it is called
        with each of them alone, and those that cannot run are left out. Where none can, an experiment that the command
        line names is an error.
        """


class ReportModule(Protocol):
    """report.py: how the results become a section of the report."""

    def report(self, results: "list[tuple[Any, Arrays]]") -> "Section":
        """Show and judge results, which are pairs of a configuration and its arrays, as a section of the report."""


@dataclass(frozen=True)
class Experiment:
    """An experiment; each of its three modules is imported when it is first asked for.

    Args:
        package: import name of its package, such as "stationary.lab.experiments.uci". The last part is the name of the
            experiment.
    """

    package: str

    @property
    def name(self) -> str:
        """Name of the experiment on the command line and in the run store."""
        return self.package.rpartition(".")[2]

    @property
    def config(self) -> ConfigModule:
        return cast(ConfigModule, import_module(f"{self.package}.config"))

    @property
    def run(self) -> RunModule:
        return cast(RunModule, import_module(f"{self.package}.run"))

    @property
    def report(self) -> ReportModule:
        return cast(ReportModule, import_module(f"{self.package}.report"))
