"""The regressor: a mean with a standard deviation, in the units of the targets."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary._extras import extra
from stationary.calibration import conformal
from stationary.estimators._decisions import Deciding
from stationary.estimators._layers import WithLayers
from stationary.estimators._network import ROWS, Array
from stationary.inference import InfiniteWidth, Laplace, Method, Posterior, predict
from stationary.inference.base import joint_of
from stationary.nn import MeanAndNoise
from stationary.nn.running import Inputs
from stationary.predictive import Gaussian, Joint

with extra("sklearn"):
    from sklearn.base import RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.validation import check_is_fitted, validate_data

FLOOR = 1e-6  # smallest noise variance relative to that of the targets, so that a density stays finite


@dataclass(frozen=True)
class PosteriorInUnits:
    """A posterior of standardised targets whose predictions are in the units of y, with the noise of a new target.

    Args:
        base: the posterior.
        shift, scale: (m,) mean and standard deviation by which the targets were standardised.
        noise: (m,) noise variances, in the units of y squared; None where the posterior has its own for each input.
    """

    base: Posterior
    shift: Tensor
    scale: Tensor
    noise: Tensor | None

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """The networks of the posterior."""
        return self.base.networks

    @property
    def validation_rows(self) -> Tensor | None:
        """Numbers by which rows are known again that chose something of the posterior."""
        return getattr(self.base, "validation_rows", None)

    def predict(self, x: Inputs, family: type[Any], *, keep_samples: bool = False) -> Any:
        """The prediction of one batch."""
        pred = self.base.predict(x, family, keep_samples=keep_samples)
        shift, scale = self.shift.to(pred.mean), self.scale.to(pred.mean)
        own = scale.square() * pred.aleatoric_variance.clamp(min=FLOOR)
        return Gaussian(
            shift + scale * pred.mean,
            scale.square() * pred.epistemic_variance,
            own if self.noise is None else self.noise.to(pred.mean).expand_as(pred.mean),
            prior_restored=pred.prior_restored,
        )

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """The joint distribution at all rows of x, or of each group of them."""
        joint = joint_of(self.base, x, group_size=group_size)
        shift, scale = self.shift.to(joint.mean), self.scale.to(joint.mean)
        return Joint(
            shift + scale * joint.mean,
            scale.square()[:, None, None] * joint.covariance,
            scale.square() * joint.noise if self.noise is None else self.noise.to(joint.mean).expand_as(joint.mean),
        )


class StationaryRegressor(RegressorMixin, Deciding):
    """A neural network for tables that predicts a mean and a standard deviation, far from its data that of the prior.

    The parameters are those of ``StationaryClassifier`` and ``noise``; rows are held out without strata. There may be
    one target or several, which one network predicts together.

    A ``ConvergenceWarning`` says that ``max_iter`` ended a training whose loss still fell. There is no ``partial_fit``,
    no ``class_weight``, and a sparse table is refused with scikit-learn's own error.

    Args:
        noise: "constant", the same noise variance for all rows; or "input", one that depends on the input, for a table
            whose targets scatter more in some places than in others. With infinite width the residuals show it
            (``InfiniteWidth(noise="input")``); a finite network has two outputs for each target, mean and log variance
            (``MeanAndNoise``), and minimises the loss ``beta_nll``. ``Laplace()`` has constant noise alone. Far from
            the data the noise of infinite width is the constant one, that of a finite network the one of its bias.

    Attributes:
        n_features_in_ (int): number of columns of the table.
        feature_names_in_ (ndarray): names of the columns, where the table has them.
        noise_variance_: (m,) noise variance of the targets, in their units squared: the one that the method knows, or
            the mean squared error on the held-out rows, or without early_stopping on all rows, which is too small where
            the network overfits. With noise="input" it is the mean over these rows.
        posterior_: the trained network or networks, for ``stationary.predict`` on standardised inputs and targets.
        scaler_ (StandardScaler): the scaler of the inputs.
        target_scaler_ (StandardScaler): the scaler of the targets.
        n_iter_: number of epochs that training took; 1 where the method needs no training.
        loss_curve_ (list[float]): training loss of each epoch.
        conformal_ (Conformal): what ``conformalize`` has found; ``fit`` removes it.
        detector_ (OODDetector): what ``fit_reject`` has found; ``fit`` removes it.
    """

    _alpha, _measure = 0.01, "std"
    family = Gaussian
    target_scaler_: StandardScaler
    target_ndim_: int
    noise_variance_: Array
    _too_sure: bool

    def __init__(
        self,
        hidden_layer_sizes: int | tuple[int, ...] | None = None,
        activation: str | nn.Module = "matern52",
        *,
        noise: str = "constant",
        dropout: float = 0.2,
        method: Method | None = None,
        restore_prior: bool | None = None,
        alpha: float | None = None,
        batch_size: int | None = 64,
        learning_rate_init: float = 3e-3,
        max_iter: int = 200,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 30,
        random_state: int | np.random.RandomState | None = None,
        device: str | torch.device | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(  # scikit-learn reads the parameters from this signature, so all are named again
            hidden_layer_sizes,
            activation,
            dropout=dropout,
            method=method,
            restore_prior=restore_prior,
            alpha=alpha,
            batch_size=batch_size,
            learning_rate_init=learning_rate_init,
            max_iter=max_iter,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.noise = noise

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "StationaryRegressor":
        """Train on X (n, d) and targets y, (n,) or (n, m); sample_weight (n,) weighs the loss of each row."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        weight = self._weights(X, sample_weight)
        self.target_ndim_ = y.ndim
        keep = weight > 0
        X, y, weight = X[keep], y[keep].reshape(keep.sum(), -1).astype(np.float64), weight[keep]
        self.target_scaler_ = StandardScaler().fit(y, sample_weight=weight)
        self._trained_on(X)
        loss = "beta_nll" if self._learns_noise() else "mse"
        targets = self.target_scaler_.transform(y)
        rows = self._fit(X, targets, weight, n_outputs=y.shape[1], loss=loss)
        numbers = getattr(self.posterior_, "numbers", None)  # of infinite width
        if numbers is not None and numbers.input_noise is None and numbers.noise.all():
            rows = rows[:1]  # it knows its noise, which is the same everywhere
        with self._predicting(len(X)):
            pred = predict(self.posterior_, self._inputs(X[rows]), family=Gaussian, batch_size=ROWS)
            noise = np.average(pred.aleatoric_variance.cpu().numpy(), 0, weight[rows]) * self.target_scaler_.scale_**2
            known = bool(noise.any()) and not self._learns_noise()  # by the method, which then knows its last layer too
            if not self._is_limit() and (len(self._layers()) > 1 or not known):
                data = self._inputs(X), torch.as_tensor(targets), torch.as_tensor(weight)
                self.posterior_ = WithLayers.of_rows(self.posterior_, *data, batch_size=ROWS, last=not known)
        self._too_sure = not known and len(rows) == len(X)
        if not noise.any():
            residuals = self.target_scaler_.inverse_transform(pred.mean.cpu().numpy()) - y[rows]
            noise = np.average(residuals**2, 0, weight[rows])
        self.noise_variance_ = np.maximum(noise, FLOOR * self.target_scaler_.scale_**2)
        return self

    def predictive(self, X: Any) -> Gaussian:
        """The whole prediction for X (n, d), in the units of y: (n, m) mean, epistemic and aleatoric variance."""
        x = self.inputs(X)
        with self._predicting(len(x)):
            return predict(self._in_units(), x, family=Gaussian, batch_size=ROWS).to("cpu")

    def _mean(self, X: Any) -> Tensor:
        """(n, m) the mean of ``predictive``, without the variances where the posterior can do without."""
        check_is_fitted(self)
        if not hasattr(self.posterior_, "output_mean"):
            return self.predictive(X).mean
        shift, scale = (torch.as_tensor(part) for part in (self.target_scaler_.mean_, self.target_scaler_.scale_))
        return shift + scale * self._alone("output_mean", X)

    def joint(self, X: Any, *, group_size: int | None = None) -> Joint:
        """The joint distribution of the targets at the rows of X, in the units of y.

        Args:
            X: (n, d) rows of the table; for a tensor it is differentiable in X.
            group_size: number of consecutive rows in a group, each with a joint distribution of its own; None takes
                all rows together.
        """
        if not isinstance(X, Tensor):
            return self._in_units().joint(self.inputs(X), group_size=group_size)
        check_is_fitted(self)
        mean, scale = (torch.as_tensor(part).to(X) for part in (self.scaler_.mean_, self.scaler_.scale_))
        return self._in_units().joint((X - mean) / scale, group_size=group_size)

    def _in_units(self) -> PosteriorInUnits:
        parts = (self.target_scaler_.mean_, self.target_scaler_.scale_, self.noise_variance_)
        shift, scale, noise = (torch.as_tensor(part) for part in parts)
        varying = getattr(getattr(self.posterior_, "numbers", None), "input_noise", None)  # of infinite width
        by_input = varying is not None or isinstance(self.posterior_.networks[0], MeanAndNoise)
        return PosteriorInUnits(self.posterior_, shift, scale, None if by_input else noise)

    def _is_limit(self) -> bool:
        """Whether the method is infinite width, behind some layers or none."""
        return isinstance(self.method, InfiniteWidth) or (self.method is None and not self._layers())

    def _learns_noise(self) -> bool:
        """Whether a finite network has outputs for its noise; infinite width has other means."""
        return self.noise == "input" and not self._is_limit()

    def _build(self, n_outputs: int, dtype: torch.dtype = torch.float64) -> nn.Module:
        if not self._learns_noise():
            return super()._build(n_outputs, dtype)
        return MeanAndNoise(super()._build(2 * n_outputs, dtype))

    def _method(self, random: np.random.RandomState) -> Method:
        method = super()._method(random)
        return replace(method, noise="input") if self.noise == "input" and isinstance(method, InfiniteWidth) else method

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.noise not in ("constant", "input"):
            raise ValueError(f"noise must be 'constant' or 'input', got {self.noise!r}")
        if self.noise == "input" and isinstance(self.method, Laplace):
            raise ValueError(
                f"method must be one that lets the noise depend on the input for noise='input', such as None or "
                f"Ensemble(5); got {self.method!r}: choose another, or noise='constant'"
            )
        if self.noise == "input" and isinstance(getattr(self.method, "noise", None), int | float):
            raise ValueError(f"method must leave its noise out for noise='input', got {self.method!r}")

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean, in the shape of y; with return_std also the standard deviation of a new target, noise included.

        It warns where that may be far too small: without early_stopping, which leaves no rows to measure the noise of a
        finite network by.
        """
        if not return_std:
            return self._like_y(self._mean(X))
        if self._too_sure:
            warnings.warn(
                "the standard deviation may be far too small: early_stopping=False left no rows to measure the noise "
                "by, so it is the error on rows of the fit; leave method and hidden_layer_sizes out for infinite "
                "width, which knows its noise",
                UserWarning,
                stacklevel=2,
            )
        pred = self.predictive(X)
        return self._like_y(pred.mean), self._like_y(pred.std())

    def uncertainty(self, X: Any) -> Array:
        """The epistemic standard deviation, in the shape of y: the uncertainty of the mean, without the noise."""
        return self._like_y(self.predictive(X).epistemic_variance.sqrt())

    def conformalize(self, X: Any, y: Any, coverage: float = 0.9, score: str | None = None) -> "StationaryRegressor":
        """Learn from held-out rows how wide intervals must be to hold the targets of new rows.

        ``stationary.conformal`` has the guarantee and the scores. The next ``fit`` forgets it.

        Args:
            X: (n, d) rows like those to come, and not those of ``fit``; n is at least coverage / (1 - coverage).
            y: (n,) or (n, m) their targets, as for ``fit``.
            coverage: probability that the interval of a target of a new row like them holds it, in (0, 1).
            score: "std", the default, whose intervals grow where the network does not know; "absolute", as wide
                everywhere; or "quantile".

        Returns:
            The estimator itself.
        """
        x = self._held_out(X)
        _, y = validate_data(self, X, y, reset=False, dtype=np.float64, multi_output=True, y_numeric=True)
        m = len(self.noise_variance_)
        if y.ndim != self.target_ndim_ or y[:1].size != m:
            wanted = "(n,)" if self.target_ndim_ == 1 else f"(n, {m})"
            raise ValueError(f"y must have the shape {wanted} that it had in fit; got {y.shape}")
        data = x, torch.tensor(y.reshape(len(y), m).astype(np.float64))
        self.conformal_ = conformal(self._in_units(), data, coverage, score, family=Gaussian, batch_size=ROWS)
        return self

    def predict_interval(self, X: Any) -> Array:
        """(n, 2) lower and upper ends, in the units of y, after ``conformalize``; (n, m, 2) where y has m columns.

        The intervals that the network itself believes in, without a guarantee, are ``predictive(X).interval(0.9)``.
        """
        self._needs("conformal_", "conformalize(X_hold, y_hold)", "predict_interval")
        lower, upper = self.conformal_.predict_interval(self.inputs(X), batch_size=ROWS)
        return np.stack([self._like_y(lower.cpu()), self._like_y(upper.cpu())], -1)

    def _like_y(self, values: Tensor) -> Array:
        return (values[:, 0] if self.target_ndim_ == 1 else values).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
