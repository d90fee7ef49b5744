"""One surrogate on one function: an initial design, then one point after the other."""

import math
import time
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from stationary.lab.experiments.bo.config import SURROGATES, Config
from stationary.lab.experiments.paper import look_up
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays


def missing(configs: Sequence[Config]) -> str | None:
    """Say why these configurations cannot run here and what to do about it; None if they can run."""
    return None if find_spec("botorch") else "BoTorch is not installed; in a clone, pip install '.[bo]' or make interop"


def run(config: Config, device: str = "cpu") -> Arrays:
    """Optimise, once for each seed; return the regret after the initial design and after each step.

    Args:
        config: the configuration.
        device: not used; everything is too small for another one.
    """
    look_up(SURROGATES, config.method, "method")
    watch = inside.watched(config.steps * len(config.seeds))
    found = [_optimise(config, seed, watch, k * config.steps) for k, seed in enumerate(config.seeds)]
    return {name: np.array([one[name] for one in found]) for name in found[0]}


def _optimise(config: Config, seed: int, watch: inside.Watched, done: int) -> dict[str, object]:
    from stationary.lab.experiments.bo.functions import problem
    from stationary.lab.experiments.bo.surrogates import Process, Trunk

    task = problem(config.dataset)
    x = design(task.rows, task.dims, config.n_initial, seed)
    y = task.values(x)
    surrogate = Trunk(seed) if config.method == "infinite width" else Process(config.method, config.fit_steps)
    seconds = {"seconds fit": 0.0, "seconds search": 0.0}
    regret = [task.best - y.max().item()]
    kept = inside.kept()
    if before := kept.state:
        x, y, regret = torch.from_numpy(before["x"]), torch.from_numpy(before["y"]), before["regret"].tolist()
        surrogate.load_state_dict({n: torch.from_numpy(v) for n, v in before.items() if n not in ("x", "y", "regret")})
    for step in range(len(regret) - 1, config.steps):
        generator = torch.Generator().manual_seed(1000 * (seed + 1) + step)  # the same for all surrogates
        pool = candidates(task.rows, x, x[y.argmax()], config.candidates, generator)
        start = between = time.perf_counter()
        if config.method == "random":
            new = pool[:1]
        else:
            model = surrogate(x, (y[:, None] - y.mean()) / y.std())
            between = time.perf_counter()
            new = _next(model, (y.max() - y.mean()) / y.std(), pool, task.rows is not None, config)
        seconds["seconds fit"] += between - start
        seconds["seconds search"] += time.perf_counter() - between
        x, y = torch.cat([x, new]), torch.cat([y, task.values(new)])
        regret.append(task.best - y.max().item())
        kept.keep({"x": x, "y": y, "regret": regret, **surrogate.state_dict()})
        watch.epoch(done + step + 1)
    if inside.resumed():  # of which this process has measured a part
        seconds = dict.fromkeys(seconds, math.nan)
    return {"regret": regret, "failed fits": surrogate.failures, **seconds}


def design(rows: Tensor | None, dims: int, n: int, seed: int) -> Tensor:
    """Return n points of a scrambled Sobol sequence; of a table, the rows that are closest to them, each once."""
    points = torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed).draw(n, dtype=torch.float64)
    if rows is None:
        return points
    left, chosen = torch.ones(len(rows), dtype=torch.bool), []
    for point in points:
        nearest = torch.where(left, (rows - point).square().sum(-1), torch.inf).argmin()
        left[nearest] = False
        chosen.append(nearest)
    return rows[torch.stack(chosen)]


def candidates(rows: Tensor | None, x: Tensor, best: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Return n points of which the best start the search: three quarters of them anywhere, then those near the best.

    Of a table they are n of the rows that have not been evaluated, and those that differ from the best in one setting.

    Args:
        rows: the rows of a table, or None.
        x: (m, d) the points that have been evaluated.
        best: (d,) the best of them.
        n: number of points.
        generator: source of randomness.
    """
    if rows is not None:
        order = torch.randperm(len(rows), generator=generator)[: n + len(x)]
        differ = (rows != best).sum(-1)
        return torch.cat([_without(rows[order], x)[:n], _without(rows[differ == 1], x)])
    near, dims = n // 4, best.numel()
    anywhere = torch.rand(n - near, dims, generator=generator, dtype=torch.float64)
    moves = 0.1 * torch.randn(near, dims, generator=generator, dtype=torch.float64)
    moved = torch.rand(near, dims, generator=generator, dtype=torch.float64) < min(1.0, 20 / dims)
    return torch.cat([anywhere, (best + moves * moved).clamp(0, 1)])


def _without(rows: Tensor, x: Tensor) -> Tensor:
    return rows[~(rows[:, None] == x).all(-1).any(1)]


def _next(model: object, best: Tensor, pool: Tensor, is_table: bool, config: Config) -> Tensor:
    """Return the point (1, d) of the largest expected improvement: for a table in the pool, else by L-BFGS."""
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf

    acquisition = LogExpectedImprovement(model, best)
    with torch.no_grad():
        values = acquisition(pool[:, None])
    if is_table:
        return pool[values.argmax()][None]
    starts = pool[values.topk(config.restarts).indices][:, None]
    bounds = torch.tensor([[0.0], [1.0]], dtype=pool.dtype).expand(2, pool.shape[-1])
    point, _ = optimize_acqf(
        acquisition,
        bounds,
        q=1,
        num_restarts=config.restarts,
        batch_initial_conditions=starts,
        options={"maxiter": config.search_steps},
        retry_on_optimization_warning=False,
    )
    return point.detach()
