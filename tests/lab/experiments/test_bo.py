"""Bayesian optimisation: the functions, the surrogates and the loop are what they say, and the report is right.

In make's own environment BoTorch is not installed; ``make interop`` runs all of this where it is.
"""

import math
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from stationary.lab.experiments.bo import config, report, run
from stationary.lab.runs import inside

needs_botorch = pytest.mark.skipif(not find_spec("botorch"), reason="BoTorch is missing; make interop has it")
MODELS = [name for name in config.SURROGATES if name != "random"]
GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(24, 2, generator=GENERATOR, dtype=torch.float64)
NEW = torch.rand(50, 2, generator=GENERATOR, dtype=torch.float64)


def smooth(x):
    return torch.sin(3 * x[:, :1]) + x[:, 1:] ** 2


def surrogate(name):
    from stationary.lab.experiments.bo.surrogates import Process, Trunk

    return Trunk(seed=0) if name == "infinite width" else Process(name, fit_steps=20)


# Configurations


def test_every_function_and_surrogate_comes_before_the_next_seed():
    grid = config.configs("paper")
    first = grid[: len(config.FUNCTIONS) * len(config.SURROGATES)]
    assert len({(one.dataset, one.method) for one in first}) == len(first) and {one.seeds for one in first} == {(0,)}
    assert [one.seeds for one in grid] == sorted(one.seeds for one in grid)


def test_without_botorch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    assert ".[bo]" in run.missing(config.configs("smoke"))


# Functions


@needs_botorch
@pytest.mark.parametrize(
    ("name", "place", "low", "high"),
    [  # where the optimum is, from the literature
        ("branin", (math.pi, 2.275), (-5, 0), (10, 15)),
        ("hartmann6", (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573), 0, 1),
        ("rosenbrock10", (1.0,) * 10, -5, 10),
        ("ackley20", (0.0,) * 20, -5, 10),
    ],
)
def test_the_best_value_is_at_the_known_place(name, place, low, high):
    from stationary.lab.experiments.bo.functions import problem

    task = problem(name)
    low, high = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
    x = (torch.tensor(place, dtype=torch.float64) - low) / (high - low)
    assert task.values(x[None]).item() == pytest.approx(task.best, abs=1e-4)
    assert task.values(torch.rand(500, task.dims, dtype=torch.float64, generator=GENERATOR)).max() < task.best


@needs_botorch
def test_the_plane_has_branins_optimum_in_the_cube_and_nothing_else_matters():
    from stationary.lab.experiments.bo.functions import problem

    task = problem("subspace100")
    x = torch.full((1, 100), 0.5, dtype=torch.float64, requires_grad=True)
    for _ in range(2000):  # ascent of the only two directions that matter ends in one of the optima
        (slope,) = torch.autograd.grad(task.values(x).sum(), x)
        x = (x.detach() + 2e-3 * slope).clamp(0, 1).requires_grad_()
    assert task.values(x).item() == pytest.approx(task.best, abs=1e-3)
    inside = (0.3 + 0.4 * torch.rand(200, 100, dtype=torch.float64, generator=GENERATOR)).requires_grad_()
    (slopes,) = torch.autograd.grad(task.values(inside).sum(), inside)
    assert torch.linalg.matrix_rank(slopes) == 2


@needs_botorch
def test_the_table_has_its_rows_and_no_others():
    from stationary.lab.experiments.bo.functions import problem

    task = problem("vehicle")
    assert task.rows.shape == (30_000, 5) and len(task.rows.unique(dim=0)) == 30_000
    assert [len(task.rows[:, k].unique()) for k in range(5)] == [10, 10, 3, 10, 10]
    assert task.rows.min() == 0 and task.rows.max() == 1
    values = task.values(task.rows[::7])
    assert values.max() <= task.best < 1 and values.min() > 0
    first = torch.zeros(1, 5, dtype=torch.float64)  # the smallest of each setting, as the package has it
    assert task.values(first).item() == pytest.approx(
        np.mean([0.5424753, 0.5521078, 0.5377879, 0.5957606, 0.6047961]), abs=1e-5
    )
    with pytest.raises(KeyError):
        task.values(first + 0.01)


# Designs and candidates


def test_designs_are_rows_of_the_table_each_once():
    rows = torch.cartesian_prod(*[torch.linspace(0, 1, 4, dtype=torch.float64)] * 2)
    chosen = run.design(rows, 2, 12, seed=1)
    assert len(chosen.unique(dim=0)) == 12 and all((rows == row).all(-1).any() for row in chosen)
    points = run.design(None, 3, 8, seed=1)
    assert points.shape == (8, 3) and points.min() >= 0 and points.max() <= 1
    assert points.equal(run.design(None, 3, 8, seed=1)) and not points.equal(run.design(None, 3, 8, seed=2))


