"""The end of a regression network whose noise depends on the input."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from stationary.nn.restored_prior import is_head
from stationary.nn.running import outputs_of

QUIETEST, LOUDEST = 1e-6, 1e6  # noise variances, in units of the variance of standardised targets


class MeanAndNoise(nn.Module):
    """A network of 2 m outputs, m means and m log variances, as one that returns the mean and the noise variance.

    With l the second half of the outputs, the noise variance is a + b / (1 + b exp(-l)), which is exp(l) between its
    bounds a = 1e-6 and b = 1e6: it neither overflows nor stops to learn. ``Training(loss="beta_nll")`` trains it, and
    every method but ``Laplace`` predicts with it: the epistemic variance is that of the means, the aleatoric variance
    the mean over the members of their noise variances. Dropout before the last layer makes the means vary while they
    are trained, which looks like noise and is learnt as such; ``ExactDropout`` and ``MCDropout`` take it off again.

    Standardise the targets. Then the noise starts as large as their variance, since the weights and biases of l start
    at 0 where the network has a head, such as a ``StationaryHead``. Far from the data, where the features of a decaying
    activation vanish, l is its bias: one number for the whole table, which is a typical noise of the data, and no
    knowledge about the noise there.

    Examples:
        >>> build = lambda: st.MeanAndNoise(st.MLP(8, 2))
        >>> posterior = st.fit(st.ExactDropout(), build, (x, y), st.Training(loss="beta_nll"))
        >>> pred = st.predict(posterior, x_new, family=st.Gaussian)

    Args:
        network: network from (n, ...) to (n, 2 m).
    """

    network: nn.Module

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        heads = [module for module in network.modules() if is_head(module)]
        if len(heads) == 1:
            linear = heads[0].output
            with torch.no_grad():
                for parameter in (linear.weight, linear.bias):
                    if parameter is not None:
                        parameter[len(parameter) // 2 :] = 0.0

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return split(outputs_of(self.network(*args, **kwargs)))


def split(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (..., m) and the noise variance (..., m) in outputs (..., 2 m)."""
    if outputs.shape[-1] % 2:
        raise ValueError(
            f"network must have 2 m outputs, m means and m log variances; got {outputs.shape[-1]}: give its last layer "
            "twice as many outputs as there are targets"
        )
    mean, log_variance = outputs.chunk(2, -1)
    return mean, bounded(log_variance)


def bounded(log_variance: Tensor) -> Tensor:
    """The noise variance of a log variance: its exponential, between the bounds."""
    at_least_float32 = log_variance.to(torch.promote_types(log_variance.dtype, torch.float32))
    return QUIETEST + LOUDEST * torch.sigmoid(at_least_float32 - math.log(LOUDEST))
