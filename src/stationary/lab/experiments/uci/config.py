"""The configurations of the UCI experiment, and the rows of its tables: one small class for each kind of method."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from stationary.lab.experiments import ranges
from stationary.lab.experiments.paper import LOCAL, VARIANTS, in_a_row

TITLE = "UCI benchmarks (Table 1)"
REPRODUCES = "Table 1, Tables 3 and 4 of the appendix: every number"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "half an hour on an H200, without a GPU a day"}
VERSION = 2
LOCKSTEP = "folds"

DATASETS = ("diabetes", "adult", "adult-scaled", "connect-4", "connect-4-codes", "connect-4-onehot", "covtype")
ENCODINGS = {"adult-scaled": "adult", "connect-4-codes": "connect-4"}  # data sets of the paper in other columns
LIMITED = ("diabetes", "adult", "connect-4", "covtype")  # data sets that infinite width is tried on
PRIORS = ("rbf", "matern52", "matern32", "matern12")
COMPARED = {"NLPD": -1, "ACC": 1, "AUC": 1}  # the metrics that the paper has; 1 where larger is better, else -1
METRICS = (*COMPARED, "NLPD mean-probability", "ECE", "Brier")
SECONDS = ("seconds set-up", "seconds training", "seconds evaluation")


# Methods. ``name`` is a method's name in configurations and stored results; ``nlpd``, the authors' rule for its NLPD.


@dataclass(frozen=True)
class NetworkRow:
    """The network with MC dropout.

    Args:
        variant: "" for the network as in the paper; "surrogate" or "learnable" for these variants of ``paper.Prior``;
            "lengthscale" for the RBF with the length-scale 0.5 of the Matérn rows, where e^(-x^2) has 1.
    """

    variant: Literal["", "surrogate", "learnable", "lengthscale"] = ""
    nlpd: ClassVar[str] = "expected_nll"

    @property
    def name(self) -> str:
        return in_a_row("NN", self.variant)


@dataclass(frozen=True)
class EnsembleRow:
    """An ensemble of these networks, without dropout in prediction.

    Args:
        size: number of networks.
    """

    size: int = 5
    name: ClassVar[str] = "NN ensemble"
    nlpd: ClassVar[str] = "expected_nll"


@dataclass(frozen=True)
class SWAGRow:
    """The network with SWAG: a Gaussian around the weights of its last epochs."""

    name: ClassVar[str] = "NN SWAG"
    nlpd: ClassVar[str] = "expected_nll"


@dataclass(frozen=True)
class SVGPRow:
    """The sparse GP ``SVGP``.

    Args:
        unit: whether the length-scale starts at 1, GPflow's default, instead of the mean distance between rows.
        ard: whether each feature has a length-scale of its own.
    """

    unit: bool = False
    ard: bool = False
    nlpd: ClassVar[str] = "nlpd"

    @property
    def name(self) -> str:
        return in_a_row("SVGP", "unit" * self.unit, "ARD" * self.ard)


@dataclass(frozen=True)
class GPDNNRow:
    """The sparse GP on a network's features ``GPDNN``.

    Args:
        learning_rate: learning rate of Adam.
        epsilon: share of labels that its likelihood takes to be wrong.
    """

    learning_rate: float = 1e-3
    epsilon: float = 0.1
    nlpd: ClassVar[str] = "nlpd"

    @property
    def name(self) -> str:
        return in_a_row("GPDNN", "slow" * (self.learning_rate < 1e-3), "1e-3" * (self.epsilon == 1e-3))


@dataclass(frozen=True)
class SVDKLRow:
    """The GPs on a network's features ``SVDKL``.

    Args:
        converged: whether it trains for 50 times the epochs. On Diabetes the paper's epochs are 40 steps, which leave
            it untrained.
    """

    converged: bool = False
    nlpd: ClassVar[str] = "nlpd"

    @property
    def name(self) -> str:
        return in_a_row("SV-DKL", "converged" * self.converged)


@dataclass(frozen=True)
class InfiniteWidthRow:
    """The limit of infinite width: on the features of the network's trunk, or on the columns themselves.

    Args:
        columns: whether there is no trunk. A trunk is trained without a tenth of the training rows, which then choose
            the numbers of the prior; without a trunk the evidence chooses them, and no row is left out.
    """

    columns: bool = False
    nlpd: ClassVar[str] = "nlpd"

    @property
    def name(self) -> str:
        return in_a_row("infinite width", "columns" * self.columns)


Row: TypeAlias = NetworkRow | EnsembleRow | SWAGRow | SVGPRow | GPDNNRow | SVDKLRow | InfiniteWidthRow
METHODS: dict[str, Row] = {
    method.name: method
    for method in (
        *(NetworkRow(), NetworkRow("surrogate"), NetworkRow("lengthscale"), NetworkRow("learnable")),
        *(EnsembleRow(), SWAGRow()),
        *(SVGPRow(), SVGPRow(unit=True), SVGPRow(ard=True)),
        *(GPDNNRow(), GPDNNRow(learning_rate=1e-4), GPDNNRow(epsilon=1e-3)),
        *(SVDKLRow(), SVDKLRow(converged=True)),
        *(InfiniteWidthRow(), InfiniteWidthRow(columns=True)),
    )
}
# Rows of the same network: with the exact integral over dropout, and with the restored prior.
EXACT_ROW, RESTORED_ROW = "NN exact", "NN restored"


def _priors_of(row: Row) -> tuple[str, ...]:
    if isinstance(row, SVGPRow | GPDNNRow | SVDKLRow | InfiniteWidthRow):
        return LOCAL
    return VARIANTS[row.variant if isinstance(row, NetworkRow) and row.variant != "lengthscale" else ""]


# Configurations


@dataclass(frozen=True)
class Config:
    """One method on one data set: one fold, or several that train together.

    Args:
        dataset: name of the data set, one of ``DATASETS``.
        method: name of the method, one of ``METHODS``.
        prior: name of the prior: a network's activation, or the kernel of a GP.
        folds: which of the ``n_folds`` folds of the cross-validation this run trains and tests.
        n_folds: number of folds of the cross-validation.
        epochs: number of epochs of training, for every method.
        batch_size: number of rows in a batch, for every method.
        hidden: widths of the hidden layers of the network, and of the layers of the GP methods' trunks.
        n_inducing: number of inducing points of SVGP; GPDNN and SV-DKL have as many as features, and infinite width
            twice as many as SVGP.
        n_samples: number of MC dropout samples in prediction.
        seed: seed of the folds, the initial weights, the order of the rows and the dropout masks.
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

    def __post_init__(self) -> None:
        ranges.check(self, counts="n_folds epochs batch_size hidden n_inducing n_samples", seeds="folds seed")
        ranges.check_name("dataset", self.dataset, DATASETS)
        ranges.check_name("method", self.method, METHODS)
        ranges.check_name(f"prior of method={self.method!r}", self.prior, _priors_of(METHODS[self.method]))
        if self.n_folds < 2 or max(self.folds) >= self.n_folds:
            raise ValueError(
                f"n_folds must be at least 2 and more than the last of folds; got {self.n_folds} and {self.folds}"
            )


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
    """Yield data set, method and prior of the paper's rows, then of those beyond the paper."""
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
    if dataset in LIMITED:
        for prior in ("matern52", "matern32"):
            yield dataset, InfiniteWidthRow(), prior
            yield dataset, InfiniteWidthRow(columns=True), prior
