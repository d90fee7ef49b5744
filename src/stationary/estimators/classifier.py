"""The classifier: probabilities of classes that say where nothing is known."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from stationary._extras import extra
from stationary.calibration import conformal
from stationary.calibration.sets import rows_needed
from stationary.estimators._decisions import Deciding
from stationary.estimators._network import ROWS, Array
from stationary.inference import Method, predict
from stationary.inference.unsure import warn_if_far_too_unsure
from stationary.ood import SCORES
from stationary.predictive import Categorical

with extra("sklearn"):
    from sklearn.base import ClassifierMixin
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data


class StationaryClassifier(ClassifierMixin, Deciding):
    """A neural network for tables that says how sure it is, and far from its training data that it does not know.

    As it comes it has infinite width: nothing is trained, and the parameters from ``dropout`` on, but for ``method``,
    ``random_state``, ``device`` and ``verbose``, are those of finite networks. Names and meanings are those of
    ``sklearn.neural_network.MLPClassifier`` where both have a parameter.

    A ``ConvergenceWarning`` says that ``max_iter`` ended a training whose loss still fell. Another warning says that
    the network is far too unsure, where its probabilities expect more than twice the errors that it makes on the rows
    that ``early_stopping`` holds out, beyond chance: such a network was trained too little.

    There is no ``partial_fit``: an estimator is fitted again with all rows, or the posterior of infinite width takes
    more by ``posterior_.update``. Tables are dense; a sparse one is refused with scikit-learn's own error.

    Args:
        hidden_layer_sizes: widths of the hidden layers of a finite network. The last one has the activation and
            dropout, those before it ReLU. With a single layer, what is far for the network is far in the table; ReLU
            layers in front may hide some of the distance. None is () for infinite width, which then rests on the
            columns themselves, and (300,) for other methods.
        activation: activation of the last hidden layer, as a name of ``stationary.activation`` or a module, of which
            every network gets a copy; for infinite width "matern12", "matern32", "matern52", "matern72" or "rbf".
        class_weight: weights of the classes, by label; or "balanced", which gives all classes the same total, as in
            scikit-learn. They multiply sample_weight.
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
        n_features_in_ (int): number of columns of the table.
        feature_names_in_ (ndarray): names of the columns, where the table has them.
        posterior_: the trained network or networks, for ``stationary.predict`` on standardised inputs.
        scaler_: the ``StandardScaler`` in front of them.
        n_iter_: number of epochs that training took; 1 where the method needs no training.
        loss_curve_ (list[float]): training loss of each epoch.
        conformal_ (Conformal): what ``conformalize`` has found; ``fit`` removes it.
        detector_ (OODDetector): what ``fit_reject`` has found; ``fit`` removes it.
    """

    _alpha, _measure = 1.0, "entropy"
    family = Categorical
    classes_: Array

    def __init__(
        self,
        hidden_layer_sizes: int | tuple[int, ...] | None = None,
        activation: str | nn.Module = "matern52",
        *,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
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
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "StationaryClassifier":
        """Train on X (n, d) and labels y (n,), of any kind; sample_weight (n,) weighs the loss of each row."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        weight = self._weights(X, sample_weight)
        if self.class_weight is not None:
            of_class = compute_sample_weight(self.class_weight, y)
            if not (np.isfinite(of_class) & (of_class >= 0)).all():
                raise ValueError(f"class_weight must be finite and at least 0, got {self.class_weight!r}")
            weight = weight * of_class
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must have at least two classes, got one class, {self.classes_.tolist()[0]!r}: look at y"
            )
        keep = weight > 0
        self._trained_on(X[keep])
        X, labels, weight = X[keep], labels[keep], weight[keep]
        rows = self._fit(X, labels, weight, n_outputs=len(self.classes_), loss="cross_entropy")
        trained = bool(self.loss_curve_)
        some = rows if trained and self.early_stopping and not np.ptp(weight) else rows[:1]
        with self._predicting(len(some)):  # if the method cannot, it says so now
            pred = predict(self.posterior_, self._inputs(X[some]), batch_size=ROWS)
        if len(some) > 1:
            warn_if_far_too_unsure(
                pred,
                torch.as_tensor(labels[some]),
                "train it longer (max_iter, learning_rate_init), lower alpha or dropout, or correct its probabilities "
                "with stationary.calibrate",
            )
        return self

    def predictive(self, X: Any) -> Categorical:
        """The whole prediction for X (n, d): probabilities, whose columns are classes_, and measures of uncertainty."""
        x = self.inputs(X)
        with self._predicting(len(x)):
            return predict(self.posterior_, x, family=Categorical, batch_size=ROWS).to("cpu")

    def predict_proba(self, X: Any) -> Array:
        """(n, c) probabilities of the classes, in the order of classes_."""
        return self._probs(X).numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """(n, c) logarithms of the probabilities of the classes, in the order of classes_."""
        return self._probs(X).log().numpy()

    def _probs(self, X: Any) -> Tensor:
        """(n, c) the probabilities of ``predictive``, without its measures where the posterior can do without."""
        check_is_fitted(self)
        return self._alone("probs", X) if hasattr(self.posterior_, "probs") else self.predictive(X).probs

    def predict(self, X: Any, reject_label: Any = None) -> Array:
        """(n,) the most probable class.

        Args:
            X: (n, d) inputs.
            reject_label: label of the rows that are not of a known kind, after ``fit_reject``; it must be none of
                classes_. None is for no such label: every row gets a class.
        """
        which = self._probs(X).argmax(-1).numpy()
        labels = self.classes_[which]
        if reject_label is None:
            return labels
        if reject_label in self.classes_:
            raise ValueError(f"reject_label must be none of classes_, got {reject_label!r}; choose another")
        same_kind = np.asarray(reject_label).dtype.kind == labels.dtype.kind
        return np.where(self.accepts(X), labels if same_kind else labels.astype(object), reject_label)

    def conformalize(
        self, X: Any, y: Any, coverage: float = 0.9, score: str | None = None, *, per_class: bool = False
    ) -> "StationaryClassifier":
        """Learn from held-out rows how large sets of classes must be to hold the truth of new rows.

        ``stationary.conformal`` has the guarantee and the scores. The next ``fit`` forgets it.

        Args:
            X: (n, d) rows like those to come, and not those of ``fit``; n is at least coverage / (1 - coverage).
            y: (n,) their labels.
            coverage: probability that the set of a new row like them holds its class, in (0, 1).
            score: "lac", the default, for the smallest sets, "aps" or "raps".
            per_class: whether the coverage holds for the rows of each class.

        Returns:
            The estimator itself.
        """
        x, least = self._held_out(X), rows_needed(coverage, "coverage")
        _, y = validate_data(self, X, y, reset=False, dtype=np.float64)
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise ValueError(
                f"y must have labels of classes_, got {strange.tolist()}; the classifier does not know them"
            )
        counts = (y[:, None] == self.classes_).sum(0)
        few = counts.argmin()
        if per_class and counts[few] < least:
            raise ValueError(
                f"per_class=True needs at least {least} rows of each class for a coverage of {coverage}; got "
                f"{counts[few]} of class {self.classes_[few]}: take more rows, or per_class=False"
            )
        if not counts[few]:
            warnings.warn(
                f"y has no row of class {self.classes_[few]}: the coverage is that of rows like these; shuffle the "
                "rows before they are split, or stratify the split",
                UserWarning,
                stacklevel=2,
            )
        data = x, torch.as_tensor(np.searchsorted(self.classes_, y))
        self.conformal_ = conformal(
            self.posterior_, data, coverage, score, per_class=per_class, family=Categorical, batch_size=ROWS
        )
        return self

    def predict_set(self, X: Any) -> Array:
        """(n, c) whether each class of classes_ is in the set, after ``conformalize``; a set may be empty."""
        self._needs("conformal_", "conformalize(X_hold, y_hold)", "predict_set")
        return self.conformal_.predict_set(self.inputs(X), batch_size=ROWS).cpu().numpy()

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
