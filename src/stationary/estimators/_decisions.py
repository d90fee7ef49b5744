"""What both estimators can promise: sets or intervals that hold the truth, and which rows are known at all.

The rows that a promise rests on must be others than those of ``fit``. Where more of them than chance explains were
trained on, it is an error: of tables with few values some new rows are twins of old ones.
"""

import math
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from stationary._extras import extra
from stationary.calibration import Conformal
from stationary.calibration.sets import rows_needed
from stationary.estimators._network import ROWS, Array, Network
from stationary.ood import OODDetector, Scorer
from stationary.training.data import marks_of

with extra("sklearn"):
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted

D = TypeVar("D", bound="Deciding")
CALIBRATIONS = ("conformal_", "detector_")  # what is set after a fit, and is gone after the next


def _learns_more(estimator: Any) -> bool:
    raise AttributeError(
        f"{type(estimator).__name__} has no partial_fit: fit it again with all rows. The posterior of infinite width "
        "takes more, posterior_.update((inputs(X), y)), and predicts with them"
    )


class Deciding(Network):
    """A network with a reject option."""

    _measure: str  # the default of measure
    conformal_: Conformal
    detector_: OODDetector

    def fit_reject(self: D, X: Any, accept: float = 0.95, measure: str | Scorer | None = None) -> D:
        """Learn from held-out rows which rows are of a known kind.

        These are the rows whose uncertainty is at most the k-th smallest of the n rows of X, k = ceil((n + 1) accept):
        a new row of the same distribution is known with a probability of at least ``accept``, whatever the model.
        The next ``fit`` forgets it.

        Args:
            X: (n, d) rows like those to come, and not those of ``fit``.
            accept: share of such rows to accept, in (0, 1).
            measure: uncertainty that decides, a name in ``stationary.ood.SCORES``, or any function from ``inputs(X)``
                to (n,) scores, as for ``OODDetector``. None is "entropy" for the classifier, and for the regressor
                "std", the epistemic standard deviation.

        Returns:
            The estimator itself.
        """
        x, least = self._held_out(X), rows_needed(accept, "accept")
        if len(x) < least:
            raise ValueError(
                f"X must have at least {least} rows to accept {accept} of new ones; got {len(x)}: take more rows, or "
                "accept less"
            )
        detector = OODDetector(self.posterior_, measure or self._measure, batch_size=ROWS, family=self.family)
        self.detector_ = detector.fit(x, accept=math.ceil((len(x) + 1) * accept - 1e-9) / len(x))
        return self

    def accepts(self, X: Any) -> Array:
        """(n,) whether each row is of a known kind, after ``fit_reject``."""
        self._needs("detector_", "fit_reject(X_hold)", "accepts")
        return (self.detector_.predict(self.inputs(X)) == 1).cpu().numpy()

    @available_if(_learns_more)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any) -> None:
        """Not there: scikit-learn sees that no estimator learns from one part of the data after the other."""

    def _trained_on(self, X: Array) -> None:
        """Remember the rows, and forget what was promised with an earlier posterior."""
        self._seen = _marks(X)
        for name in CALIBRATIONS:
            self.__dict__.pop(name, None)

    def _held_out(self, X: Any) -> Tensor:
        """The inputs, or an error where too many of the rows were trained on."""
        rows = self._rows(X)
        known, n = int(np.isin(_marks(rows), self._seen).sum()), len(rows)
        _, which, counts = np.unique(self._seen, return_inverse=True, return_counts=True)
        twins = float((counts[which] > 1).mean())  # the share of new rows that have a twin, if they are like these
        if known > max(n / 2, n * twins + 3 * math.sqrt(n * twins * (1 - twins))):
            raise ValueError(
                f"X must be rows that the estimator was not fitted to, got {known} of {n} that it was: it is surer of "
                "them, and a promise that rests on them would not hold; split them off before fit"
            )
        return self._inputs(rows)

    def _needs(self, attribute: str, call: str, method: str) -> None:
        check_is_fitted(self)
        message = f"%(name)s must be calibrated before {method}: call {call} with rows that fit has not seen"
        check_is_fitted(self, attribute, msg=message)


def _marks(X: Array) -> Array:
    """(n,) numbers by which the rows are known again."""
    return marks_of(torch.tensor(X)).numpy()  # a copy: the array of a table of pandas cannot be written to
