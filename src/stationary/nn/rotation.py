"""A trunk that sees more than its classes need: a second task beside them, telling quarter turns."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stationary._checks import check_finite
from stationary.nn.replace import classifier

QUARTERS = 4


class RotationPrediction(nn.Module):
    """A network of images that learns its classes and, from the same features, by how much an image was turned.

    A trunk that is trained for its classes alone forgets what it does not need for them, and with it much of what would
    tell an unknown class. To tell quarter turns it has to keep the shape of things (Hendrycks et al., 2019). It is for
    images that have an upright; ``network`` is what to keep after training.

    Examples:
        >>> build = lambda: st.RotationPrediction(torchvision.models.resnet18(num_classes=10))
        >>> [learner] = st.fit(st.Point(), build, loader, st.Training(loss="own", epochs=60)).networks
        >>> model = learner.network
        >>> loss = learner.losses(x, y).mean()  # in your own loop

    Args:
        network: a classifier of images (n, channels, size, size) that ends in a linear layer or a head.
        weight: weight of the loss of the turns beside that of the classes.
        name: dotted name of that last layer, as in ``network.named_modules()``; by default it is found as
            ``replace_head`` finds it.
    """

    network: nn.Module
    weight: float
    name: str
    turns: nn.Linear

    def __init__(self, network: nn.Module, weight: float = 0.5, name: str | None = None) -> None:
        super().__init__()
        check_finite("weight", weight)
        last = classifier(network, name)
        self.network, self.weight = network, weight
        self.name = next(path for path, module in network.named_modules() if module is last)
        self.turns = nn.Linear(last.in_features, QUARTERS).to(next(last.parameters()))

    def forward(self, x: Tensor) -> Any:
        """The outputs of the network."""
        return self.network(x)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """(n,) losses: that of the classes of upright images, and that of the turn of one turned copy of each.

        The copies have 0 to 3 quarter turns in the order of the batch, which should be random.

        Args:
            x: square images (n, channels, size, size).
            y: (n,) class indices.
        """
        if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"x must be square images (n, channels, size, size), got shape {tuple(x.shape)}")
        turns = torch.arange(len(x), device=x.device) % QUARTERS
        turned = torch.empty_like(x)
        for k in range(QUARTERS):
            turned[k::QUARTERS] = x[k::QUARTERS].rot90(k, (2, 3))
        features: list[Tensor] = []
        hook = self.network.get_submodule(self.name).register_forward_pre_hook(lambda _, z: features.append(z[0]))
        try:
            outputs = self.network(torch.cat([x, turned]))
        finally:
            hook.remove()
        classes = F.cross_entropy(outputs[: len(x)].float(), y, reduction="none")
        told = self.turns(features[-1][len(x) :]).float()
        return classes + self.weight * F.cross_entropy(told, turns, reduction="none")
