"""A fit of infinite width that was stopped continues as if it had not been, or says why it cannot."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import stationary as st
from stationary import _files
from stationary.inference.infinite_width import _classes

pytestmark = pytest.mark.usefixtures("kept_each_epoch")

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(300, 4, generator=GENERATOR)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
TRAIN, HELD = (X[:200], LABELS[:200]), (X[200:], LABELS[200:])
METHOD = st.InfiniteWidth(n_inducing=40)


class Stopped(Exception):  # noqa: N818
    pass


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


CASES = {
    "trunk": (network, {"validation": HELD}),
    "columns": (lambda: nn.Linear(4, 3), {}),
    "network's mean": (network, {"validation": HELD, "method": {"prior_mean": "network", "geometry": "whitened"}}),
    "labels": (lambda: nn.Linear(4, 3), {"several": True}),
}


def posterior(case, method):
    build, options = CASES[case]
    x, y = TRAIN
    method = replace(method, **options.get("method", {}))
    if options.get("several"):
        return method.posterior(build(), (x, nn.functional.one_hot(y, 3)))
    return method.posterior(build(), TRAIN, validation=options.get("validation"))


@pytest.fixture
def solves(monkeypatch):
    """How often the posterior was solved for; ``solves.stop`` is before which time somebody stops it."""

    class Solves:
        made, stop = 0, math.inf

        def __call__(self, *arguments, solve=_classes.solve, **options):
            if self.made >= self.stop:
                raise Stopped
            self.made += 1
            return solve(*arguments, **options)

    counter = Solves()
    monkeypatch.setattr(_classes, "solve", counter)
    return counter


def parts(fitted):
    numbers = fitted.numbers
    given = numbers.lengthscale, torch.tensor([numbers.variance, numbers.temperature]), numbers.offset
    return *given, fitted.mean, fitted.root, fitted.basis.inducing, fitted.basis.factor


@pytest.mark.parametrize("case", CASES)
def test_a_fit_that_was_stopped_continues(case, solves, tmp_path):
    """Stopped at five places, it ends with the same posterior to the last bit, and solves nothing twice."""
    undisturbed = posterior(case, METHOD)
    needed, solves.made = solves.made, 0
    method = replace(METHOD, checkpoint=tmp_path / "found.safetensors")
    assert needed > 6, "the fit has some steps to stop at"
    for stop in (1, 2, needed // 2, needed - 1):
        solves.stop = stop
        with pytest.raises(Stopped):
            posterior(case, method)
        assert solves.made == stop, "what was solved is not solved again"
    solves.stop = math.inf
    continued = posterior(case, method)
    assert solves.made == needed
    assert all(torch.equal(a, b) for a, b in zip(parts(continued), parts(undisturbed), strict=True))
    again = posterior(case, method)
    assert solves.made == needed, "a finished fit is read"
    assert torch.equal(st.predict(again, X).probs, st.predict(undisturbed, X).probs)
    assert [path.name for path in tmp_path.iterdir()] == ["found.safetensors"]


@pytest.mark.parametrize("case", CASES)
def test_the_last_solve_continues_where_it_was_stopped(case, tmp_path, monkeypatch):
    """Which is the longest step; it ends with the same posterior to the last bit, and takes no Newton step twice."""
    taken, newton_direction = [], _classes.Problem.newton_direction

    def counted(problem, *arguments):
        if len(taken) == counted.stop:
            raise Stopped
        taken.append(problem)
        return newton_direction(problem, *arguments)

    counted.stop = None
    monkeypatch.setattr(_classes.Problem, "newton_direction", counted)
    given = replace(METHOD, lengthscale=1.0, variance=1e4, temperature=0.5)
    undisturbed = posterior(case, given)
    needed = len(taken)
    taken.clear()
    assert needed > 3
    for counted.stop in (1, needed - 1):
        with pytest.raises(Stopped):
            posterior(case, replace(given, checkpoint=tmp_path / "found"))
    counted.stop = None
    continued = posterior(case, replace(given, checkpoint=tmp_path / "found"))
    assert len(taken) == needed
    own = [problem.own_at is not None for problem in taken]
    assert any(own) == (case != "labels"), "the curvatures of each class, which are made again, are among what helps"
    assert all(torch.equal(a, b) for a, b in zip(parts(continued), parts(undisturbed), strict=True))


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    path = tmp_path / "found"
    method = replace(METHOD, checkpoint=path)
    posterior("trunk", method)
    other = replace(method, kernel="matern32")
    changed = network()
    with torch.no_grad():
        changed[0].bias += 1
    x, y = TRAIN
    for fit in (
        lambda: posterior("trunk", other),
        lambda: method.posterior(changed, TRAIN, validation=HELD),
        lambda: method.posterior(network(), (x[:-1], y[:-1]), validation=HELD),
        lambda: method.posterior(network(), (x.flip(0), y.flip(0)), validation=HELD),
        lambda: method.posterior(network(), TRAIN, validation=(HELD[0], HELD[1].flip(0))),
    ):
        with pytest.raises(ValueError, match=r"checkpoint .*found must belong to this fit.*delete it"):
            fit()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoint .*found cannot be read.*delete it to start anew"):
        posterior("trunk", method)


def test_what_is_learnt_later_and_saved_knows_nothing_of_the_file(tmp_path):
    method = replace(METHOD, checkpoint=tmp_path / "found")
    fitted = posterior("columns", method)
    before = (tmp_path / "found").read_bytes()
    more = fitted.update(HELD)
    assert not torch.equal(more.mean, fitted.mean) and (tmp_path / "found").read_bytes() == before
    layer = nn.Linear(4, 3)
    loaded = st.InfiniteWidth.load(fitted.save(tmp_path / "saved"), layer)
    assert loaded.method == METHOD


def test_short_fits_write_at_their_end_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "EVERY_S", 30.0)
    written = []
    monkeypatch.setattr(
        "stationary.inference.infinite_width._journal.write_atomically", lambda path, write: written.append(path)
    )
    posterior("columns", replace(METHOD, checkpoint=tmp_path / "found"))
    assert written == [tmp_path / "found"]
    monkeypatch.setattr(_files, "BYTES_A_SECOND", 1.0)  # writing takes longer than a twentieth of the fit
    posterior("columns", replace(METHOD, checkpoint=tmp_path / "found"))
    assert len(written) == 1


def test_several_processes_have_no_checkpoint():
    with pytest.raises(ValueError, match=r"checkpoint must be None where distributed=True.*got there: leave it out"):
        st.InfiniteWidth(checkpoint="there", distributed=True)
