"""What both estimators share: the parameters, and the way from a table to a posterior."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stationary._checks import is_count
from stationary._extras import extra
from stationary._shared import FREE_THREADS, ONE_THREAD
from stationary.estimators._convergence import warn_unless_converged
from stationary.inference import InfiniteWidth, Method, Posterior, fit
from stationary.inference.base import Networks, check_method
from stationary.inference.infinite_width import InfiniteWidthPosterior
from stationary.inference.predict import DEFAULT
from stationary.nn import MLP
from stationary.nn.restored_prior import calibrate_prior, decays, is_head, only_head
from stationary.predictive import Predictive
from stationary.theory.isotropic import KERNELS
from stationary.training import Data, Observer, Training
from stationary.training.data import Pair

with extra("sklearn"):
    from sklearn.base import BaseEstimator
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

Array: TypeAlias = NDArray[Any]

ROWS = 2**11  # rows that are predicted at a time: what they need of memory is used again, and much more would be new
# Several threads wait for each other after every operation: on two idle cores they save a quarter of the time, beside a
# busy process they take twice as long and more (docs/speed.md). So one thread is enough below
ENOUGH = 2**24  # multiplications in a pass of a batch of training,
BULK = 2**28  # and in a whole prediction, about ten milliseconds; and below
FEW = 500  # rows in a fit of infinite width. Of more, it looks how many threads are free
UNITS = (300,)  # hidden layers by default of a method that needs some


class Network(BaseEstimator):
    """The parameters, and the way from a table to a posterior."""

    _alpha: float  # the default of alpha
    family: type[Predictive]  # kind of its predictions
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
        data, often = (x[rows], targets[rows]), _repeated(watched, weight)
        validation = (x[often], targets[often]) if self.early_stopping and trains else None
        training = Training(
            loss,
            epochs=int(self.max_iter),
            batch_size=None if self.batch_size is None else int(self.batch_size),
            learning_rate=self.learning_rate_init,
            weight_decay=(self._alpha if self.alpha is None else self.alpha) / len(rows),
            patience=int(self.n_iter_no_change) if self.early_stopping and trains else None,
            seed=random.randint(np.iinfo(np.int32).max),
        )
        self.n_iter_ = training.epochs if trains else 1
        self.loss_curve_: list[float] = []
        watch: list[float] = []  # losses of the held-out rows
        batch = min(len(rows), training.batch_size or len(rows))
        work, enough = (batch * self._multiplications(), ENOUGH) if trains else (len(rows), FEW)
        with _threads(work, enough, None if trains else FREE_THREADS):
            self.posterior_ = fit(
                _TrainedInSingle(method, data, validation) if trains else method,
                partial(self._build, n_outputs, torch.float32 if trains else torch.float64),
                _single(data) if trains else data,
                training,
                sample_weight=None if unweighted else torch.as_tensor(weight[rows]),
                validation=None if validation is None else _single(validation),
                progress=partial(self._progress, watch),
            )
        losses, what = (watch, "the loss of the held-out rows") if watch else (self.loss_curve_, "the training loss")
        warn_unless_converged(losses, self.n_iter_, training.epochs, int(self.n_iter_no_change), what)
        for model in self.posterior_.networks:
            headed = any(map(is_head, model.modules()))
            if self.restore_prior or (self.restore_prior is None and headed and decays(only_head(model).activation)):
                with self._predicting(len(rows)):
                    calibrate_prior(model, *data, batch_size=ROWS)
        return watched

    def _predicting(self, n: int) -> AbstractContextManager[None]:
        """The threads for a prediction of n rows."""
        posterior, each = self.posterior_, self._multiplications()
        if isinstance(posterior, InfiniteWidthPosterior):
            each = posterior.basis.size**2  # for the variances by inducing inputs, most of the work
        return _threads(n * each, BULK)

    def _alone(self, name: str, X: Any) -> Tensor:
        """(n, c) what a function of the posterior gives for a batch, without the rest of a prediction."""
        x, function = self.inputs(X), getattr(self.posterior_, name)
        with self._predicting(len(x)):
            return torch.cat([function(part) for part in x.split(ROWS)]).cpu()

    def _multiplications(self) -> int:
        """Those of a row in the hidden layers."""
        return sum(a * b for a, b in pairwise((self.n_features_in_, *map(int, self._layers()))))

    def _method(self, random: np.random.RandomState) -> Method:
        if self.method is not None or self._layers():
            method: Any = DEFAULT if self.method is None else self.method
            left_out = self.restore_prior is False and getattr(method, "restore_prior", True) is None
            return replace(method, restore_prior=False) if left_out else method  # as the user says, so nothing is amiss
        return InfiniteWidth(self.activation, seed=random.randint(2**31 - 1), verbose=bool(self.verbose))  # type: ignore[arg-type]

    def _layers(self) -> tuple[Any, ...]:
        """The widths of the hidden layers, as given, or what suits the method."""
        if self.hidden_layer_sizes is not None:
            return _sizes(self.hidden_layer_sizes)
        return () if self.method is None or isinstance(self.method, InfiniteWidth) else UNITS

    def _build(self, n_outputs: int, dtype: torch.dtype = torch.float64) -> nn.Module:
        if not self._layers():
            return nn.Linear(self.n_features_in_, n_outputs, dtype=dtype)
        return MLP(
            self.n_features_in_,
            n_outputs,
            hidden=tuple(map(int, self._layers())),
            activation=deepcopy(self.activation),  # a copy, since ``to`` would change the user's module
            dropout=self.dropout,
        ).to(dtype)

    def _progress(self, watch: list[float], epoch: int, loss: float, validation_loss: float | None) -> None:
        self.n_iter_ = epoch
        self.loss_curve_.append(loss)
        watch += [] if validation_loss is None else [validation_loss]
        if self.verbose:  # printed as by scikit-learn
            watched = "" if validation_loss is None else f", validation loss = {validation_loss:.6f}"
            print(f"Iteration {epoch}, loss = {loss:.6f}{watched}")

    def _check_parameters(self) -> None:
        """Check the parameters that the rest of the library knows by another name, or not at all."""
        if self.method is not None:
            check_method(self.method)
        sizes = self._layers()
        limit = self.method is None and not sizes
        try:
            on_cpu = torch.device(self.device or "cpu").type == "cpu"
        except RuntimeError as error:
            raise ValueError(f"device must be one of PyTorch, such as 'cpu' or 'cuda', got {self.device!r}") from error
        rules = {
            "hidden_layer_sizes": (all(map(_is_count, sizes)), "positive integers, such as (100, 50), or () for none"),
            "activation": (
                self.activation in KERNELS if limit else isinstance(self.activation, str | nn.Module),
                f"one of {', '.join(KERNELS)} for infinite width; set hidden_layer_sizes=(300,) for other activations"
                if limit
                else "a name of stationary.activation or a module such as stationary.Matern(nu=1.5)",
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

    def inputs(self, X: Any) -> Tensor:
        """(n, d) what ``posterior_`` takes for these rows: the table, standardised, on the device."""
        return self._inputs(self._rows(X))

    def _rows(self, X: Any) -> Array:
        """(n, d) the table as numbers, after a check that it is like that of ``fit``."""
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _inputs(self, X: Array) -> Tensor:
        scaled = X - self.scaler_.mean_  # ``transform`` would check all rows once more
        scaled /= self.scaler_.scale_
        return torch.as_tensor(scaled, device=self.device)


@dataclass(frozen=True)
class _TrainedInSingle(Method):
    """A method whose networks train in float32, in half the time, and are in float64 from then on.

    Args:
        method: the method.
        data, validation: its data in float64.
    """

    method: Method
    data: Pair
    validation: Pair | None

    @property
    def n_networks(self) -> int:
        return self.method.n_networks

    def check(self, network: nn.Module, *, sample_weight: Tensor | None = None) -> None:
        self.method.check(network, sample_weight=sample_weight)

    def observer(self, training: Training) -> Observer | None:
        return self.method.observer(training)

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> Posterior:
        trained = [networks] if isinstance(networks, nn.Module) else networks
        return self.method.posterior(
            [network.double() for network in trained],
            self.data,
            sample_weight=sample_weight,
            validation=self.validation,
            observed=observed,
        )


def _single(data: Pair) -> Pair:
    x, y = data
    return x.float(), y.float() if y.is_floating_point() else y


def _threads(
    work: int, enough: int, several: AbstractContextManager[None] | None = None
) -> AbstractContextManager[None]:
    """Inside, PyTorch computes with one thread where there is less work than enough for several."""
    return ONE_THREAD if work < enough else several or nullcontext()


def _hold_out(labels: Array, fraction: float, random: np.random.RandomState) -> tuple[Array, Array]:
    """Rows to train on and rows to watch, stratified by label; the only row of its label is for training."""
    _, strata, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[strata] > 1)
    if not len(rows):
        raise ValueError(
            "early_stopping=True needs a row to hold out and another of its class to train on; got "
            f"n_samples={len(labels)}, no two of the same class: set early_stopping=False"
        )
    strata_left = int(np.sum(counts > 1))
    size = max(math.ceil(fraction * len(rows)), strata_left)  # one row of each class, where that is more
    if len(rows) - size < strata_left:  # stratified as well
        raise ValueError(
            f"validation_fraction must leave a row of each class to train on, got {fraction!r} of {len(rows)} rows: "
            "lower it, or set early_stopping=False"
        )
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
