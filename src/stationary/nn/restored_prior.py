"""The prior that a finite network forgets far from its data, and how its head learns it back after training."""

import torch
from torch import Tensor, nn

from stationary.inference.base import Inputs, batches, evaluating, run
from stationary.nn.heads import StationaryHead

QUANTILE = 0.05  # of the training data have smaller features than the reference: v(x) = 0 for the other 95 %
FAR = 1e6


def calibrate_prior(
    model: nn.Module, x_train: Inputs, y_train: Tensor | None = None, *, batch_size: int | None = None
) -> nn.Module:
    """Tell the model's head what "far away" means: every method of ``predict`` then restores the prior there.

    The features of a local activation vanish far from the data, and with them every epistemic measure: a regression
    network becomes sure of its last bias. The infinite network it stands for keeps its prior variance. This stores
    the two numbers that give it back (``StationaryHead.missing_variance``): the 5 % quantile of the squared norm of the
    features over the training data, and the prior variance of the outputs. For regression that is the variance of the
    targets; for classification the variance of the trained network's logits over the data, centred over classes.

    "Far away" is far for the last hidden layer: a trunk that hides the distance (LayerNorm) defeats it, and it does
    not see inputs that are odd but near.

    Args:
        model: a trained network with one ``StationaryHead`` whose activation decays (Matérn, RBF, ...).
        x_train: the training inputs, or a good sample of them.
        y_train: for regression the targets, floating point, (n,) or (n, m). For classification leave it out, or give
            the class indices, which are not needed.
        batch_size: inputs at a time; all at once by default.

    Returns:
        The same model; its head has two more buffers, which travel with its ``state_dict``.
    """
    head = only_head(model)
    _check_decay(head.activation)
    features: list[Tensor] = []
    handle = head.dropout.register_forward_pre_hook(lambda _, args: features.append(args[0].square().sum(-1).flatten()))
    try:
        with evaluating(model):
            outputs = torch.cat([run(model, x, restore_prior=False).outputs[0] for x in batches(x_train, batch_size)])
    finally:
        handle.remove()
    if y_train is not None and y_train.is_floating_point():
        if len(y_train) != len(outputs):
            raise ValueError(f"y_train must have one row for each of the {len(outputs)} inputs, got {len(y_train)}")
        variance = y_train.to(outputs).reshape(len(outputs), -1).var(0, correction=0)
        if len(variance) != head.out_features:
            raise ValueError(f"y_train must have {head.out_features} columns as the model, got {len(variance)}")
    else:
        logits = outputs - outputs.mean(-1, keepdim=True)
        variance = logits.var(0, correction=0).mean().expand(head.out_features).clone()
    head.prior_variance = variance
    reference = torch.quantile(torch.cat(features).double(), QUANTILE).to(variance)
    head.reference_norm = reference.clamp(min=torch.finfo(variance.dtype).tiny)
    return model


def only_head(model: nn.Module) -> StationaryHead:
    """The model's one StationaryHead."""
    heads = [module for module in model.modules() if isinstance(module, StationaryHead)]
    if len(heads) != 1:
        raise ValueError(
            f"model must have one StationaryHead, {type(model).__name__} has {len(heads)}; put one in place of the "
            "classifier with stationary.replace_head, and train it"
        )
    return heads[0]


def _check_decay(activation: nn.Module) -> None:
    """A decaying activation is near 0 a million units away, on both sides and at every phase."""
    parameter = next(activation.parameters(), torch.empty(0, dtype=torch.float64))
    near = torch.linspace(-10, 10, 2001, dtype=parameter.dtype, device=parameter.device)
    with torch.no_grad():
        far = torch.cat([activation(near + FAR), activation(near - FAR)]).abs().amax()
        if not far <= 1e-3 * activation(near).abs().amax():
            raise ValueError(
                f"calibrate_prior needs an activation that decays on both sides, got {activation}: its features do not "
                "vanish far away, so there is no prior to restore; use Matern, RBF or activation_from_kernel"
            )