def test_candidates_are_new_and_some_are_near_the_best():
    rows = torch.cartesian_prod(*[torch.linspace(0, 1, 5, dtype=torch.float64)] * 2)
    pool = run.candidates(rows, rows[:5], rows[2], 10, torch.Generator().manual_seed(0))
    assert not any((row == rows[:5]).all(-1).any() for row in pool)
    near = rows[((rows - rows[2]).abs() > 0).sum(-1) == 1]
    assert all((pool == row).all(-1).any() for row in near if not (rows[:5] == row).all(-1).any())
    best = torch.full((40,), 0.99, dtype=torch.float64)
    pool = run.candidates(None, X, best, 100, torch.Generator().manual_seed(0))
    assert pool.shape == (100, 40) and pool.min() >= 0 and pool.max() <= 1
    moved = (pool[75:] != best).double().mean()
    assert moved == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / 1000)), "20 of 40 coordinates move"


# Surrogates


@needs_botorch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", MODELS)
def test_a_surrogate_has_learnt_and_is_less_sure_elsewhere(name):
    y = smooth(X)
    mean, std = y.mean(), y.std()
    model = surrogate(name)
    for rows in (12, 24):  # the second fit starts where the first has ended
        fitted = model(X[:rows], (y[:rows] - mean) / std)
    assert model.failures == 0
    with torch.no_grad():
        known, new = fitted.posterior(X), fitted.posterior(NEW)
    error = (new.mean - (smooth(NEW) - mean) / std).square().mean().sqrt()
    assert error < 0.5, "a model that knows nothing has an error of 1"
    assert known.variance.mean() < new.variance.mean()
    place = NEW[:4, None].clone().requires_grad_()
    fitted.posterior(place).variance.sum().backward()
    assert place.grad.isfinite().all() and place.grad.abs().max() > 0


@needs_botorch
def test_kernels_are_those_that_the_names_say():
    from gpytorch.kernels import RBFKernel

    from stationary.lab.experiments.bo.surrogates import KERNELS

    one, each = KERNELS["one length-scale"](2).double(), KERNELS["matern gp"](2).double()
    torch.testing.assert_close(one(X).to_dense(), each(X).to_dense())  # before they are fitted
    waves, rbf = KERNELS["sine-cosine"](2).double(), RBFKernel().double()
    rbf.lengthscale = 1 / waves.base_kernel.weight_std.item()
    scaled = waves(X).to_dense() / waves.outputscale
    torch.testing.assert_close(scaled, rbf(X).to_dense(), rtol=1e-6, atol=1e-7)  # GPyTorch rounds it to float32
    places = torch.tensor([[0.0] * 20, [math.sqrt(3 / 20)] * 20], dtype=torch.float64)  # the centre, and a corner
    for depth, share in ((1, 0.757), (3, 1.0)):
        centre, corner = KERNELS[f"matern network {depth}"](20).double()(places, diag=True).tolist()
        assert corner / centre == pytest.approx(share, abs=1e-3)


@needs_botorch
def test_optimisation_beats_random_search():
    settings = {"seeds": (0, 1), "n_initial": 6, "steps": 15}
    found = {name: run.run(config.Config("branin", name, **settings)) for name in ("random", "matern gp")}
    random, gp = (found[name]["regret"] for name in found)
    assert random.shape == (2, 16) and (np.diff(random) <= 0).all() and (np.diff(gp) <= 0).all()
    assert np.array_equal(random[:, 0], gp[:, 0]), "the same initial designs"
    assert (gp[:, -1] < 0.3 * random[:, -1]).all() and (gp > -1e-6).all()


# Report


def curves(*last, start=2.0):
    """A regret for each seed that falls to this after one of two steps."""
    return np.array([[start, start, value] for value in last])


RESULTS = {
    "random": curves(1.0, 1.2, 1.1),
    "matern gp": curves(0.5, 0.6, 0.7),
    "relu network": curves(0.5, 0.7, 0.9),
    "matern network 3": curves(0.1, 0.2, 0.32),
}


@needs_botorch
@pytest.mark.usefixtures("kept_each_epoch")
@pytest.mark.parametrize("method", ["matern gp", "infinite width", "random"])
def test_a_run_that_was_stopped_continues(method, tmp_path, monkeypatch):
    """Stopped after the second step, it finds the same points, and takes no step twice."""
    one = config.Config("branin", method, steps=4, candidates=64, restarts=1, search_steps=5)
    undisturbed, noted, epoch = run.run(one), [], inside.Watched.epoch

    def stopping(watch, number, *losses):
        epoch(watch, number, *losses)
        noted.append(number)
        if noted == [1, 2]:
            raise KeyboardInterrupt

    monkeypatch.setattr(inside.Watched, "epoch", stopping)
    with inside.a_run([], tmp_path), pytest.raises(KeyboardInterrupt):
        run.run(one)
    with inside.a_run([], tmp_path):
        continued = run.run(one)
    assert noted == [1, 2, 3, 4] and np.array_equal(continued["regret"], undisturbed["regret"])
    assert np.isnan(continued["seconds fit"]).all() and np.isfinite(undisturbed["seconds fit"]).all()


