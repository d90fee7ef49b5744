"""The gradient of a small network by hand: on a CPU, autograd takes longer than what it computes for it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stationary.activations.modules import twin_of
from stationary.nn import MLP
from stationary.nn.heads import StationaryHead
from stationary.nn.masks import drawn
from stationary.training._members import Trainees


class ByHand:
    """One pass of an ``MLP`` forward and back.

    Args:
        members: a network by itself, for which ``suits`` holds.
    """

    def __init__(self, members: Trainees) -> None:
        model = members.models[0]
        assert isinstance(model, MLP)
        self.head, self.generator = model.head, members.masks[0]
        self.layers = [*(layer for layer in model.trunk if isinstance(layer, nn.Linear)), model.head.hidden]
        self.classes = members.losses.loss == "cross_entropy"

    @staticmethod
    def suits(members: Trainees) -> bool:
        """Whether it is a network of this kind on the CPU, with a loss of this kind, and no hooks in its layers."""
        model, losses = members.models[0], members.losses
        if members.stacked or members.device.type != "cpu" or type(model) is not MLP:
            return False
        head, modules = model.head, list(model.modules())
        known = type(head) is StationaryHead and twin_of(head.activation) is not None
        known &= members.drawing == (head.dropout,) and all(type(m) in (nn.Linear, nn.ReLU) for m in model.trunk)
        simple = losses.loss in ("cross_entropy", "mse") and not losses.smoothing and losses.precision == "float32"
        hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in modules)
        trained = all(p.requires_grad and p.dtype in (torch.float32, torch.float64) for p in model.parameters())
        return known and simple and not hooked and trained

    @torch.no_grad()
    def gradients(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Set the gradients of all parameters, and return the weighted loss and the weight of the batch, (1,) each."""
        twin, dropout, output = twin_of(self.head.activation), self.head.dropout, self.head.output
        assert twin is not None
        values = [x]  # what each hidden layer reads
        for layer in self.layers[:-1]:
            values.append(F.linear(values[-1], layer.weight, layer.bias).relu_())
        z = F.linear(values[-1], self.layers[-1].weight, self.layers[-1].bias)
        mask = drawn(dropout, tuple(z.shape), self.generator, z.dtype).mul_(1 / (1 - dropout.p))
        features = twin.value(z).mul_(mask)
        losses, slopes = self._loss(F.linear(features, output.weight, output.bias), y)
        total = weight.sum()
        slopes.mul_(weight[:, None]).div_(total)
        output.weight.grad, output.bias.grad = slopes.mT @ features, slopes.sum(0)
        slopes = (slopes @ output.weight).mul_(mask).mul_(twin.slope(z))
        for k in reversed(range(len(self.layers))):
            layer = self.layers[k]
            layer.weight.grad, layer.bias.grad = slopes.mT @ values[k], slopes.sum(0)
            if k:
                slopes = (slopes @ layer.weight).mul_(values[k] > 0)
        return (losses * weight).sum()[None], total[None]

    def _loss(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) the loss of each row, and (n, c) its derivative in the outputs."""
        if not self.classes:
            errors = outputs - y
            return errors.square().mean(-1), errors.mul_(2 / errors.shape[1])
        log_probs, y = outputs.log_softmax(-1), y[:, None]
        losses = -log_probs.gather(1, y)[:, 0]
        return losses, log_probs.exp_().scatter_add_(1, y, outputs.new_full(y.shape, -1.0))
