"""Two processes with disjoint, unequal shares of the rows have the posterior of one process with all of them."""

import warnings

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing, nn

import stationary as st

GENERATOR = torch.Generator().manual_seed(0)
X, NEW, HELD = (torch.randn(n, 4, generator=GENERATOR, dtype=torch.float64) for n in (200, 50, 70))
X = X[X[:, 0].argsort()]  # so that the classes are not spread evenly
GIVEN = {"lengthscale": 1.0, "variance": 5.0, "temperature": 0.5, "noise": 0.1}


def targets(kind, x):
    classes = (x[:, 0] > 0).long() + (x[:, 0] > 1.5).long()
    return {
        "classes": classes,
        "labels": torch.stack([classes > 0, x[:, 1] > 0], 1).long(),
        "values": torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1),
    }[kind]


# name: kind of the targets, number of rows of the first process, whether there are validation rows, settings
CASES = {
    "classes": ("classes", 130, False, GIVEN | {"n_inducing": 60}),
    "a class that one has not": (
        "classes",
        160,
        False,
        GIVEN | {"features": "1", "prior_mean": "frequencies", "class_weight": "balanced"},
    ),
    "rows that no inducing input is of": ("classes", 197, False, GIVEN | {"n_inducing": 10}),
    "labels": ("labels", 80, False, GIVEN | {"n_inducing": 60, "prior_mean": "frequencies"}),
    "values": ("values", 130, False, GIVEN | {"n_inducing": 60, "geometry": "euclidean"}),
    "classes, whitened, from the network": (
        "classes",
        130,
        False,
        GIVEN | {"n_inducing": 60, "geometry": "whitened", "prior_mean": "network"},
    ),
    "classes, search from the network": (
        "classes",
        130,
        True,
        {"n_inducing": 40, "search_rows": 60, "prior_mean": "network"},
    ),
    "classes, search": ("classes", 130, True, {"n_inducing": 40, "search_rows": 60}),
    "values, search": ("values", 130, True, {"n_inducing": 40, "search_rows": 60}),
    "values, search without validation rows": ("values", 130, False, {"n_inducing": 40}),
}


def network(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        c = targets(kind, X)[0].numel() if kind != "classes" else 3
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, c)).double()


def answers(case, rows=slice(None), held_rows=slice(None), **settings):
    """What there is to know of the posterior of these rows."""
    kind, _, validated, given = CASES[case]
    x, held = X[rows], HELD[held_rows]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "InfiniteWidth chooses")
        posterior = st.InfiniteWidth(**(given | settings)).posterior(
            network(kind), (x, targets(kind, x)), validation=(held, targets(kind, held)) if validated else None
        )
    mean, variance = posterior.moments(NEW)
    pred = st.predict(posterior, NEW)
    return {
        "mean": mean,
        "variance": variance,
        "prediction": pred.mean if kind == "values" else pred.probs,
        "validation rows": posterior.validation_rows,
    }


def error_of(data, validation=None, model=None):
    method = st.InfiniteWidth(**GIVEN, distributed=True)
    try:
        method.posterior(model or network("classes"), data, validation=validation)
    except ValueError as error:
        return str(error)
    return None


def one_of_two(rank, folder):
    """What one process does; it notes its answers in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found = {}
    for case, (_, first, *_) in CASES.items():
        rows, held = ((slice(first), slice(25)), (slice(first, None), slice(25, None)))[rank]
        found[case] = answers(case, rows, held, distributed=True, store=f"{folder}/features")
    y = targets("classes", X)
    mine = torch.zeros_like(X).fill_(torch.nan) if rank else X
    found["NaN"] = error_of((mine, y))
    found["empty"] = error_of((X[:0], y[:0]) if rank else (X, y))
    found["label"] = error_of((X, y + 5 * rank))
    found["validation"] = error_of((X, y), (X, y) if rank else None)
    other = network("classes")
    nn.init.constant_(other[0].bias, rank)
    found["network"] = error_of((X, y), model=other)
    torch.save(found, f"{folder}/found{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(one_of_two, (str(folder),), nprocs=2)
    return [torch.load(folder / f"found{rank}") for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_posterior_of_one(found, case):
    expected = answers(case)
    for each in found:
        for name in ("mean", "variance", "prediction"):
            torch.testing.assert_close(each[case][name], expected[name], rtol=1e-6, atol=1e-6)
        if CASES[case][2]:
            assert torch.equal(each[case]["validation rows"], expected["validation rows"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("NaN", "data must be finite|finite features"),
        ("empty", "at least one"),
        ("label", "class indices 0 to 2"),
    ],
)
def test_a_fault_of_one_process_stops_both(found, fault, message):
    first, second = (each[fault] for each in found)
    assert "another process found a fault" in first
    assert any(part in second for part in message.split("|"))


def test_processes_that_differ_are_noticed(found):
    for each in found:
        assert "validation rows on all or none" in each["validation"]
        assert "the same network on all processes" in each["network"]