def results(functions=("branin",)):
    return as_results(dict.fromkeys(functions, RESULTS))


def as_results(found):
    for function, methods in found.items():
        for method, regret in methods.items():
            for seed in range(3):
                arrays = {"regret": regret[seed : seed + 1], "failed fits": np.zeros(1)}
                arrays |= {"seconds fit": np.ones(1), "seconds search": np.ones(1)}
                yield config.Config(function, method, (seed,), steps=regret.shape[1] - 1), arrays


def test_report_ranks_and_differences():
    ranks = report.ranks(RESULTS)
    np.testing.assert_allclose(ranks["matern gp"], [2.5, 2, 2])  # equal ones share their ranks
    np.testing.assert_allclose(ranks["random"], 4)
    np.testing.assert_allclose(report.left(RESULTS["matern gp"]), [0.625, 0.65, 0.675])
    assert (report.left(np.zeros((1, 3))) == 0).all()
    found = report.mean_difference(report.paired(RESULTS, "matern network 3"))
    each = np.array([-0.4, -0.4, -0.38]) / 4
    assert found.mean == pytest.approx(each.mean()) and found.std == pytest.approx(each.std(ddof=1) / math.sqrt(3))
    signs = {method: report.compared(report.paired(RESULTS, method)) for method in RESULTS}
    assert signs == {"random": -1, "matern gp": 0, "relu network": 0, "matern network 3": 1}


def test_report_says_who_is_better():
    section = report.report(list(results(("branin", "hartmann6"))))
    of_all, _, text = section.ours.split("\n\n")
    assert of_all.startswith("Over all functions, 6 pairs") and "ARD: ours: Matérn-5/2 network, depth 3. W" in of_all
    assert "better than ReLU network (I-BNN), depth 3: GP, Matérn-5/2, ARD; ours: Matérn-5/2 network, depth 3" in of_all
    assert text.startswith("Hartmann, 6 dimensions, 3 seeds: the best mean rank is that of ours: Matérn-5/2 network")
    assert "ARD: ours: Matérn-5/2 network, depth 3. Worse: random search." in text
    ranks, differences, pooled, _, regrets = section.tables
    assert ranks.rows[0] == (config.SURROGATES["matern network 3"], 1, 1, 1)
    own = next(row for row in differences.rows if row[0] == config.SURROGATES["matern gp"])
    assert own[1:] == (None, None)
    first, both = differences.rows[0][1], pooled.rows[0][1]
    assert both.mean == pytest.approx(first.mean) and both.std < first.std, "the same curves, twice the pairs"
    assert pooled.rows[0][2] is None, "nobody ran the other process"
    assert regrets.rows[0][1].mean == pytest.approx(np.mean([0.1, 0.2, 0.32])) and regrets.rows[0][-1] == 1.0
    assert {record["n"] for record in section.records} == {3}


def test_report_compares_ranges_of_steps():
    """Shares 1, 1/2 and 1/4 for one surrogate, and 1, 1, 1 - 1/8 for the other."""
    one, other = np.array([[4.0, 4, 2, 1]] * 3), np.array([[4.0, 4, 4, 3.5]] * 3)
    other[0, 2] = 3.9
    methods = {"matern network 3": one, "matern gp": other}
    np.testing.assert_allclose(report.left(one, (2, 3)), 0.375)
    first = report.paired(methods, "matern network 3", steps=(1, 1))
    later = report.paired(methods, "matern network 3", steps=(2, 3))
    np.testing.assert_allclose(first, 0)
    np.testing.assert_allclose(later, [0.375 - (0.975 + 0.875) / 2, *[0.375 - 1.875 / 2] * 2])
    assert (report.compared(first), report.compared(later)) == (0, 1)
    assert report.paired(methods, "matern network 3", steps=(2, 4)).size == 0, "there is no fourth step"
    longer = {name: np.pad(curves, ((0, 0), (0, 17)), mode="edge") for name, curves in methods.items()}
    table = list(report.tables(list(as_results({"branin": methods, "ackley20": longer}))))[3]
    name, first, second, *others = table.rows[4]
    assert name == f"{config.SURROGATES['matern network 3']}, minus {config.SURROGATES['matern gp']}"
    assert first.endswith(" *") and second == "−0.625 ± 0.000 *" and others == [None, None]
    assert table.rows[0][1:] == (None,) * 4, "nobody ran depth 1"


def test_report_takes_the_seeds_that_all_have():
    some = [(c, arrays) for c, arrays in results() if (c.method, c.seeds) != ("random", (1,))]
    found = report.by_function(some)["branin"]
    np.testing.assert_array_equal(found["matern gp"][:, -1], [0.5, 0.7])
