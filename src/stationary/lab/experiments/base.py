"""The contract of an experiment: a folder with config.py, run.py and report.py, each imported only when it is needed.

``stationary list`` and ``status`` read the first, which imports nothing heavy. What computes imports the second, and
needs neither matplotlib nor jinja2. Only ``stationary report`` imports the third.
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
        """Its heading in the report."""

    @property
    def REPRODUCES(self) -> str:
        """What of the paper it shows, for ``stationary list``."""

    @property
    def DURATION(self) -> Mapping[str, str]:
        """How long it takes, in words, for each scale."""

    @property
    def VERSION(self) -> int:
        """Raised when stored results become invalid."""

    @property
    def LOCKSTEP(self) -> str | None:
        """A setting that is a tuple, such as the folds, or None.

        ``configs`` then gives one entry of it each, which is what is stored; but configurations that differ in nothing
        else can run as one, as they do on a GPU: what ``run`` returns has one row for each entry.
        """

    @property
    def Config(self) -> type[Any]:
        """A frozen dataclass of numbers, strings and tuples of them: one run."""

    def configs(self, scale: str) -> Sequence[Any]:
        """The configurations of "smoke" (a moment), "demo" (a laptop) or "paper" (its own settings)."""


class RunModule(Protocol):
    """run.py: how it is computed. It imports neither matplotlib nor jinja2."""

    def run(self, config: Any, device: str = "cpu") -> "Arrays":
        """Compute one configuration; no I/O."""


@runtime_checkable
class NeedsData(Protocol):
    """A run.py whose data or models may not be there."""

    def missing(self, configs: Sequence[Any]) -> str | None:
        """Why these configurations cannot run here and what to do about it, or None.

        It is asked before they run, those that have a result left out; an experiment that was not named on the command
        line is then left out, too.
        """


class ReportModule(Protocol):
    """report.py: what the results say."""

    def report(self, results: "list[tuple[Any, Arrays]]") -> "Section":
        """Show and judge what was computed: pairs of a configuration and its arrays."""


@dataclass(frozen=True)
class Experiment:
    """An experiment by its package; each of its three files is imported when it is asked for.

    Args:
        package: as it is imported, such as "stationary.lab.experiments.uci". Its last part is the experiment's name.
    """

    package: str

    @property
    def name(self) -> str:
        """As on the command line and in the run store."""
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
