"""Which inputs to label next: those whose labels say most about what the model does not know.

A score is what one label is worth. Labels of several inputs are worth less than the sum, since they say the same thing
in part, so a batch is chosen greedily, each input given those chosen before it. For real values that is exact, with the
joint covariance K of the outputs at the inputs, the noise n, and S for what is chosen:

    "variance"  K_ii|S, the variance of the function that is left;
    "bald"      I(y_i; f | y_S) = log(1 + K_ii|S / n_i) / 2, in sum log det(I + K_SS / n) / 2;
    "entropy"   H(y_i | y_S) = log(2 pi e (K_ii|S + n_i)) / 2.

For classes it is BatchBALD (Kirsch et al., 2019): I(y_S; f) = H(y_S) - sum_i E[H(y_i | f)], with the mean over samples
of the outputs f at all inputs together, and H(y_S) over all combinations of classes, or over some that are drawn. The
samples are a posterior's members, masks for ``ExactDropout``, and draws from the joint for ``InfiniteWidth`` and
``Laplace``; what the outputs of the latter say about each other is left out.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from stationary._checks import is_count
from stationary.inference import MCDropout, Method, Posterior, predict
from stationary.inference.base import joint_of
from stationary.inference.exact_dropout import ExactDropoutPosterior
from stationary.inference.infinite_width import InfiniteWidthPosterior
from stationary.inference.laplace import LaplacePosterior
from stationary.inference.predict import as_posterior, family_of
from stationary.nn.inputs import is_array, prepared
from stationary.nn.running import Batches, Inputs, batches
from stationary.ood import TableModel, TablePipeline, Tempered, mean_variance, without_pipeline
from stationary.predictive import Bernoulli, Gaussian, Joint, Predictive

Score: TypeAlias = Literal["bald", "variance", "entropy"]
SCORES, BATCHES = ("bald", "variance", "entropy"), ("joint", "top")
COMBINATIONS = 1024  # of classes, which are all gone through up to so many, and beyond are drawn
ELEMENTS = 2**24  # probabilities of combinations that are computed at a time


def acquire(
    posterior: nn.Module | Posterior | TableModel | TablePipeline,
    pool: Inputs | Batches | np.ndarray[Any, Any],
    n: int,
    score: Score = "bald",
    *,
    batch: Literal["joint", "top"] = "joint",
    method: Method | None = None,
    family: type[Predictive] | None = None,
    candidates: int = 1000,
    n_samples: int = 256,
    seed: int = 0,
    batch_size: int | None = None,
) -> Tensor:
    """(n,) numbers of the rows of the pool to label next, the most useful first; ties go to the first row.

    Examples:
        >>> rows = st.acquire(posterior, pool, 10)
        >>> posterior = posterior.update((pool[rows], ask_a_person(rows)))

    Args:
        posterior: a posterior, or a trained network with a ``method``. Or a fitted ``StationaryClassifier`` or
            ``StationaryRegressor``, or a pipeline that ends in one; the pool is then rows of its table. Temperatures
            are left out, since they change probabilities and not what is known.
        pool: inputs without labels: a tensor, an array, a mapping of these, or a loader that does not shuffle and can
            be read twice.
        n: number of rows to choose.
        score: what a label is worth: "bald", the mutual information between it and the function, in closed form where
            ``predict`` has one; "variance", that of the outputs, mean over outputs; "entropy", the total uncertainty,
            noise included.
        batch: "joint" chooses each row given those before it, and needs a posterior with a joint distribution for more
            than one row; "top" takes the best n rows one by one, which may be alike.
        method: how to predict with a network, as for ``predict``.
        family: kind of the prediction, as for ``predict``; a network that is a regression needs ``Gaussian``.
        candidates: number of rows, the best one by one, among which "joint" chooses; it takes a matrix of so many rows
            and columns for each output.
        n_samples: number of samples of the outputs for a joint choice with classes. A sum of information cannot exceed
            their logarithm, so 256 samples serve batches that are worth less than 5 nats.
        seed: seed of these samples.
        batch_size: number of inputs in a pass; by default all go in one.
    """
    for name, value, allowed in (("score", score, SCORES), ("batch", batch, BATCHES)):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
    for name, count in (("candidates", candidates), ("n_samples", n_samples)):
        if not is_count(count):
            raise ValueError(f"{name} must be a positive integer, got {count!r}")
    table = without_pipeline(posterior)
    if isinstance(table, TableModel):
        pool, family, table = table.inputs(pool), table.family, table.posterior_  # type: ignore[attr-defined]
    model = as_posterior(table, method)
    kind = family or family_of(model)
    if isinstance(model, Tempered) and kind is not Gaussian:
        model = model.untempered()
    network = model.networks[0]
    inputs = _checked(pool, network)
    scores = _one_by_one(predict(model, inputs, family=kind, batch_size=batch_size), score).double().cpu()
    if not is_count(n) or n > len(scores):
        raise ValueError(f"n must be from 1 to the number of rows of the pool, {len(scores)}; got {n!r}")
    order = scores.nan_to_num(nan=-math.inf).argsort(descending=True, stable=True)
    if batch == "top" or n == 1:
        return order[:n]
    some = order[: max(n, candidates)].sort().values
    x = _rows(inputs, some, network)
    if kind is Gaussian or score == "variance":
        return some[_greedy(joint_of(model, x), n, score)]
    probs = _probabilities(model, x, kind, n_samples, seed)
    return some[_greedy_classes(probs, n, score, torch.Generator().manual_seed(seed))]


# The pool


def _checked(pool: Any, network: nn.Module) -> Any:
    if isinstance(pool, Tensor | Mapping) or is_array(pool):
        return prepared(pool, network, "pool")
    if isinstance(pool, Iterator):
        raise ValueError(
            f"pool must be a tensor, a mapping, an array or a loader that can be read twice, got a "
            f"{type(pool).__name__}, which is gone after one pass; pass a DataLoader or a list of batches"
        )
    if isinstance(pool, DataLoader) and isinstance(pool.sampler, RandomSampler):
        raise ValueError(
            "pool must have its rows in a fixed order, got a DataLoader that shuffles, whose row numbers mean nothing; "
            "use shuffle=False"
        )
    return pool


def _rows(pool: Any, rows: Tensor, network: nn.Module) -> Any:
    """Some rows of the pool, as one batch."""
    if isinstance(pool, Tensor):
        return pool[rows]
    if isinstance(pool, Mapping):
        return {name: value[rows] for name, value in pool.items()}
    found, start = [], 0
    for part, _ in batches(pool, model=network):
        size = len(part if isinstance(part, Tensor) else next(iter(part.values())))
        found.append(_rows(part, rows[(rows >= start) & (rows < start + size)] - start, network))
        start += size
    if isinstance(found[0], Tensor):
        return torch.cat(found)
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


# One by one


def _one_by_one(pred: Any, score: str) -> Tensor:
    """(n,) what the label of each input is worth by itself."""
    if score == "variance":
        return mean_variance(pred)
    if isinstance(pred, Gaussian):
        return _worth(pred.epistemic_variance.mT, pred.aleatoric_variance.mT, score)
    return pred.entropy() if score == "entropy" else pred.mutual_information()


def _worth(left: Tensor, noise: Tensor, score: str) -> Tensor:
    """(n,) what a label is worth where the function has the variances ``left`` (m, n), by the formulas above."""
    if score == "variance":
        return left.mean(0)
    if score == "entropy":
        return 0.5 * (2 * math.pi * math.e * (left + noise)).log().sum(0)
    if not noise.gt(0).all():
        raise ValueError(
            "score must be 'variance' or 'entropy' for a posterior that knows no noise, got 'bald': a label without "
            "noise has no end of information; st.calibrate adds the noise that rows with targets show"
        )
    return 0.5 * (left / noise).log1p().sum(0)


# Together


def _greedy(joint: Joint, n: int, score: str) -> Tensor:
    """The rows of a joint, each the best given the targets of those before: a pivoted Cholesky factorisation.

    The covariance that is left after row i, K - k k^T / (K_ii + n_i) with its column k, is never formed.
    """
    covariance = joint.covariance.double().cpu()
    noise = joint.noise.mT.double().cpu()
    left, columns = joint.variance().mT.double().cpu(), list[Tensor]()
    chosen, free = list[int](), torch.ones(left.shape[1], dtype=torch.bool)
    for _ in range(n):
        row = _best(_worth(left, noise, score), free)
        column = covariance[..., row].expand_as(left)
        for other in columns:
            column = column - other * other[:, row, None]
        total = (left + noise)[:, row, None]
        column = torch.where(total > 0, column / total.sqrt(), 0.0)
        left = (left - column.square()).clamp(min=0)
        chosen.append(row)
        columns.append(column)
    return torch.tensor(chosen)


def _best(worth: Tensor, free: Tensor) -> int:
    """The first of the best rows that are free; it is not free afterwards."""
    rows = free.nonzero()[:, 0]
    of_rows = worth[rows]
    row = int(rows[(of_rows == of_rows.max()).nonzero()[0, 0]])
    free[row] = False
    return row


def _probabilities(posterior: Any, x: Any, family: type[Any], n_samples: int, seed: int) -> Tensor:
    """(l, s, n, c) probabilities of the c values of each of l labels, in each of s samples of the outputs."""
    if isinstance(posterior, ExactDropoutPosterior):  # some of the masks that it is the mean over
        exact = posterior.method
        masks = MCDropout(n_samples, last_layer=exact.last_layer, restore_prior=exact.restore_prior, seed=seed)
        posterior = masks.posterior(posterior.networks)
    joint = joint_of(posterior, x)  # an error where its members are not the same function at all inputs
    if isinstance(posterior, InfiniteWidthPosterior | LaplacePosterior):
        outputs = joint.sample(n_samples, generator=torch.Generator(joint.mean.device).manual_seed(seed))
    else:
        outputs = predict(posterior, x, family=family, keep_samples=True).samples
    outputs = outputs.double().cpu()
    if family is Bernoulli:
        yes = outputs.sigmoid().movedim(-1, 0)
        return torch.stack([1 - yes, yes], -1)
    return outputs.softmax(-1)[None]


def _greedy_classes(probs: Tensor, n: int, score: str, generator: torch.Generator) -> Tensor:
    """The rows of probabilities (l, s, n, c), each the best given those before; labels add up as if independent."""
    labels, samples, rows, c = probs.shape
    doubt = torch.special.entr(probs).sum(-1).mean(1).sum(0)  # E[H(y_i | f)]
    chosen, free = list[int](), torch.ones(rows, dtype=torch.bool)
    combined, share = probs.new_ones(labels, samples, 1), probs.new_ones(labels, 1)
    for _ in range(n):
        entropy = _joint_entropy(combined, share, probs)
        chosen.append(_best(entropy if score == "entropy" else entropy - doubt, free))
        if combined.shape[-1] * c <= COMBINATIONS:
            combined = (combined[..., None] * probs[:, :, None, chosen[-1]]).flatten(-2)
            share = probs.new_ones(labels, combined.shape[-1])
        else:
            combined = _drawn(probs[:, :, chosen], generator)
            share = probs.new_full((labels, COMBINATIONS), 1 / COMBINATIONS)
    return torch.tensor(chosen)


def _joint_entropy(combined: Tensor, share: Tensor, probs: Tensor) -> Tensor:
    """(n,) the entropy of what is chosen and one more row, but for a number that all rows have; the sum over labels.

    Args:
        combined: (l, s, k) probability in each sample of k combinations of values at the chosen rows; where they are
            drawn, relative to its mean over samples.
        share: (l, k) what a combination counts: 1 where all of them are there, 1 / k where they are drawn.
        probs: (l, s, n, c) probabilities of all rows.
    """
    labels, samples, _, c = probs.shape
    size = max(1, ELEMENTS // (labels * combined.shape[-1] * c))
    parts = []
    for some in probs.split(size, 2):
        both = (combined.mT @ some.flatten(2) / samples).unflatten(-1, (-1, c))  # (l, k, n', c)
        parts.append((share[..., None] * torch.special.entr(both).sum(-1)).sum((0, 1)))
    return torch.cat(parts)


def _drawn(probs: Tensor, generator: torch.Generator) -> Tensor:
    """(l, s, k) the probability in each sample of k combinations that are drawn from the mean over samples.

    It is relative to that mean, for the product over hundreds of rows is too small a number.

    Args:
        probs: (l, s, b, c) probabilities at the chosen rows.
        generator: source of randomness.
    """
    labels, samples, b, c = probs.shape
    of = torch.randint(samples, (COMBINATIONS,), generator=generator)
    values = torch.multinomial(probs[:, of].reshape(-1, c), 1, generator=generator).view(labels, COMBINATIONS, b)
    picked = probs.gather(-1, values.movedim(1, -1)[:, None].expand(labels, samples, b, COMBINATIONS))
    return samples * picked.log().sum(2).softmax(1)
