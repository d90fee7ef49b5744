"""The loss of a regression that learns its noise."""

from torch import Tensor


def beta_nll(mean: Tensor, y: Tensor, variance: Tensor, *, beta: float = 0.5) -> Tensor:
    """The beta-NLL of Seitzer et al. (2022), element by element: a Gaussian likelihood that keeps to hard rows.

    It is stop(v)^beta (log v + (y - mean)^2 / v) / 2, where no gradient goes through stop(v). The plain likelihood,
    beta = 0, divides the gradient of the mean by v: what is fitted badly at first is taken for noise, and never fitted.
    With beta = 1 that gradient is the one of half the squared error.

    Args:
        mean: means.
        y: targets, of the same shape.
        variance: noise variances, positive, of the same shape.
        beta: exponent of the weight, in [0, 1].
    """
    loss = 0.5 * (variance.log() + (y - mean).square() / variance)
    return variance.detach() ** beta * loss if beta else loss
