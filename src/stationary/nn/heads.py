"""The head: the only place where an activation plugs into a network."""

from torch import Tensor, nn

from stationary._checks import is_number
from stationary.activations import activation as activation_by_name
from stationary.nn.restored_prior import RestoredPrior


class StationaryHead(nn.Module):
    """The end of a network: linear layer, stationary activation, dropout, linear layer.

    It turns the features of any trunk into outputs whose uncertainty grows away from the data. In eval mode it is
    deterministic. Its random part, the dropout before the last linear layer, is left to ``stationary.predict``, which
    runs the trunk once and has the mean and the covariance over all masks in closed form.

    Args:
        in_features: number of features that the trunk returns.
        out_features: number of classes or of regression targets.
        hidden: number of units of the layer with the activation; the paper takes 50 for tables and 512 for images.
        activation: activation of the hidden layer, as a name of ``stationary.activation`` or any element-wise module.
        dropout: probability of dropping a hidden unit, in [0, 1).
    """

    hidden: nn.Linear
    activation: nn.Module
    dropout: nn.Dropout
    output: nn.Linear
    restored_prior: RestoredPrior

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden: int = 50,
        activation: str | nn.Module = "matern52",
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        for name, width in (("in_features", in_features), ("out_features", out_features), ("hidden", hidden)):
            if not isinstance(width, int) or width < 1:
                raise ValueError(f"{name} must be a positive integer, got {width!r}")
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a probability in [0, 1), got {dropout!r}; the paper takes 0.2")
        if isinstance(activation, type) or not (isinstance(activation, str) or callable(activation)):
            raise TypeError(
                "activation must be a name of stationary.activation or a module such as stationary.Matern(nu=1.5); got "
                f"{activation!r}"
            )
        self.hidden = nn.Linear(in_features, hidden)
        self.activation = activation_by_name(activation) if isinstance(activation, str) else activation
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, out_features)
        self.restored_prior = RestoredPrior()

    @property
    def in_features(self) -> int:
        """The number of features that the trunk returns."""
        return self.hidden.in_features

    @property
    def out_features(self) -> int:
        """The number of classes or of regression targets."""
        return self.output.out_features

    def features(self, x: Tensor) -> Tensor:
        """The (n, hidden) activations phi(x) of the hidden units, before dropout."""
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"x must have {self.in_features} features in its last dimension, got shape {tuple(x.shape)}"
            )
        return self.activation(self.hidden(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.dropout(self.features(x)))
