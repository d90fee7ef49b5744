"""Its configurations, and the rows of its tables: one small class for each kind of method."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from stationary.lab.experiments.paper import in_a_row

TITLE = "UCI benchmarks (Table 1)"
REPRODUCES = "Table 1, Tables 3 and 4 of the appendix: every number"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "half an hour on an H200, without a GPU a day"}
VERSION = 2
LOCKSTEP = "folds"

DATASETS = ("diabetes", "adult", "adult-scaled", "connect-4", "connect-4-codes", "connect-4-onehot", "covtype")
ENCODINGS = {"adult-scaled": "adult", "connect-4-codes": "connect-4"}  # other columns for data sets of the paper
PRIORS = ("rbf", "matern52", "matern32", "matern12")
COMPARED = {"NLPD": -1, "ACC": 1, "AUC": 1}  # what the paper has; 1 where larger is better
METRICS = (*COMPARED, "NLPD mean-probability", "ECE", "Brier")
SECONDS = ("seconds set-up", "seconds training", "seconds evaluation")


# Methods: ``name`` is how configurations and stored results call one; ``nlpd``, the authors' rule for its NLPD


@dataclass(frozen=True)
class NetworkRow:
    """The network with MC dropout.

    Args:
        variant: "" as in the paper; "surrogate" gradients or a "learnable" activation, as those of ``paper.Prior``;
            "lengthscale" for the RBF with the length-scale of the Matérn rows, 0.5, where e^(-x^2) has 1.
    """

    variant: Literal["", "surrogate", "learnable", "lengthscale"] = ""
    nlpd: ClassVar[str] = "expected_nll"

    @property
    def name(self) -> str:
        return in_a_row("NN", self.variant)


@dataclass(frozen=True)
class EnsembleRow:
    """Several of these networks, without dropout in prediction."""

    size: int = 5
    name: ClassVar[str] = "NN ensemble"
    nlpd: ClassVar[str] = "expected_nll"


@dataclass(frozen=True)
class SWAGRow:
    """The network, with a Gaussian around the weights of its last epochs."""

    name: ClassVar[str] = "NN SWAG"
    nlpd: ClassVar[str] = "expected_nll"


@dataclass(frozen=True)
class SVGPRow:
    """SVGP.

    Args:
        unit: whether the first length-scale is 1, GPflow's default.
        ard: whether there is a length-scale for each feature.
    """

    unit: bool = False
    ard: bool = False
    nlpd: ClassVar[str] = "nlpd"

    @property
    def name(self) -> str:
        return in_a_row("SVGP", "unit" * self.unit, "ARD" * self.ard)


@dataclass(frozen=True)
class GPDNNRow:
    """GPDNN.

    Args:
        learning_rate: of Adam.
        epsilon: of its robust likelihood, the share of labels that are taken to be wrong.
    """

    learning_rate: float = 1e-3
    epsilon: float = 0.1
    nlpd: ClassVar[str] = "nlpd"

    @property
    def name(self) -> str:
        return in_a_row("GPDNN", "slow" * (self.learning_rate < 1e-3), "1e-3" * (self.epsilon == 1e-3))


@dataclass(frozen=True)
class SVDKLRow:
    """SV-DKL.

    Args:
        converged: whether it trains for many times the epochs: the paper's 40 steps leave it untrained on Diabetes.
    """

    converged: bool = False
    nlpd: ClassVar[str] = "nlpd"

    @property
    def name(self) -> str:
        return in_a_row("SV-DKL", "converged" * self.converged)


Row: TypeAlias = NetworkRow | EnsembleRow | SWAGRow | SVGPRow | GPDNNRow | SVDKLRow
METHODS: dict[str, Row] = {
    method.name: method
    for method in (
        *(NetworkRow(), NetworkRow("surrogate"), NetworkRow("lengthscale"), NetworkRow("learnable")),
        *(EnsembleRow(), SWAGRow()),
        *(SVGPRow(), SVGPRow(unit=True), SVGPRow(ard=True)),
        *(GPDNNRow(), GPDNNRow(learning_rate=1e-4), GPDNNRow(epsilon=1e-3)),
        *(SVDKLRow(), SVDKLRow(converged=True)),
    )
}
EXACT_ROW, RESTORED_ROW = "NN exact", "NN restored"  # the network again: the exact integral over dropout; its prior


# Configurations


@dataclass(frozen=True)
class Config:
    """One fold, or several in lockstep.

    Args:
        dataset: a name of ``stationary.lab.data.uci``.
        method: the name of a method, one of ``METHODS``.
        prior: the activation, or the kernel.
        folds: of ``n_folds``.
        epochs, batch_size: of every method.
        hidden: widths of the network and of the trunks.
        n_inducing: of SVGP; the hybrids have as many as features.
        n_samples: of MC dropout.
        seed: of folds, initialisation, order and masks.
    """

    dataset: str = "diabetes"
    method: str = "NN"
    prior: str = "matern32"
    folds: tuple[int, ...] = (0,)
    n_folds: int = 10
    epochs: int = 20
    batch_size: int = 500
    hidden: tuple[int, ...] = (1000, 1000, 500, 50)
    n_inducing: int = 500
    n_samples: int = 100
    seed: int = 0


def configs(scale: str = "paper") -> list[Config]:
    base, folds = Config(), 10
    rows: list[tuple[str, Row, str]]
    if scale == "smoke":
        base, folds = Config(epochs=2, hidden=(20, 10), n_inducing=20, n_samples=10), 2
        methods = [method for method in METHODS.values() if method != SVDKLRow(converged=True)]
        rows = [("diabetes", m, "matern12" if m == NetworkRow("surrogate") else "matern32") for m in methods]
    elif scale == "demo":
        rows = [("diabetes", NetworkRow(), "matern32"), ("diabetes", NetworkRow(), "relu")]
        rows += [("diabetes", SVGPRow(), "matern32"), ("diabetes", GPDNNRow(), "matern32")]
    else:
        rows = [row for dataset in DATASETS for row in _grid(dataset)]
    return [
        replace(base, dataset=dataset, method=method.name, prior=prior, folds=(fold,))
        for dataset, method, prior in rows
        for fold in range(folds)
    ]


def _grid(dataset: str) -> Iterator[tuple[str, Row, str]]:
    """The paper's rows, then those beyond it."""
    for prior in (*PRIORS, "siren", "relu"):
        yield dataset, NetworkRow(), prior
    for method in (SVGPRow(), GPDNNRow(), SVDKLRow()):
        for prior in PRIORS:
            yield dataset, method, prior
    if dataset in ENCODINGS:
        for prior in PRIORS:
            yield dataset, SVGPRow(unit=True), prior
        return
    yield dataset, NetworkRow("surrogate"), "matern12"
    yield dataset, NetworkRow("lengthscale"), "rbf"
    for prior in ("matern52", "matern32"):
        yield dataset, NetworkRow("learnable"), prior
    yield dataset, EnsembleRow(), "matern32"
    yield dataset, SWAGRow(), "matern32"
    yield dataset, SVGPRow(unit=True), "matern32"
    yield dataset, SVGPRow(ard=True), "matern32"
    yield dataset, GPDNNRow(learning_rate=1e-4), "matern32"
    yield dataset, GPDNNRow(epsilon=1e-3), "matern52"
    if dataset == "diabetes":
        for prior in PRIORS:
            yield dataset, SVDKLRow(converged=True), prior
