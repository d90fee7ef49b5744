"""The Laplace approximation of the last layer, by laplace-torch (Daxberger et al., 2021)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stationary._extras import extra
from stationary.inference.base import Method, Networks, only_network, run
from stationary.nn.mean_and_noise import MeanAndNoise
from stationary.nn.running import Inputs, batches, evaluating
from stationary.predictive import P
from stationary.training import Data
from stationary.training.data import is_pair, tensors_of


@dataclass(frozen=True)
class Laplace(Method):
    """A Gaussian over the weights of the last linear layer, from the curvature of the loss at the trained network.

    The outputs are then Gaussian with known moments. laplace-torch finds the last layer by itself, which has to be an
    ``nn.Linear`` whose output is the output of the model.

    Args:
        structure: structure of the covariance of the weights: "full", "kron" (Kronecker factors) or "diag".
        prior_precision: precision, which is 1 / variance, of the prior of the weights; None takes the value of highest
            marginal likelihood.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data. By default it
            is added where ``calibrate_prior`` was called; True makes it an error where it was not, False leaves it out.
        batch_size: number of training inputs in a pass, where the data are tensors.
    """

    structure: str = "kron"
    prior_precision: float | None = None
    restore_prior: bool | None = None
    batch_size: int = 500

    def __post_init__(self) -> None:
        if self.structure not in ("full", "kron", "diag"):
            raise ValueError(f"structure must be 'full', 'kron' or 'diag', got {self.structure!r}")

    def check(self, network: nn.Module, *, sample_weight: Tensor | None = None) -> None:
        if sample_weight is not None:
            raise ValueError(
                "sample_weight must be None for Laplace, whose curvature counts all rows alike; use ExactDropout, "
                "MCDropout, Ensemble or SWAG"
            )
        if isinstance(network, MeanAndNoise):
            raise ValueError(
                "network must give its outputs alone for Laplace, which takes the noise as constant; got MeanAndNoise: "
                "leave it out, or use ExactDropout, MCDropout, Ensemble or SWAG"
            )
        with extra("laplace"):
            import laplace  # noqa: F401

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "LaplacePosterior":
        """The posterior around a trained network.

        ``data`` are its training data; class indices mean classification, floating-point targets regression. They are
        read several times.
        """
        if data is None:
            raise ValueError(
                "data must be the training data for Laplace, whose curvature comes from it, got None; pass "
                "Laplace().posterior(model, (x, y)) to predict instead of the model"
            )
        network = only_network(networks, self)
        self.check(network, sample_weight=sample_weight)
        passes = _Passes(data, self.batch_size, network)
        arguments: dict[str, Any] = {}
        with evaluating(network):
            if regression := next(iter(passes))[1].is_floating_point():
                errors = torch.cat([(network(x) - y).square() for x, y in passes])
                arguments["sigma_noise"] = errors.mean().sqrt().item()
        if self.prior_precision is not None:
            arguments["prior_precision"] = self.prior_precision
        likelihood = "regression" if regression else "classification"
        with evaluating(network), torch.enable_grad():
            fitted = _unfitted(self, network, likelihood, **arguments)
            fitted.fit(passes, progress_bar=False)
            if self.prior_precision is None:
                fitted.optimize_prior_precision()
        return LaplacePosterior(self, (network,), fitted)


def _unfitted(method: Laplace, network: nn.Module, likelihood: str, **arguments: Any) -> Any:
    with extra("laplace"):
        from laplace import Laplace as LaplaceTorch
    return LaplaceTorch(
        network, likelihood, subset_of_weights="last_layer", hessian_structure=method.structure, **arguments
    )


class _Passes:
    """The data as laplace-torch reads them: batches (x, y), as often as asked, with the number of rows."""

    def __init__(self, data: Data, size: int, network: nn.Module) -> None:
        self.network = network
        self.batches = DataLoader(TensorDataset(*tensors_of(data)), size) if is_pair(data) else data
        self.dataset = range(sum(len(y) for _, y in self))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in batches(self.batches, model=self.network):
            if y is None:
                raise ValueError(
                    "data must give batches (x, y), got inputs without targets; a DataLoader of a TensorDataset(x, y) "
                    "gives both"
                )
            yield x, y.reshape(len(y), -1) if y.is_floating_point() else y

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class LaplacePosterior:
    """One trained network, and what laplace-torch has fitted to its last layer."""

    method: Laplace
    networks: tuple[nn.Module, ...]
    fitted: Any  # laplace-torch's own object

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has the state of what is fitted, without the data: the object has hooks, which cannot be pickled."""
        name = self.fitted.model._last_layer_name
        state = self.fitted.state_dict() | {"data": None, "_last_layer_name": name}
        return _loaded, (self.method, self.networks, state)

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        if keep_samples:
            raise ValueError(
                "keep_samples must be False for Laplace, which takes no samples here; got True: use Ensemble or SWAG"
            )
        [network] = self.networks
        with evaluating(network):
            prior = run(network, x, self.method.restore_prior).prior
            with torch.enable_grad():  # which its derivatives need
                mean, covariance = (tensor.detach() for tensor in self.fitted._glm_predictive_distribution(x))
        if prior is not None:
            covariance = covariance + torch.diag_embed(prior[0])
        return family.from_moments(mean, covariance, prior_restored=prior is not None)


def _loaded(method: Laplace, networks: tuple[nn.Module, ...], state: dict[str, Any]) -> LaplacePosterior:
    with evaluating(networks[0]):  # laplace-torch keeps a copy, in the mode that the network is in
        fitted = _unfitted(method, networks[0], state["likelihood"], last_layer_name=state["_last_layer_name"])
    fitted.load_state_dict(state)
    return LaplacePosterior(method, networks, fitted)
