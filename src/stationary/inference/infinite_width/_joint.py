"""The outputs of the infinitely wide network at several places together.

Given the weights W, the outputs at new places are W^T phi + e, where e is what the inducing inputs do not see: a
Gaussian process with covariance s^2 (kappa(u, u') - phi(u)^T phi(u')), of which the training rows tell nothing beyond W
(the fully independent training conditional of Snelson and Ghahramani, 2006, with the exact conditional for new places).
So, with the precision H of W, the outputs at u and u' have the covariance

    phi(u)^T H^-1 phi(u') + s^2 (kappa(u, u') - phi(u)^T phi(u')),

on whose diagonal is the variance that ``moments`` gives. Where every training row is an inducing input it is that of
the exact Gaussian process.
"""

import torch
from torch import Tensor

from stationary.inference.infinite_width._basis import Basis, unseen
from stationary.theory.isotropic import gram


def joint_moments(
    basis: Basis, mean: Tensor, root: Tensor, u: Tensor, variance: float | Tensor
) -> tuple[Tensor, Tensor]:
    """The mean (..., n, c) and the covariance (..., c or 1, n, n) of the outputs; differentiable in the places.

    Args:
        basis: the basis.
        mean: (M, c) mean of the weights W.
        root: (M, M), or (c, M, M), the Cholesky factors of the precision of W.
        u: (..., n, d) the places.
        variance: prior variance of the outputs, one number or (c,).
    """
    flat, roots = basis(u.flatten(0, -2)), root if root.ndim == 3 else root[None]
    half = torch.linalg.solve_triangular(roots, flat.mT, upper=False).mT  # of all groups at once: roots are large
    phi, half = flat.unflatten(0, u.shape[:-1]), half.unflatten(1, u.shape[:-1]).movedim(0, -3)
    scaled = (u / basis.lengthscale).reshape(-1, *u.shape[-2:])
    similarity = torch.vmap(lambda some: gram(basis.kernel, some, some))(scaled)
    rest = similarity.view(*u.shape[:-1], u.shape[-2]) - phi @ phi.mT
    same = torch.eye(u.shape[-2], dtype=torch.bool, device=u.device)
    rest = torch.where(same, torch.diag_embed(unseen(phi)), rest)  # exact there, and with no slope of a distance of 0
    scale = torch.as_tensor(variance).to(u).reshape(-1, 1, 1)
    return phi @ mean, half @ half.mT + scale * rest[..., None, :, :]
