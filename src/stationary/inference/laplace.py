"""The Laplace approximation of the last layer, by laplace-torch (Daxberger et al., 2021)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stationary._extras import extra
from stationary.inference.base import Build, Data, Inputs, evaluating, run
from stationary.predictive import P
from stationary.training import Training, train


@dataclass(frozen=True)
class Laplace:
    """A Gaussian over the weights of the last linear layer, from the curvature of the loss at the trained network.

    The outputs are then Gaussian with known moments. laplace-torch must find the last layer: it has to be an
    ``nn.Linear`` whose output is the model's.

    Args:
        structure: of the covariance: "full", "kron" or "diag".
        prior_precision: of the weights; None takes the value of highest marginal likelihood.
        restore_prior: add the missing prior variance; by default where ``calibrate_prior`` was called.
        batch_size: training inputs at a time.
    """

    structure: str = "kron"
    prior_precision: float | None = None
    restore_prior: bool | None = None
    batch_size: int = 500

    def __post_init__(self) -> None:
        if self.structure not in ("full", "kron", "diag"):
            raise ValueError(f"structure must be 'full', 'kron' or 'diag', got {self.structure!r}")

    def fit(self, build: Build, data: Data, training: Training) -> "LaplacePosterior":
        return self.posterior(train(build, *data, training)[0], data)

    def posterior(self, model: nn.Module, data: Data | None = None) -> "LaplacePosterior":
        """Around a trained network; ``data`` is what it was trained on, class indices or floating-point targets."""
        if data is None:
            raise ValueError(
                "data must be the training data, the curvature comes from it; use Laplace().posterior(model, (x, y)) "
                "and give predict the posterior"
            )
        with extra("laplace"):
            from laplace import Laplace as LaplaceTorch
        x, y = data
        regression = y.is_floating_point()
        arguments: dict[str, Any] = {}
        if regression:
            y = y.reshape(len(y), -1)
            with evaluating(model):
                arguments["sigma_noise"] = (model(x) - y).square().mean().sqrt().item()
        if self.prior_precision is not None:
            arguments["prior_precision"] = self.prior_precision
        likelihood = "regression" if regression else "classification"
        with evaluating(model), torch.enable_grad():
            fitted = LaplaceTorch(
                model, likelihood, subset_of_weights="last_layer", hessian_structure=self.structure, **arguments
            )
            fitted.fit(DataLoader(TensorDataset(x, y), self.batch_size), progress_bar=False)
            if self.prior_precision is None:
                fitted.optimize_prior_precision()
        return LaplacePosterior(self, model, fitted)


@dataclass(frozen=True)
class LaplacePosterior:
    method: Laplace
    model: nn.Module
    fitted: Any  # laplace-torch's own object

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        if keep_samples:
            raise ValueError(
                "keep_samples=True has nothing to keep, Laplace takes no samples here; use Ensemble or SWAG"
            )
        with evaluating(self.model):
            prior = run(self.model, x, self.method.restore_prior).prior
        mean, covariance = (tensor.detach() for tensor in self.fitted._glm_predictive_distribution(x))
        if prior is not None:
            covariance = covariance + torch.diag_embed(prior[0])
        return family.from_moments(mean, covariance)
