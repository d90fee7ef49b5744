"""The networks as scikit-learn estimators: a table in, predictions that know their uncertainty out.

Inputs, and the targets of a regression, are standardised inside. Everything is in float64: the networks are small, and
what is predicted for a row then does not depend on the rows beside it.
"""

import math
from copy import deepcopy
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stationary._checks import is_count
from stationary._extras import extra
from stationary.inference import InfiniteWidth, Method, Posterior, fit, predict
from stationary.inference.predict import DEFAULT
from stationary.nn import MLP
from stationary.nn.restored_prior import calibrate_prior, decays, is_head, only_head
from stationary.ood import SCORES
from stationary.predictive import Categorical, Gaussian, P
from stationary.theory.isotropic import KERNELS
from stationary.training import Training

with extra("sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

Array: TypeAlias = NDArray[Any]

ROWS = 2**14  # rows that are predicted at a time
UNITS = (300,)  # hidden layers by default of a method that needs some
FLOOR = 1e-6  # smallest noise variance relative to that of the targets, so that a density stays finite


class _Network(BaseEstimator):
    """What classifier and regressor share: the parameters, and the way from a table to a posterior."""

    _alpha: float  # the default of alpha
    scaler_: StandardScaler
    posterior_: Posterior
    n_iter_: int

    def __init__(
        self,
        hidden_layer_sizes: int | tuple[int, ...] | None = None,
        activation: str | nn.Module = "matern52",
        *,
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
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.dropout = dropout
        self.method = method
        self.restore_prior = restore_prior
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _weights(self, X: Array, sample_weight: Any) -> Array:
        """(n,) weights of the rows, after a check of the parameters, so that nothing is computed with wrong ones."""
        self._check_parameters()
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)

    def _fit(self, X: Array, y: Array, weight: Array, *, n_outputs: int, loss: str) -> Array:
        """Train, and set scaler_, posterior_, n_iter_ and loss_curve_; return the held-out rows, or all without any."""
        random, unweighted = check_random_state(self.random_state), not np.ptp(weight)
        method = self._method(random)
        rows = watched = np.arange(len(X))
        with torch.random.fork_rng(devices=[]):
            trains = method.trains(self._build(n_outputs))
        if self.early_stopping and trains:
            labels = y if loss == "cross_entropy" else np.zeros(len(y))
            rows, watched = _hold_out(labels, self.validation_fraction, random)
        self.scaler_ = StandardScaler().fit(X[rows], sample_weight=weight[rows])
        x, targets = self._inputs(X), torch.as_tensor(y, device=self.device)
        data = x[rows], targets[rows]
        training = Training(
            loss,
            epochs=int(self.max_iter),
            batch_size=None if self.batch_size is None else int(self.batch_size),
            learning_rate=self.learning_rate_init,
            weight_decay=(self._alpha if self.alpha is None else self.alpha) / len(rows),
            patience=int(self.n_iter_no_change) if self.early_stopping and trains else None,
            seed=random.randint(np.iinfo(np.int32).max),
        )
        often = _repeated(watched, weight)
        self.n_iter_ = training.epochs if trains else 1
        self.loss_curve_: list[float] = []
        self.posterior_ = fit(
            method,
            partial(self._build, n_outputs),
            data,
            training,
            sample_weight=None if unweighted else torch.as_tensor(weight[rows]),
            validation=(x[often], targets[often]) if self.early_stopping and trains else None,
            progress=self._progress,
        )
        for model in self.posterior_.networks:
            headed = any(map(is_head, model.modules()))
            if self.restore_prior or (self.restore_prior is None and headed and decays(only_head(model).activation)):
                calibrate_prior(model, *data, batch_size=ROWS)
        return watched

    def _method(self, random: np.random.RandomState) -> Method:
        if self.method is not None:
            return self.method
        if self._layers():
            return DEFAULT
        return InfiniteWidth(self.activation, seed=random.randint(2**31 - 1), verbose=bool(self.verbose))  # type: ignore[arg-type]

    def _layers(self) -> tuple[Any, ...]:
        """The widths of the hidden layers, as given, or what suits the method."""
        if self.hidden_layer_sizes is not None:
            return _sizes(self.hidden_layer_sizes)
        return () if self.method is None or isinstance(self.method, InfiniteWidth) else UNITS

    def _build(self, n_outputs: int) -> nn.Module:
        if not self._layers():
            return nn.Linear(self.n_features_in_, n_outputs).double()
        return MLP(
            self.n_features_in_,
            n_outputs,
            hidden=tuple(map(int, self._layers())),
            activation=deepcopy(self.activation),  # a copy, since ``double`` would change the user's module
            dropout=self.dropout,
        ).double()

    def _progress(self, epoch: int, loss: float, validation_loss: float | None) -> None:
        self.n_iter_ = epoch
        self.loss_curve_.append(loss)
        if self.verbose:  # printed as by scikit-learn
            watched = "" if validation_loss is None else f", validation loss = {validation_loss:.6f}"
            print(f"Iteration {epoch}, loss = {loss:.6f}{watched}")

    def _check_parameters(self) -> None:
        """Check the parameters that the rest of the library knows by another name, or not at all."""
        sizes = self._layers()
        limit = self.method is None and not sizes
        on_cpu = torch.device(self.device or "cpu").type == "cpu"
        rules = {
            "hidden_layer_sizes": (all(map(_is_count, sizes)), "positive integers, such as (100, 50), or () for none"),
            "activation": (
                self.activation in KERNELS if limit else isinstance(self.activation, str | nn.Module),
                f"one of {', '.join(KERNELS)} for infinite width; set hidden_layer_sizes=(300,) for other activations"
                if limit
                else "a name of stationary.activation or a module such as stationary.Matern(nu=1.5)",
            ),
            "method": (
                self.method is None or hasattr(self.method, "posterior"),
                "a method of inference, such as stationary.MCDropout(100), or None",
            ),
            "alpha": (
                self.alpha in (None, 0) or _is_between(self.alpha, 0, math.inf),
                "a finite number, at least 0, or None",
            ),
            "learning_rate_init": (_is_between(self.learning_rate_init, 0, math.inf), "a positive number"),
            "batch_size": (
                self.batch_size is None or _is_count(self.batch_size),
                "a positive integer or None, for all",
            ),
            "max_iter": (_is_count(self.max_iter), "a positive integer"),
            "validation_fraction": (_is_between(self.validation_fraction, 0, 1), "a number in (0, 1)"),
            "n_iter_no_change": (_is_count(self.n_iter_no_change), "a positive integer"),
            "device": (on_cpu or torch.cuda.is_available(), "None or 'cpu' here, where PyTorch finds no GPU"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"{name} must be {rule}; got {getattr(self, name)!r}")

    def _inputs(self, X: Array) -> Tensor:
        return torch.as_tensor(self.scaler_.transform(X), device=self.device)

    def _predictive(self, X: Any, family: type[P]) -> P:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return predict(self.posterior_, self._inputs(X), family=family, batch_size=ROWS).to("cpu")


class StationaryClassifier(ClassifierMixin, _Network):
    """A neural network for tables that says how sure it is, and far from its training data that it does not know.

    As it comes it has infinite width: nothing is trained, and the parameters from ``dropout`` on, but for ``method``,
    ``random_state``, ``device`` and ``verbose``, are those of finite networks. Names and meanings are those of
    ``sklearn.neural_network.MLPClassifier`` where both have a parameter.

    Args:
        hidden_layer_sizes: widths of the hidden layers of a finite network. The last one has the activation and
            dropout, those before it ReLU. With a single layer, what is far for the network is far in the table; ReLU
            layers in front may hide some of the distance. None is () for infinite width, which then rests on the
            columns themselves, and (300,) for other methods.
        activation: activation of the last hidden layer, as a name of ``stationary.activation`` or a module, of which
            every network gets a copy; for infinite width "matern12", "matern32", "matern52", "matern72" or "rbf".
        dropout: probability of dropping a unit of the last hidden layer.
        method: method of inference; by default ``InfiniteWidth()`` without hidden layers, ``ExactDropout()`` with
            some. Others are ``Ensemble(5)``, ``MCDropout(100)``, ``Point()``, ``Laplace()`` and, with
            early_stopping=False, ``SWAG()``. ``InfiniteWidth()`` with hidden layers takes those before its head, which
            are trained first, for its trunk.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data
            (``stationary.calibrate_prior``). By default it is added where the activation decays; True makes it an error
            where it does not, False leaves it out.
        alpha: strength of the penalty alpha / 2 |w|^2, which is added to the sum of the losses (cross entropies, or
            squared errors of the standardised targets). None is 1 for the classifier and 0.01 for the regressor. The
            larger it is, the slower the hidden units vary, and the farther away "far" is.
        batch_size: number of rows in a step of Adam; None for all.
        learning_rate_init: learning rate of Adam.
        max_iter: largest number of epochs.
        early_stopping: whether to hold out rows (stratified by class), stop when their loss no longer falls, and go
            back to the weights of its minimum.
        validation_fraction: share of the rows that is held out for early_stopping.
        n_iter_no_change: number of epochs without a lower validation loss after which training stops.
        random_state: seed of the whole fit; an int makes fits reproducible.
        device: device to train and predict on: "cpu", "cuda", ...; None is the CPU.
        verbose: whether to print a line for each epoch.

    Attributes:
        classes_: (c,) the labels, sorted.
        n_features_in_, feature_names_in_: number of columns of the table, and their names where it has them.
        posterior_: the trained network or networks, for ``stationary.predict`` on standardised inputs.
        scaler_: the ``StandardScaler`` in front of them.
        n_iter_: number of epochs that training took; 1 where the method needs no training.
        loss_curve_: training loss of each epoch.
    """

    _alpha = 1.0
    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "StationaryClassifier":
        """Train on X (n, d) and labels y (n,), of any kind; sample_weight (n,) weighs the loss of each row."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        weight = self._weights(X, sample_weight)
        self.classes_, labels = np.unique(y, return_inverse=True)
        keep = weight > 0
        self._fit(X[keep], labels[keep], weight[keep], n_outputs=len(self.classes_), loss="cross_entropy")
        predict(self.posterior_, self._inputs(X[:1]))  # a method that cannot predict with this network says so now
        return self

    def predictive(self, X: Any) -> Categorical:
        """The whole prediction for X (n, d): probabilities, whose columns are classes_, and measures of uncertainty."""
        return self._predictive(X, Categorical)

    def predict_proba(self, X: Any) -> Array:
        """(n, c) probabilities of the classes, in the order of classes_."""
        return self.predictive(X).probs.numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """(n, c) logarithms of the probabilities of the classes, in the order of classes_."""
        return self.predictive(X).probs.log().numpy()

    def predict(self, X: Any) -> Array:
        """(n,) the most probable class."""
        labels = self.predictive(X).predict().numpy()
        return self.classes_[labels]

    def uncertainty(self, X: Any, measure: str = "entropy") -> Array:
        """(n,) how unsure the prediction is; a higher value is less sure.

        Args:
            X: (n, d) inputs.
            measure: name of the measure: "entropy" of the probabilities, in [0, log c]; "mutual_information", the part
                of the entropy that more data could remove; "std", the standard deviation of the outputs;
                "variance", their variance; "max_probability", 1 - the largest probability; "energy", -logsumexp of
                the outputs.
        """
        if measure not in SCORES:
            raise ValueError(f"measure must be one of {', '.join(SCORES)}; got {measure!r}")
        return SCORES[measure](self.predictive(X)).numpy()


class StationaryRegressor(RegressorMixin, _Network):
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


def _hold_out(labels: Array, fraction: float, random: np.random.RandomState) -> tuple[Array, Array]:
    """Rows to train on and rows to watch, stratified by label; the only row of its label is for training."""
    _, strata, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[strata] > 1)
    if not len(rows):
        raise ValueError(
            "early_stopping=True needs a row to hold out and another of its class to train on; got "
            f"n_samples={len(labels)}, no two of the same class: set early_stopping=False"
        )
    size = max(math.ceil(fraction * len(rows)), np.sum(counts > 1))  # one row of each class, where that is more
    rows, watched = train_test_split(rows, test_size=size, stratify=strata[rows], random_state=random)
    return np.concatenate([np.flatnonzero(counts[strata] == 1), rows]), watched


def _repeated(rows: Array, weight: Array) -> Array:
    """The rows repeated in proportion to their weights, ten times on average, or once if all weigh the same."""
    share = weight[rows] / weight[rows].mean()
    times = 1 if np.ptp(share) < 1e-9 else 10
    return np.repeat(rows, np.diff(np.rint(times * share.cumsum()), prepend=0).astype(int))


def _sizes(hidden_layer_sizes: Any) -> tuple[Any, ...]:
    return tuple(np.atleast_1d(np.asarray(hidden_layer_sizes, dtype=object)).tolist())


def _is_count(value: Any) -> bool:
    return is_count(value.item() if isinstance(value, np.integer) else value)  # a grid search gives NumPy's integers


def _is_between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float | np.number) and bool(low < value < high)
