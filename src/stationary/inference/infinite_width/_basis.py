"""Finite features of an infinitely wide network, and the passes over the training rows that a fit makes of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stationary.theory.isotropic import gram

ELEMENTS = {"cpu": 2**22, "cuda": 2**25}  # features that are computed at a time: a GPU wants few large launches
MEMORY = 2**31  # bytes that features may take on a CPU
BLOCKS = 4  # of rows in a symmetric product
JITTERS = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5)


@dataclass(frozen=True)
class Basis:
    """phi(u) = L^-1 kappa(Z, u), the part of the network that the inducing inputs Z see; L L^T = kappa(Z, Z).

    The prior variance of what they do not see is s^2 (1 - |phi(u)|^2).

    Args:
        kernel: name of the kernel kappa, of unit variance.
        lengthscale: its length-scale, () or one for each column (d,).
        inducing: (M, d) the inducing inputs Z.
        factor: (M, M) the Cholesky factor L.
    """

    kernel: str
    lengthscale: Tensor
    inducing: Tensor
    factor: Tensor

    @classmethod
    def of(cls, kernel: str, lengthscale: Tensor, inducing: Tensor) -> "Basis":
        """The basis of these inducing inputs. The diagonal is raised only where the factorisation fails without."""
        scaled = inducing / lengthscale
        matrix = gram(kernel, scaled, scaled).fill_diagonal_(1.0)
        return cls(kernel, lengthscale, inducing, cholesky(matrix))

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.inducing)

    def similarity(self, u: Tensor) -> Tensor:
        """(n, M) kappa(u, Z)."""
        return gram(self.kernel, u / self.lengthscale, self.inducing / self.lengthscale)

    def __call__(self, u: Tensor) -> Tensor:
        """(n, M) phi(u)."""
        return torch.linalg.solve_triangular(self.factor, self.similarity(u).mT, upper=False).mT

    def through(self, outputs: Tensor) -> Tensor:
        """(M, c) the weights W whose functions phi^T W have these outputs (M, c) at the inducing inputs."""
        return torch.linalg.solve_triangular(self.factor, outputs, upper=False)

    def extended(self, more: Tensor) -> "Basis":
        """The basis with more inducing inputs (m, d); the first M features stay what they are."""
        new = self(more)
        scaled = more / self.lengthscale
        rest = gram(self.kernel, scaled, scaled).fill_diagonal_(1.0) - new @ new.mT
        above = self.factor.new_zeros(self.size, len(more))
        factor = torch.cat([torch.cat([self.factor, above], 1), torch.cat([new, cholesky(rest)], 1)])
        return Basis(self.kernel, self.lengthscale, torch.cat([self.inducing, more]), factor)


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor of a matrix of unit scale, with the least jitter on its diagonal that it takes."""
    for jitter in JITTERS:
        raised = matrix.clone()
        raised.diagonal().add_(jitter)
        factor, info = torch.linalg.cholesky_ex(raised)
        if not info:
            return factor
    raise ValueError("the kernel matrix of the inducing inputs is not positive, also with a jitter of 1e-5")


def solved_by(root: Tensor, right: Tensor) -> Tensor:
    """(L L^T)^-1 B of a lower triangle L (M, M) and B (M, k), or of several.

    On a CPU, ``torch.cholesky_solve`` copies L at every call, which takes longer than to solve for a few columns.
    """
    if root.device.type != "cpu":
        return torch.cholesky_solve(right, root)
    half = torch.linalg.solve_triangular(root, right, upper=False)
    return torch.linalg.solve_triangular(root.mT, half, upper=True)


