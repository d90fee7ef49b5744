"""What a method gets of an event: features of known inputs, and the last layer of a network on them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from stationary.training.data import Pair


@dataclass(frozen=True)
class Task:
    """The features of one data set for one seed. Methods are fitted to ``train`` and choose by ``validation``.

    Args:
        train: features (n, d) and class indices (n,) that heads and detectors are fitted to.
        validation: others, which neither a trunk nor a head is trained on.
        test: others, which nothing has seen.
        unknown: features of unknown inputs by their name; for judging only.
        network: the last layer of the deterministic network, on the features.
        members: the last layers of several trunks, whose features then stand side by side in all of the above; empty
            where the features are of one trunk.
        digest: SHA-256 of what the features were computed from or read from.
        shifted: features and classes of known inputs that are corrupted, by how much; for judging only.
    """

    train: Pair
    validation: Pair
    test: Pair
    unknown: dict[str, Tensor]
    network: nn.Linear
    members: tuple[nn.Linear, ...] = ()
    digest: str = ""
    shifted: dict[str, Pair] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        return self.train[0].shape[1]

    @property
    def n_classes(self) -> int:
        return self.network.out_features


class Standardised(nn.Module):
    """A network behind columns that are standardised by the training rows; constant columns are only centred."""

    def __init__(self, x: Tensor, network: nn.Module) -> None:
        super().__init__()
        mean, std = x.mean(0), x.std(0, correction=0)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", torch.where(std > 0, std, 1.0))
        self.network = network

    mean: Tensor
    scale: Tensor

    def columns(self, x: Tensor) -> Tensor:
        """(n, d) the standardised columns."""
        return (x - self.mean) / self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.columns(x))


def folded(standardised: Standardised) -> nn.Linear:
    """Return the linear layer on the features that a linear layer on standardised columns is."""
    inner = standardised.network
    assert isinstance(inner, nn.Linear)
    layer = nn.utils.skip_init(nn.Linear, inner.in_features, inner.out_features)
    with torch.no_grad():
        layer.weight.copy_(inner.weight / standardised.scale)
        layer.bias.copy_(inner.bias - layer.weight @ standardised.mean)
    return layer.eval().requires_grad_(False)
