"""The regressor: a mean with a standard deviation, in the units of the targets."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stationary._extras import extra
from stationary.estimators._network import ROWS, Array, Network
from stationary.inference import predict
from stationary.predictive import Gaussian

with extra("sklearn"):
    from sklearn.base import RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.validation import validate_data

FLOOR = 1e-6  # smallest noise variance relative to that of the targets, so that a density stays finite


class StationaryRegressor(RegressorMixin, Network):
    """A neural network for tables that predicts a mean and a standard deviation, far from its data that of the prior.

    The parameters are those of ``StationaryClassifier``; rows are held out without strata. There may be one target or
    several, which one network predicts together.

    Attributes:
        n_features_in_, feature_names_in_: number of columns of the table, and their names where it has them.
        noise_variance_: (m,) noise variance of the targets, in their units squared: the mean squared error on the
            held-out rows, or without early_stopping on all rows, which is too small where the network overfits.
        posterior_: the trained network or networks, for ``stationary.predict`` on standardised inputs and targets.
        scaler_, target_scaler_: the ``StandardScaler`` of the inputs and that of the targets.
        n_iter_: number of epochs that training took; 1 where the method needs no training.
        loss_curve_: training loss of each epoch.
    """

    _alpha = 0.01
    target_scaler_: StandardScaler
    target_ndim_: int
    noise_variance_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "StationaryRegressor":
        """Train on X (n, d) and targets y, (n,) or (n, m); sample_weight (n,) weighs the loss of each row."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        weight = self._weights(X, sample_weight)
        self.target_ndim_ = y.ndim
        keep = weight > 0
        X, y, weight = X[keep], y[keep].reshape(keep.sum(), -1).astype(np.float64), weight[keep]
        self.target_scaler_ = StandardScaler().fit(y, sample_weight=weight)
        rows = self._fit(X, self.target_scaler_.transform(y), weight, n_outputs=y.shape[1], loss="mse")
        pred = predict(self.posterior_, self._inputs(X[rows]), family=Gaussian, batch_size=ROWS)
        noise = pred.aleatoric_variance.mean(0).cpu().numpy() * self.target_scaler_.scale_**2
        if not noise.any():  # the method knows of none
            residuals = self.target_scaler_.inverse_transform(pred.mean.cpu().numpy()) - y[rows]
            noise = np.average(residuals**2, 0, weight[rows])
        self.noise_variance_ = np.maximum(noise, FLOOR * self.target_scaler_.scale_**2)
        return self

    def predictive(self, X: Any) -> Gaussian:
        """The whole prediction for X (n, d), in the units of y: (n, m) mean, epistemic and aleatoric variance."""
        pred = self._predictive(X, Gaussian)
        mean, scale = (torch.as_tensor(a) for a in (self.target_scaler_.mean_, self.target_scaler_.scale_))
        noise = torch.as_tensor(self.noise_variance_).expand_as(pred.mean)
        return Gaussian(
            mean + scale * pred.mean,
            scale.square() * pred.epistemic_variance,
            noise,
            prior_restored=pred.prior_restored,
        )

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean, in the shape of y; with return_std also the standard deviation of a new target, noise included."""
        pred = self.predictive(X)
        mean = self._like_y(pred.mean)
        return (mean, self._like_y(pred.std())) if return_std else mean

    def uncertainty(self, X: Any) -> Array:
        """The epistemic standard deviation, in the shape of y: the uncertainty of the mean, without the noise."""
        return self._like_y(self.predictive(X).epistemic_variance.sqrt())

    def _like_y(self, values: Tensor) -> Array:
        return (values[:, 0] if self.target_ndim_ == 1 else values).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
