"""Noise that depends on the place: its logarithm is a second Gaussian process, which the residuals show.

The residual r_i of a row that was left out has the variance n(u_i) + v_i, where v_i is the variance of the function
there. With log n = log n_0 - t^2 / 2 + V^T psi, where t^2 is the prior variance of log n, V has the least

    sum_i w_i / 2 (log(n(u_i) + v_i) + r_i^2 / (n(u_i) + v_i)) + |V|^2 / (2 t^2),

and is Gaussian around it, by the expected curvature. Its length-scale and t^2 come from the evidence of
log(r_i^2 / (n_0 + v_i)): for a normal residual that is the logarithm of the relative noise and a number of known mean
and variance, the log of a chi-square variable (Kersting et al., 2007). Then the function is fitted again, each row
with its own noise, and so on. What is predicted is the expected noise, which is n_0 far from the data: the noise of the
fit with constant noise.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from stationary.inference.infinite_width._basis import Basis, Passes, at_a_time, moments, unseen
from stationary.inference.infinite_width._sums import alone
from stationary.inference.infinite_width._values import Chosen, Values, choose, solve

Rows: TypeAlias = tuple[
    Tensor, Tensor, Tensor
]  # places (n, d), targets (n, m), whose prior mean is 0, and weights (n,)

INDUCING = 300  # inducing inputs of the noise, which is smoother than the function
ROUNDS = 3  # of function, residuals and noise
LOG_MEAN, LOG_VARIANCE = -(math.log(2) + 0.5772156649015329), math.pi**2 / 2  # of the log of a chi-square variable
LOG_RANGE = math.log(1e6)  # largest distance of the log noise from that of the constant noise


@dataclass(frozen=True)
class Noise:
    """The noise variance at every place.

    Args:
        basis: the features psi.
        level: (m,) n_0, the noise variance far from the data.
        variance: (m,) t^2, the prior variance of the log noise.
        mean: (M, m) the mean of V.
        root: (m, M, M) the Cholesky factors of the precision of each output's V.
    """

    basis: Basis
    level: Tensor
    variance: Tensor
    mean: Tensor
    root: Tensor

    def __call__(self, u: Tensor) -> Tensor:
        """(n, m) the expected noise variance at the places u (n, d)."""
        parts = []
        for some in u.split(at_a_time(u, self.basis.size)):
            mean, variance = moments(self.basis, self.mean, self.root, some, self.variance)
            parts.append((mean + (variance - self.variance) / 2).clamp(-LOG_RANGE, LOG_RANGE).exp())
        return self.level * torch.cat(parts)


class Residuals(NamedTuple):
    """What rows say about the noise.

    Args:
        error: (n, m) targets less what is predicted for them.
        variance: (n, m) variance of the function that predicts them.
        weight: (n,) weights of the rows.
    """

    error: Tensor
    variance: Tensor
    weight: Tensor

    def log_noise(self, level: Tensor) -> Tensor:
        """(n, m) the log noise of each row relative to ``level``, with an error of variance ``LOG_VARIANCE``."""
        share = self.error.square() / (level + self.variance)
        return share.clamp(min=math.exp(-2 * LOG_RANGE)).log() - LOG_MEAN


def learn(
    kernel: str,
    inducing: Tensor,
    rows: Rows,
    shown: Rows,
    few: Tensor,
    chosen: Chosen,
    start: Tensor,
    given: tuple[float | Tensor | None, Tensor | None],
    *,
    known: bool,
    memory: int | None,
) -> tuple[Chosen, Noise]:
    """The noise, and the numbers of the function that go with it.

    Args:
        kernel: name of the kernel of both.
        inducing: (M, d) inducing inputs of the function.
        rows: the rows that the function is learnt from.
        shown: the rows whose residuals show the noise.
        few: indices of those of ``shown`` whose evidence is looked at.
        chosen: the numbers of a fit with constant noise.
        start: length-scale to start from, () for one that all columns share, (d,) for one each.
        given: length-scale and prior variance of the function where the user has set them.
        known: whether ``shown`` are among ``rows``; each is then left out of what predicts it, and the numbers of the
            function are chosen again once the noise is known.
        memory: number of bytes that the features of the rows may take.
    """
    level, noise, at_rows, at_shown = chosen.noise, None, chosen.noise, chosen.noise
    for turn in range(ROUNDS):
        basis = Basis.of(kernel, chosen.lengthscale, inducing)
        passes, predicted = (Passes(basis, u.__getitem__, len(u), memory) for u in (rows[0], shown[0]))
        values = solve(passes, rows[1], rows[2], chosen.variance, at_rows, alone)
        found = residuals(predicted, shown, values, chosen.variance, at_shown, known=known)
        if noise is None:
            logs = found.log_noise(level)[few]
            logs = logs - found.weight[few] @ logs / found.weight[few].sum()
            fixed = None, None, torch.full_like(level, LOG_VARIANCE)
            own = shown[0][few], logs, found.weight[few]
            prior = choose(kernel, None, own, None, start, fixed, starts=(0.1,), typical=True)
            features = Basis.of(kernel, prior.lengthscale, inducing[:: -(-len(inducing) // INDUCING)])
            psi = features(shown[0])
        noise = fitted(features, psi, found, level, prior.variance)
        at_rows, at_shown = noise(rows[0]), noise(shown[0])
        if turn == 0 and known and None in given:
            own = shown[0][few], shown[1][few], shown[2][few]
            relative = at_shown[few] / level
            chosen = choose(kernel, None, own, None, start, (*given, None), starts=(0.1,), relative=relative)
    assert noise is not None
    return chosen, noise


def residuals(passes: Passes, rows: Rows, values: Values, variance: Tensor, noise: Tensor, *, known: bool) -> Residuals:
    """The residuals of rows.

    Args:
        passes: the features of the rows.
        rows: the rows.
        values: the posterior of the function.
        variance: (m,) its prior variances.
        noise: (m,) or (n, m) the noise variances of the rows.
        known: whether the posterior knows the rows; each is then left out, in closed form.
    """
    _, y, weight = rows
    noise, errors, variances = noise.expand_as(y), list[Tensor](), list[Tensor]()
    for some, phi in passes:
        inside = [torch.linalg.solve_triangular(root, phi.mT, upper=False).square().sum(0) for root in values.root]
        seen, hidden = torch.stack(inside, -1), variance * unseen(phi)[:, None]
        left = (1 - seen / (noise[some] + hidden)).clamp(min=0.01) if known else torch.ones_like(seen)
        errors.append((y[some] - phi @ values.mean) / left)
        variances.append(seen / left + hidden)
    return Residuals(torch.cat(errors), torch.cat(variances), weight)


def fitted(basis: Basis, psi: Tensor, found: Residuals, level: Tensor, variance: Tensor) -> Noise:
    """The noise that the residuals show.

    Args:
        basis: the features.
        psi: (n, M) the features of the rows.
        found: their residuals.
        level: (m,) n_0.
        variance: (m,) t^2.
    """
    scale = variance.sqrt()
    white = torch.zeros(basis.size, len(level)).to(psi).requires_grad_()  # V / t
    optimizer = torch.optim.LBFGS([white], max_iter=100, history_size=20, line_search_fn="strong_wolfe")

    def at_rows() -> Tensor:
        return level * (psi @ (scale * white) - variance / 2).clamp(-LOG_RANGE, LOG_RANGE).exp()

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = at_rows() + found.variance
        rows = found.weight @ (total.log() + found.error.square() / total)
        value = (rows.sum() + white.square().sum()) / (2 * found.weight.sum())
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    with torch.no_grad():
        noise = at_rows()
        share = 0.5 * (noise / (noise + found.variance)).square() * found.weight[:, None]  # the curvature, expected
        eye = torch.eye(basis.size).to(psi)
        precision = torch.stack(
            [(s[:, None] * psi).mT @ psi + eye / t2 for s, t2 in zip(share.mT, variance, strict=True)]
        )
        return Noise(basis, level, variance, scale * white.detach(), torch.linalg.cholesky(precision))
