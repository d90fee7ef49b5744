"""The multilayer perceptron of the paper's tables."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from stationary._checks import is_count
from stationary.activations import activation as activation_by_name
from stationary.nn.heads import StationaryHead


class MLP(nn.Module):
    """A trunk of linear layers and a ``StationaryHead``.

    ``MLP(d, c)`` is the network of the paper's benchmarks, d-1000-1000-500-50-c: ReLU in the trunk, the stationary
    activation in the last hidden layer only, dropout behind it.

    Args:
        in_features: number of features of an input.
        out_features: number of classes or of regression targets.
        hidden: widths of the hidden layers; the last one belongs to the head.
        activation: activation of the last hidden layer, as a name of ``stationary.activation`` or a module.
        dropout: probability of dropping a unit of the last hidden layer, in [0, 1).
        trunk_activation: activation of the other hidden layers, as a name of ``stationary.activation``.
    """

    trunk: nn.Sequential
    head: StationaryHead
    in_features: int
    out_features: int

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden: Sequence[int] = (1000, 1000, 500, 50),
        activation: str | nn.Module = "matern52",
        dropout: float = 0.2,
        trunk_activation: str = "relu",
    ) -> None:
        super().__init__()
        if not isinstance(hidden, Sequence) or not hidden or not all(map(is_count, (in_features, *hidden))):
            raise ValueError(
                "in_features and the widths in hidden must be positive integers, and hidden have one at least, such as "
                f"(50,); got {in_features!r} and {hidden!r}"
            )
        self.trunk = nn.Sequential()
        for n_in, n_out in pairwise((in_features, *hidden[:-1])):
            self.trunk += nn.Sequential(nn.Linear(n_in, n_out), activation_by_name(trunk_activation))
        self.head = StationaryHead(
            (in_features, *hidden)[-2], out_features, hidden=hidden[-1], activation=activation, dropout=dropout
        )
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"x must have {self.in_features} features in its last dimension, got shape {tuple(x.shape)}"
            )
        return self.head(self.trunk(x))
