"""Is this input like the training data? Scores of a prediction, and a detector that turns one into yes or no."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from stationary.inference import Method, Posterior, predict
from stationary.inference.base import check_method
from stationary.inference.predict import as_posterior
from stationary.metrics import acceptance_threshold, doubt
from stationary.nn.running import Batches, Inputs, batches, evaluating
from stationary.predictive import PRIOR_MISSING, Bernoulli, Categorical, Gaussian, Predictive
from stationary.training.data import marks_of, refuse_known

Scorer: TypeAlias = Callable[[Any], Tensor]  # from a batch of n inputs to (n,) scores; a higher one is farther out


def mean_variance(pred: Predictive) -> Tensor:
    """(n,) variance of the outputs over members, for a regression that of the mean without noise; mean over outputs."""
    return (pred.epistemic_variance if isinstance(pred, Gaussian) else pred.output_variance).mean(-1)  # type: ignore[attr-defined]


def root_variance(pred: Predictive) -> Tensor:
    """(n,) standard deviation of the outputs over members, for a regression without noise; mean over outputs."""
    return pred.epistemic_variance.sqrt().mean(-1) if isinstance(pred, Gaussian) else pred.std()  # type: ignore[attr-defined]


SCORES: dict[str, Callable[[Any], Tensor]] = {
    "std": root_variance,
    "variance": mean_variance,
    "entropy": lambda pred: pred.entropy(),
    "mutual_information": lambda pred: pred.mutual_information(),
    "max_probability": lambda pred: doubt(pred.probs),
    "energy": lambda pred: pred.energy(),
}
OF_SPREAD = ("std", "variance", "mutual_information")  # these are 0 where there is a single member
OF_VALUES, OF_LABELS = ("std", "variance"), ("std", "variance", "entropy", "mutual_information")


def score(pred: Predictive, name: str) -> Tensor:
    """(n,) how far out of distribution each input looks; a higher score is farther.

    Dropout changes the outputs in proportion to the features, which are often smaller for unknown inputs. By itself,
    "std" may therefore rank unknown inputs below known ones (on digits it does, see ``tests/test_ood.py``), and with a
    local activation it vanishes far away, as "mutual_information" does. ``calibrate_prior`` works against both, and
    ``InfiniteWidth`` has neither fault; the other scores depend less on it.

    Args:
        pred: the prediction to score.
        name: name of the score, a key of ``SCORES``: "std", the standard deviation of the outputs, mean over classes;
            "variance", their variance; "entropy", that of the mean probabilities; "mutual_information", entropy -
            expected entropy; "max_probability", 1 - the largest probability; "energy", -logsumexp of the mean outputs,
            which count less where they are uncertain. A regression has "std" and "variance", without its noise.
    """
    if name == "variance" and pred.prior_missing:  # the others ask the prediction, which warns itself
        warnings.warn(PRIOR_MISSING, UserWarning, stacklevel=2)
    return _by_name(name, type(pred))(pred)


def _by_name(name: str, family: type[Predictive] = Categorical) -> Callable[[Any], Tensor]:
    known = OF_VALUES if family is Gaussian else OF_LABELS if family is Bernoulli else tuple(SCORES)
    if name not in known:
        raise ValueError(f"score must be one of {', '.join(known)}; got {name!r}")
    return SCORES[name]


class TableDetector(Protocol):
    """A fitted detector of scikit-learn, such as ``IsolationForest``: higher scores are more usual."""

    def score_samples(self, X: Any) -> Any:
        """(n,) the scores of n rows."""


def detector_score(detector: TableDetector, features: Scorer | None = None) -> Scorer:
    """Make a score for ``OODDetector`` of a detector beside the model: minus its ``score_samples`` of the features.

    Args:
        detector: a detector of scikit-learn that was fitted to features of the training data, such as
            ``IsolationForest()``, ``OneClassSVM()`` or ``LocalOutlierFactor(novelty=True)``.
        features: function from a batch of n inputs to (n, d) features, such as the trunk of a network; by default the
            inputs are the features, each as a row of numbers.
    """
    if not hasattr(detector, "score_samples"):  # LocalOutlierFactor() has it for novelty=True alone
        raise TypeError(
            "detector must have score_samples, as IsolationForest() and LocalOutlierFactor(novelty=True) of "
            f"scikit-learn have; got {detector!r}"
        )

    def scorer(x: Any) -> Tensor:
        rows = x if features is None else features(x)
        if not isinstance(rows, Tensor):
            raise TypeError(f"features must be a tensor (n, d), got {type(rows).__name__}; pass features=, a function")
        usual = torch.as_tensor(detector.score_samples(rows.detach().flatten(1).cpu().numpy()))
        return -usual.to(rows.device)

    return scorer


@runtime_checkable
class Tempered(Protocol):
    """A posterior whose temperature changes its probabilities; scores are those of the posterior itself."""

    def untempered(self) -> Posterior:
        """The same posterior at temperature 1."""


@runtime_checkable
class TableModel(Protocol):
    """An estimator such as ``StationaryClassifier``: a posterior, and the way to its inputs from rows of a table."""

    @property
    def family(self) -> type[Predictive]:
        """Kind of its predictions."""

    def inputs(self, X: Any) -> Tensor:
        """The inputs of ``posterior_``."""


@runtime_checkable
class TablePipeline(Protocol):
    """A ``Pipeline`` of scikit-learn whose last step is such an estimator."""

    @property
    def named_steps(self) -> Any:
        """Its steps by name."""

    def __getitem__(self, which: Any, /) -> Any:
        """One step, or a pipeline of several."""


@dataclass(frozen=True)
class _Piped:
    """A pipeline as an estimator: rows of its table go through the steps before the last."""

    pipeline: TablePipeline

    @property
    def family(self) -> type[Predictive]:
        return self._last.family

    @property
    def posterior_(self) -> Any:
        return self._last.posterior_  # type: ignore[attr-defined]

    def inputs(self, X: Any) -> Tensor:
        before = self.pipeline[:-1]
        return self._last.inputs(before.transform(X) if len(before) else X)

    @property
    def _last(self) -> TableModel:
        return without_pipeline(self.pipeline[-1])


def without_pipeline(model: Any) -> Any:
    """A pipeline that ends in an estimator such as ``StationaryClassifier`` as an estimator; all else as it is."""
    if not isinstance(model, TablePipeline):
        return model
    return _Piped(model) if isinstance(without_pipeline(model[-1]), TableModel) else model


class OODDetector:
    """A detector that accepts inputs which look like those it was fitted on.

    ``OODDetector(model).fit(x_in, accept=0.95).predict(x)`` is +1 for a known kind of input, -1 for an unknown one.

    Args:
        model: a trained network, or a posterior; of a posterior with a temperature, the scores are those at
            temperature 1. Or a fitted ``StationaryClassifier`` or ``StationaryRegressor``, or a pipeline that ends in
            one; inputs are then rows of its table.
        score: name of the score, a key of ``SCORES``, by default "entropy", and "std" for a regression; or any function
            from a batch of n inputs to (n,) scores, of which a higher one is farther out, such as a detector of
            pytorch-ood, or ``detector_score`` of one of scikit-learn. One that learns must be fitted before, to the
            training data: with those of ``fit`` p-values would be wrong. The networks of the model are in eval mode
            while it runs.
        method: how to predict with a network, as for ``predict``; by default ``ExactDropout()``.
        batch_size: number of inputs in a pass; by default all go in one.
        family: kind of the prediction, as for ``predict``; a network that is a regression needs ``Gaussian``.
    """

    threshold: float | None = None  # the largest score that is accepted, set by fit
    known: Tensor | None = None  # the scores of the inputs that it was fitted on, sorted
    model: nn.Module | Posterior | TableModel | TablePipeline
    score: str | Scorer
    batch_size: int | None
    method: Method | None
    family: type[Predictive] | None

    def __init__(
        self,
        model: nn.Module | Posterior | TableModel | TablePipeline,
        score: str | Scorer | None = None,
        method: Method | None = None,
        *,
        batch_size: int | None = None,
        family: type[Predictive] | None = None,
    ) -> None:
        self.family = family or getattr(without_pipeline(model), "family", None)
        score = ("std" if self.family is Gaussian else "entropy") if score is None else score
        if isinstance(score, str):
            _by_name(score, self.family or Categorical)
        elif not callable(score):
            raise ValueError(f"score must be one of {', '.join(SCORES)}, or a function of inputs; got {score!r}")
        if method is not None:
            check_method(method)
        self.model, self.score, self.method, self.batch_size = model, score, method, batch_size

    def __repr__(self) -> str:
        score = repr(self.score) if isinstance(self.score, str) else getattr(self.score, "__name__", self.score)
        state = "not fitted" if self.threshold is None else f"threshold={self.threshold:.4g}"
        return f"OODDetector({type(self.model).__name__}, score={score}, {state})"

    def fit(self, x_in: Inputs | Batches, accept: float = 0.95) -> "OODDetector":
        """Set the threshold to the smallest with which at least the share ``accept`` of x_in is accepted.

        Args:
            x_in: in-distribution inputs that the model was not trained on, since it is surer of its training inputs,
                and by which no numbers of it were chosen, as ``InfiniteWidth`` has by its validation rows.
            accept: share of x_in to accept, in (0, 1].
        """
        marks: list[Tensor] = []
        scores, spread = self._scored(x_in, marks)
        if marks:
            consequence = "there would be more false alarms than the p-values say"
            refuse_known(torch.cat(marks), self._posterior().validation_rows, "x_in", consequence)
        rounding = 8 * torch.finfo(scores.dtype).eps * scores.abs().max()
        if not spread or (scores - scores[0]).abs().max() <= rounding:
            raise ValueError(
                f"score {self.score!r} must differ between inputs, got the same for all {len(scores)} of x_in; take "
                "several inputs, and for 'std' and 'mutual_information' a method with several members (MCDropout, "
                "ExactDropout); a single one has only the scores 'entropy', 'max_probability' and 'energy'"
            )
        self.threshold, self.known = acceptance_threshold(scores, accept), scores.sort().values
        return self

    def scores(self, x: Inputs | Batches) -> Tensor:
        """(n,) the scores; a higher score is farther out of distribution."""
        return self._scored(x)[0]

    def predict(self, x: Inputs | Batches) -> Tensor:
        """(n,) +1 for a known kind of input, -1 for an unknown one, also where the score is NaN."""
        self._fitted()
        assert self.threshold is not None
        known = self.scores(x) <= self.threshold
        return torch.where(known, 1, -1)

    def p_value(self, x: Inputs | Batches) -> Tensor:
        """(n,) conformal p-values: small where an input does not look like those that the detector was fitted on.

        For an input of their distribution the p-value is at most t with a probability of at most t, for every t: to
        call unknown what is at most 0.05 gives at most 5 % false alarms. It is (1 + k) / (m + 1), where k of the m
        inputs of ``fit`` have at least the score of x; so it is never below 1 / (m + 1).
        """
        known, scores = self._fitted(), self.scores(x)
        less = torch.searchsorted(known, scores.contiguous(), right=False)
        p = (1 + len(known) - less).to(torch.float64) / (len(known) + 1)
        return torch.where(scores.isnan(), p.new_tensor(1 / (len(known) + 1)), p)

    def discoveries(self, x: Inputs | Batches, rate: float = 0.1) -> Tensor:
        """(n,) which inputs of a batch to call unknown, so that on average at most a share ``rate`` of these are known.

        By Benjamini and Hochberg (1995) on the p-values, which control this false discovery rate for a detector that
        was fitted once (Bates et al., 2023).

        Args:
            x: the batch.
            rate: the false discovery rate, in (0, 1).
        """
        if not 0 < rate < 1:
            raise ValueError(f"rate must be in (0, 1), got {rate!r}; 0.1 allows 10 % false alarms among the alarms")
        p = self.p_value(x)
        ordered, ranks = p.sort().values, torch.arange(1, len(p) + 1, device=p.device)
        passing = (ordered <= rate * ranks / len(p)).nonzero()
        return p <= ordered[passing[-1, 0]] if len(passing) else torch.zeros_like(p, dtype=torch.bool)

    def _fitted(self) -> Tensor:
        if self.known is None:
            raise ValueError(
                "the detector must be fitted before it predicts; call fit(x_in) with in-distribution inputs"
            )
        return self.known

    def _posterior(self) -> Any:
        model = without_pipeline(self.model)
        return model.posterior_ if isinstance(model, TableModel) else model  # type: ignore[attr-defined]

    def _scored(self, x: Inputs | Batches, marks: list[Tensor] | None = None) -> tuple[Tensor, bool]:
        """(n,) the scores, and whether a spread that they measure is there at all.

        ``marks`` takes the numbers by which rows are known again, for a posterior that remembers any.
        """
        table, size = without_pipeline(self.model), self.batch_size
        x, model = table.inputs(x) if isinstance(table, TableModel) else x, self._posterior()
        if marks is not None and getattr(model, "validation_rows", None) is not None:
            x, size = _noted(batches(x, size, model.networks[0]), marks), None
        if not isinstance(self.score, str):
            return self._called(self.score, model, x, size), True
        model = model.untempered() if isinstance(model, Tempered) else model
        pred = predict(model, x, self.method, family=self.family or Categorical, batch_size=size)
        return score(pred, self.score), self.score not in OF_SPREAD or bool(mean_variance(pred).any())

    def _called(self, scorer: Scorer, model: Any, x: Inputs | Batches, size: int | None) -> Tensor:
        networks = (model,) if isinstance(model, nn.Module) else as_posterior(model).networks
        found = []
        with ExitStack() as stack:
            for network in networks:
                stack.enter_context(evaluating(network))
            stack.enter_context(torch.enable_grad())  # some scores are gradients, as that of ODIN
            for part, _ in batches(x, size, networks[0]):
                scores = scorer(part)
                n = len(part if isinstance(part, Tensor) else next(iter(part.values())))
                if not isinstance(scores, Tensor) or scores.shape != (n,) or not scores.is_floating_point():
                    got = (
                        f"{tuple(scores.shape)} {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
                    )
                    raise ValueError(f"score must return a tensor of real numbers ({n},) for {n} inputs; got {got}")
                found.append(scores.detach())
        return torch.cat(found)


def _noted(parts: Iterable[tuple[Any, Tensor | None]], marks: list[Tensor]) -> Iterator[Any]:
    """The inputs of batches, whose numbers are noted on the way, since an iterator can be read only once."""
    for part, _ in parts:
        marks.append(marks_of(part))
        yield part