def at_a_time(like: Tensor, width: int) -> int:
    """The number of rows whose features, ``width`` each, are computed at a time on the device of a tensor."""
    return max(1, ELEMENTS.get(like.device.type, ELEMENTS["cpu"]) // width)


class Passes:
    """phi of the training rows, some at a time: kept in memory where they fit, computed in every pass where not.

    Args:
        basis: the basis.
        places: function of a slice or of indices of rows that gives their places u (n, d).
        n: number of rows.
        memory: number of bytes that phi of all rows may take; None is 2 GiB, or half of what a GPU has free.
    """

    def __init__(self, basis: Basis, places: Callable[[slice | Tensor], Tensor], n: int, memory: int | None) -> None:
        self.basis, self.places, self.n = basis, places, n
        if memory is None:
            device = basis.factor.device
            memory = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else MEMORY
        size = at_a_time(basis.factor, basis.size)
        self.slices = [slice(start, min(start + size, n)) for start in range(0, n, size)]
        self.kept: list[Tensor] | None = None
        if n * basis.size * basis.factor.element_size() <= memory:
            self.kept = [basis(places(rows)) for rows in self.slices]

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        for i, rows in enumerate(self.slices):
            yield rows, self.basis(self.places(rows)) if self.kept is None else self.kept[i]

    def unseen(self) -> Tensor:
        """(n,) the share 1 - |phi|^2 of each row's prior variance that the inducing inputs do not see."""
        parts = [unseen(phi) for _, phi in self]
        return torch.cat(parts) if parts else self.basis.factor.new_zeros(0)


def unseen(phi: Tensor) -> Tensor:
    """(n,) 1 - |phi|^2, at least 0."""
    return (1 - phi.square().sum(-1)).clamp(min=0)


def outer(phi: Tensor, weight: Tensor) -> Tensor:
    """(M, M) the lower triangle of sum_i w_i phi_i phi_i^T; what is above it has no meaning.

    A CPU computes blocks of rows up to the diagonal, five eighths of the whole; a GPU is faster in one go.
    """
    weighted = weight[:, None] * phi
    if phi.device.type != "cpu":
        return weighted.mT @ phi
    size = phi.shape[1]
    product, step = phi.new_zeros(size, size), -(-size // BLOCKS)
    for start in range(0, size, step):
        end = min(start + step, size)
        torch.mm(weighted[:, start:end].mT, phi[:, :end], out=product[start:end, :end])
    return product


def moments(basis: Basis, mean: Tensor, root: Tensor, u: Tensor, variance: float | Tensor) -> tuple[Tensor, Tensor]:
    """The mean (n, c) of the outputs at u (n, d), and their variance (n, 1), or (n, c) where they differ in it.

    Args:
        basis: the basis.
        mean: (M, c) mean of the weights W.
        root: (M, M), or (c, M, M), the Cholesky factors of the precision of W.
        u: the places.
        variance: prior variance of the outputs, one number or (c,).
    """
    phi = basis(u)
    roots = root if root.ndim == 3 else root[None]
    parts = [torch.linalg.solve_triangular(each, phi.mT, upper=False).square().sum(0) for each in roots]
    return phi @ mean, torch.stack(parts, -1) + variance * unseen(phi)[:, None]


class Products(NamedTuple):
    """What turns similarities k = kappa(u, Z) into moments by products alone.

    The mean of the outputs is k A and their variance s^2 - |k B|^2, where A = L^-T W and B B^T = L^-T (s^2 I - H^-1)
    L^-1. These lose less to rounding than phi = L^-1 k and its two norms: where L has a condition of 1e8, 2e-10 of a
    standard deviation instead of 3e-7.

    Args:
        weights: (M, c) A.
        roots: (1 or c, M, M) B, an upper triangle.
        variance: (1 or c,) s^2.
    """

    weights: Tensor
    roots: Tensor
    variance: Tensor

    @classmethod
    def of(cls, basis: Basis, mean: Tensor, root: Tensor, variance: float | Tensor) -> "Products":
        """These for a posterior, with the arguments of ``moments``; the diagonal of B B^T / s^2 may be raised a bit."""
        transposed = basis.factor.mT
        roots, eye = root if root.ndim == 3 else root[None], torch.eye(basis.size).to(root)
        prior = torch.as_tensor(variance).to(root).reshape(-1)
        parts = []
        for precision, s2 in zip(roots, prior.expand(len(roots)), strict=True):
            known = (eye - torch.cholesky_inverse(precision) / s2).flip(0, 1)
            upper = s2.sqrt() * cholesky(known).flip(0, 1)  # known = upper upper^T, from its last row on
            parts.append(torch.linalg.solve_triangular(transposed, upper, upper=True))
        return cls(torch.linalg.solve_triangular(transposed, mean, upper=True), torch.stack(parts), prior)

    def __call__(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """The moments at places of these similarities (n, M), as ``moments`` gives them."""
        seen = torch.stack([_squared_lengths(similarity, root) for root in self.roots], -1)
        return similarity @ self.weights, (self.variance - seen).clamp(min=0)


def _squared_lengths(k: Tensor, upper: Tensor) -> Tensor:
    """(n,) |k B|^2 for the rows of k (n, M), on a CPU by blocks of columns of the triangle."""
    if k.device.type != "cpu" or torch.compiler.is_compiling():
        return (k @ upper).square().sum(-1)
    size, step = upper.shape[1], -(-upper.shape[1] // BLOCKS)
    parts = [k[:, : start + step] @ upper[: start + step, start : start + step] for start in range(0, size, step)]
    return torch.stack([part.square().sum(-1) for part in parts]).sum(0)


def greedy(basis: Basis, u: Tensor, most: int, least: float) -> Tensor:
    """The indices of the rows of u (n, d) to add to the inducing inputs: again and again the one that they see least.

    Args:
        basis: the present basis.
        u: the candidates.
        most: largest number of rows to take.
        least: smallest unseen share of the prior variance for which a row is taken.
    """
    scaled = u / basis.lengthscale
    seen, columns, chosen = basis(u), list[Tensor](), list[int]()
    left = unseen(seen)
    for _ in range(min(most, len(u))):
        row = int(left.argmax())
        if left[row] <= least:
            break
        column = gram(basis.kernel, scaled, scaled[row : row + 1])[:, 0] - seen @ seen[row]
        column[row] = left[row]
        for other in columns:
            column = column - other * other[row]
        column = column / column[row].sqrt()
        chosen.append(row)
        columns.append(column)
        left = (left - column.square()).clamp(min=0)
        left[row] = 0.0
    return torch.tensor(chosen, dtype=torch.long, device=u.device)
