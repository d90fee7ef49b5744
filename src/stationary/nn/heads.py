"""The head: the only place where an activation plugs into a network."""

from typing import Any

import torch
from torch import Tensor, nn

from stationary.activations import activation as activation_by_name


class StationaryHead(nn.Module):
    """Linear, activation, dropout, linear: what turns the features of any trunk into outputs that know their limits.

    In ``eval`` it is deterministic. The random part, dropout before the last linear layer, belongs to
    ``stationary.predict``, which runs the trunk once and knows the mean and covariance over all masks in closed form.

    Args:
        in_features: width of what the trunk gives.
        out_features: classes, or regression targets.
        hidden: units of the layer with the activation; the paper takes 50 for tables, 512 for images.
        activation: a name of ``stationary.activation`` or any element-wise module.
        dropout: probability of dropping a hidden unit, in [0, 1).
    """

    prior_variance: Tensor | None  # (out_features,); both are set by calibrate_prior
    reference_norm: Tensor | None  # scalar
    hidden: nn.Linear
    activation: nn.Module
    dropout: nn.Dropout
    output: nn.Linear

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
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a probability in [0, 1), got {dropout!r}; the paper takes 0.2")
        self.hidden = nn.Linear(in_features, hidden)
        self.activation = activation_by_name(activation) if isinstance(activation, str) else activation
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, out_features)
        self.register_buffer("prior_variance", None)
        self.register_buffer("reference_norm", None)

    @property
    def in_features(self) -> int:
        return self.hidden.in_features

    @property
    def out_features(self) -> int:
        return self.output.out_features

    def features(self, x: Tensor) -> Tensor:
        """The hidden units phi(x), before dropout."""
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"x must have {self.in_features} features in its last dimension, got shape {tuple(x.shape)}"
            )
        return self.activation(self.hidden(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.dropout(self.features(x)))

    @property
    def calibrated(self) -> bool:
        """Whether ``calibrate_prior`` has stored what ``missing_variance`` needs."""
        return self.prior_variance is not None

    def missing_variance(self, features: Tensor) -> Tensor:
        """The prior variance that a finite network lacks where its features vanish, for each output.

        v(x) = s^2 max(0, 1 - |phi(x)|^2 / k)^2, with s^2 the prior variance of the outputs and k the 5 % quantile of
        |phi|^2 over the training data: zero in distribution, s^2 where no hidden unit is active. The square makes it
        rise gently at the edge of the data, so that the few test inputs there keep their predictions.
        """
        assert self.prior_variance is not None and self.reference_norm is not None, "calibrate_prior comes first"
        share = (1 - features.square().sum(-1) / self.reference_norm).clamp(min=0)
        return share.square()[..., None] * self.prior_variance

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """The calibration belongs to the weights: it comes and goes with them."""
        for name in ("prior_variance", "reference_norm"):
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else torch.empty_like(saved, device=self.output.weight.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
