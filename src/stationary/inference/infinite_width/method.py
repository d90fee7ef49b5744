"""The method: what there is to choose, and how a posterior is made of a trained network and its data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from stationary._checks import check_finite, is_count
from stationary.inference.base import Method, Networks, only_network
from stationary.inference.infinite_width._files import load
from stationary.inference.infinite_width._fit import Fit
from stationary.inference.infinite_width._geometry import GEOMETRIES
from stationary.inference.infinite_width._sums import together
from stationary.inference.infinite_width._trunk import Reader, collect
from stationary.inference.infinite_width.posterior import InfiniteWidthPosterior
from stationary.nn.restored_prior import is_head
from stationary.theory.isotropic import KERNELS
from stationary.training import Data


@dataclass(frozen=True)
class InfiniteWidth(Method):
    """The limit of a stationary head as its width goes to infinity: a Gaussian process on the features of a network.

    Given the features, its posterior is a convex problem: one solution, no learning rate, no dropout, no seed in the
    fit. Far from the training features, in every direction, the prediction returns to the prior: "I do not know". The
    network is not touched; what it does behind its features, its own last layer or head, is not used, except where
    ``prior_mean="network"`` asks for it.

    Class indices (n,) as targets make a classifier, zeros and ones (n, c) of an integer type several labels at once,
    floating-point targets a regression.

    Examples:
        >>> posterior = st.InfiniteWidth().posterior(model, train_loader, validation=validation_loader)
        >>> pred = st.predict(posterior, x)

    Args:
        kernel: name of the stationary kernel: "matern12", "matern32", "matern52", "matern72" or "rbf".
        lengthscale: length-scale of the kernel in the geometry, one number; None chooses it.
        variance: prior variance of the outputs; None chooses it. For a regression it is in units of the targets'
            variance.
        temperature: temperature of the posterior of a classifier, a positive factor on the variance of its outputs, for
            its probabilities alone: below 1 they are less timid near the data, and far away they are those of the
            prior at any temperature. None chooses it, from 0.01 to 1, by the validation data; without them by rows that
            are each left out where there is no trunk, and it is 1 where there is one.
        noise: noise variance of a regression, in units of the targets' variance; None chooses it. "input" lets it
            depend on the input, as a second process that the residuals show; far from the data it is the constant that
            would be chosen.
        draws: number of other settings of length-scale, variance and noise that predictions of a regression average
            over, beside the best one: draws from what the evidence of the rows leaves possible. Fit and prediction take
            about so many times longer; 8 are enough for wider intervals in gaps and beyond the data. 0 takes the best
            numbers as if they were known.
        n_inducing: number of training rows that carry the posterior, M; the fit takes O(n M (d + M)) operations. With
            ``prior_mean="network"`` fewer than features cannot carry the network, and a warning says so.
        geometry: where features are far from each other: "polar" (direction and length), "euclidean" (standardised
            columns), "whitened" (features of rows of one class have the same spread in every direction), or "l2"
            (direction alone, which does not see what is too long). None is "polar" for a network with a trunk and
            "euclidean" for one without.
        per_column: whether each column has its own length-scale. None is True for a network without a trunk, False
            for one with a trunk. A column that turns out irrelevant is then never far.
        features: where the features are: the name of a module whose output they are, or a function of a batch of
            inputs. None takes what enters the last linear layer, or the head that it belongs to.
        prior_mean: what a classifier answers far away: "uniform"; or "frequencies", whose outputs are on average the
            logarithms of the classes' frequencies, so that the probabilities are between these and uniform, and nearer
            to uniform the larger the variance is. "network" is uniform far away, and near the data begins with what the
            network itself says: the kernel interpolates the outputs of its last layer or head at the inducing inputs,
            and the posterior corrects them.
        class_weight: weights of the classes, a tuple; or "balanced", which gives all classes the same total.
        search_rows: largest number of rows, of the data and of the validation data, that the search looks at.
        seed: seed of the choice of inducing inputs and of the rows that the search looks at.
        batch_size: number of rows in a pass of the network, where the data are tensors.
        memory: number of bytes that the features of the kernel may take; beyond it they are computed in every pass.
            None is 2 GiB on a CPU, and half of what is free on a GPU.
        store: path of a file for the features of the training rows, which is then mapped into memory; the head is then
            fitted on the CPU, also for a network on a GPU. None keeps them in memory. With ``distributed`` the rank of
            the process is added to the name.
        checkpoint: path of a file that holds what a fit of classes has found, written every 30 seconds; a fit that was
            stopped continues from it. The file stays, and another fit must not use it.
        distributed: whether each process of ``torch.distributed`` has a share of the rows and of the validation rows,
            at least one of each, and all want the posterior of the whole. All must call ``posterior``. ``nearest`` then
            knows the rows of its own process only.
        verbose: whether to print a line for each step of the fit; or a function that takes the line.
    """

    kernel: str = "matern52"
    lengthscale: float | None = None
    variance: float | None = None
    _: KW_ONLY
    temperature: float | None = None
    noise: float | Literal["input"] | None = None
    draws: int = 0
    n_inducing: int = 1000
    geometry: Literal["polar", "euclidean", "whitened", "l2"] | None = None
    per_column: bool | None = None
    features: str | Reader | None = None
    prior_mean: Literal["uniform", "frequencies", "network"] = "uniform"
    class_weight: Literal["balanced"] | tuple[float, ...] | None = None
    search_rows: int = 5000
    seed: int = 0
    batch_size: int = 500
    memory: int | None = None
    store: str | Path | None = None
    checkpoint: str | Path | None = None
    distributed: bool = False
    verbose: bool | Callable[[str], object] = False

    def __post_init__(self) -> None:
        choices: tuple[tuple[str, Any, Sequence[Any]], ...] = (
            ("kernel", self.kernel, tuple(KERNELS)),
            ("geometry", self.geometry, (None, *GEOMETRIES)),
            ("prior_mean", self.prior_mean, ("uniform", "frequencies", "network")),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
        if isinstance(self.noise, str) and self.noise != "input":
            raise ValueError(f"noise must be a positive number, 'input' or None; got {self.noise!r}")
        if self.noise == "input" and self.distributed:
            raise ValueError(
                "noise must be a number or None where distributed=True, got 'input', which needs the residuals of all "
                "rows at one place; use distributed=False"
            )
        if self.checkpoint is not None and self.distributed:
            raise ValueError(
                f"checkpoint must be None where distributed=True, whose processes may stop at different steps; got "
                f"{self.checkpoint}: leave it out"
            )
        for name in ("lengthscale", "variance", "temperature", "noise"):
            number: Any = getattr(self, name)
            if number is not None and not isinstance(number, str):
                number = number.tolist() if isinstance(number, Tensor) else number
                check_finite(name, number, "leave it out to have it chosen")
                object.__setattr__(self, name, float(number))  # as a file can hold it
        if self.draws != 0 and not is_count(self.draws):
            raise ValueError(f"draws must be an integer from 0, got {self.draws!r}")
        if self.draws and (self.noise == "input" or self.distributed):
            raise ValueError(
                f"draws must be 0 with noise='input' and with distributed=True, got {self.draws}; leave one of them out"
            )
        for name in ("n_inducing", "search_rows", "batch_size"):
            if not is_count(getattr(self, name)):
                raise ValueError(f"{name} must be a positive integer, got {getattr(self, name)!r}")
        object.__setattr__(self, "class_weight", _class_weight(self.class_weight))

    def trains(self, network: nn.Module) -> bool:
        """Whether there is anything in front of the network's only head or linear layer, unless that is used too."""
        if self.prior_mean == "network":
            return True
        readouts: list[Any] = [m for m in network.modules() if isinstance(m, nn.Linear) or is_head(m)]
        every = len(list(network.parameters()))
        return all(len(list(module.parameters())) < every for module in readouts)

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *mistaken: Any,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> InfiniteWidthPosterior:
        """The posterior of a trained network, by one pass over its training data.

        Args:
            networks: the trained network; it is not changed, and must not change afterwards.
            data: its training data, two tensors or an iterable of batches (x, y), which is read once. It may shuffle;
                what it augments is taken as it comes.
            sample_weight: (n,) weights of the rows, in the order of the data; a row of weight 2 counts as two.
            validation: data that the network was not trained on, by whose NLPD the length-scale, the variance and the
                temperature (or the noise) are chosen.
            observed: not used.
            mistaken: nothing; targets that are passed here get an answer.
        """
        if mistaken:
            raise TypeError(
                f"posterior takes its data as one argument, got also {type(mistaken[0]).__name__}; targets go beside "
                "their inputs: write posterior(model, (x, y)), and the others by name"
            )
        network = only_network(networks, self)
        if data is None:
            raise ValueError(
                "data must be the training data for InfiniteWidth, got None; pass InfiniteWidth().posterior(model, "
                "(x, y)) to predict instead of the model"
            )
        if self.distributed and not dist.is_initialized():
            raise ValueError(
                "distributed=True needs torch.distributed, which is not initialised; call "
                "torch.distributed.init_process_group first, or leave it out"
            )
        read = {"features": self.features, "batch_size": self.batch_size}
        store = None if self.store is None else str(self.store) + (f".{dist.get_rank()}" if self.distributed else "")
        held = None
        with torch.inference_mode(False), together(self.distributed):
            rows, place = collect(network, None, data, sample_weight=sample_weight, store=store, **read)  # type: ignore[arg-type]
            if validation is not None:
                held, _ = collect(network, place, validation, name="validation", marked=True, **read)  # type: ignore[arg-type]
        with torch.inference_mode(False):  # the search takes slopes
            return Fit(self, network, place, rows, held).posterior()

    @staticmethod
    def load(path: str | Path, network: nn.Module, features: Reader | None = None) -> InfiniteWidthPosterior:
        """The posterior that ``InfiniteWidthPosterior.save`` wrote, on the network that it was made of.

        Args:
            path: path of the file.
            network: the trained network; it is an error if its trunk is not the one that the posterior was made of.
            features: the function that gives the features, where the posterior was made with one.
        """
        return load(path, network, features)


def _class_weight(value: Any) -> Any:
    """The weights of the classes as a tuple of numbers; "balanced" and None stay."""
    if value is None or (isinstance(value, str) and value == "balanced"):
        return value
    try:
        if isinstance(value, str | Mapping):
            raise TypeError
        return tuple(float(weight) for weight in value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"class_weight must be 'balanced', None or a tuple with a number for each class, in order; got {value!r}"
        ) from error
