"""Predictions in the form that other libraries expect; those not named here need no adapter (see ``interop/``)."""

from typing import Any

from torch import Tensor, nn

from stationary.inference import Method, Posterior, predict
from stationary.ood import OODDetector
from stationary.predictive import Categorical, Gaussian


class Estimators(nn.Module):
    """A network that returns the outputs of all its members at once, in the layout of torch-uncertainty.

    In training mode it returns the outputs of the network itself, (n, c). In eval mode it returns those of its m
    members one below the other, (m n, c), which ``torch_uncertainty.routines`` read with ``is_ensemble=True``. It takes
    the place of their ``mc_dropout``, and runs the layers before the first dropout once, not once for each member.

    Examples:
        >>> routine = ClassificationRoutine(Estimators(model, st.MCDropout(16)), 10, loss=None, is_ensemble=True)

    Args:
        model: a network, or an ``nn.ModuleList`` of networks for ``Ensemble()``.
        method: how to predict, with a method that has members, such as ``MCDropout(16)`` or ``Ensemble()``. Where
            ``calibrate_prior`` was called, a member may come several times, each time with another draw of the restored
            prior.
        family: ``Categorical`` for a classifier, ``Gaussian`` for regression.
    """

    model: nn.Module
    method: Method
    family: type[Categorical] | type[Gaussian]

    def __init__(
        self, model: nn.Module, method: Method, *, family: type[Categorical] | type[Gaussian] = Categorical
    ) -> None:
        super().__init__()
        self.model, self.method, self.family = model, method, family

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.model(x)
        samples = predict(self.model, x, self.method, family=self.family, keep_samples=True).samples
        assert samples is not None
        return samples.flatten(0, 1)


def pytorch_ood_detector(
    model: nn.Module | Posterior, score: str = "entropy", method: Method | None = None, *, batch_size: int | None = None
) -> Any:
    """A ``pytorch_ood.api.Detector`` with one of our scores: ``predict(x)`` returns (n,) scores, larger is farther out.

    It needs no fit; ``OODDetector`` takes the same arguments and also finds a threshold.

    Args:
        model: a trained classifier, or a posterior.
        score: name of the score, a key of ``stationary.ood.SCORES``.
        method: how to predict with a network, as for ``predict``; by default ``ExactDropout()``.
        batch_size: number of inputs in a pass; by default all go in one.
    """
    try:
        from pytorch_ood.api import Detector
    except ModuleNotFoundError as error:
        raise ImportError(
            f"pytorch_ood_detector needs {error.name}, which is not installed: pip install pytorch-ood; without it, "
            "stationary.OODDetector has the same scores",
            name=error.name,
        ) from error

    class ScoreDetector(Detector):
        def __init__(self) -> None:
            self.model, self.scorer = model, OODDetector(model, score, method, batch_size=batch_size)

        def predict(self, x: Tensor) -> Tensor:
            return self.scorer.scores(x.to(self.device))  # the other detectors of pytorch-ood do the same

    return ScoreDetector()
