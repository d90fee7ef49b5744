"""The exact-dropout predictor as one plain network, for deployment: no sampling, no hooks, ready for ONNX."""

from copy import deepcopy

from torch import Tensor, nn

from stationary.nn.heads import StationaryHead
from stationary.nn.restored_prior import only_head


def exact_predictor(model: nn.Module) -> nn.Module:
    """A copy of the model that returns mean and standard deviation of its outputs over all dropout masks.

    Both are exact (``ExactDropout``), include the restored prior where the head is calibrated, and come from plain
    layers: ``torch.onnx.export`` and ``torch.export`` take it as it is.

    Args:
        model: a trained network whose output is that of its ``StationaryHead``; dropout elsewhere is off.
    """
    only_head(model)
    model = deepcopy(model).eval()
    head = only_head(model)
    if head is model:
        return MomentHead(head)
    name = next(name for name, module in model.named_modules() if module is head)
    model.set_submodule(name, MomentHead(head))
    return model


class MomentHead(nn.Module):
    """The head with its closed form: E = W phi + b, Var = p / (1 - p) phi^2 (W^2)^T + v."""

    head: StationaryHead

    def __init__(self, head: StationaryHead) -> None:
        super().__init__()
        self.head = head.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features, drop = self.head.features(x), self.head.dropout.p
        variance = features.square() @ (drop / (1 - drop) * self.head.output.weight.square()).mT
        if self.head.calibrated:
            variance = variance + self.head.missing_variance(features)
        return self.head.output(features), variance.sqrt()
