"""Settings of the whole process, while somebody is inside."""

import numpy as np
import pytest
import scipy.linalg
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import stationary as st
from stationary import _shared
from stationary._shared import FREE_THREADS, ONE_THREAD, ONE_THREAD_OF_SCIPY, free_threads
from stationary.inference.infinite_width import _fit


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    of_scipy()
    with threadpool_limits(3, user_api="blas"):
        yield
    torch.set_num_threads(before)


def of_scipy():
    scipy.linalg.cholesky(np.eye(2))  # which loads its library
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.mark.parametrize(
    ("shared", "threads"), [(ONE_THREAD, lambda: {torch.get_num_threads()}), (ONE_THREAD_OF_SCIPY, of_scipy)]
)
def test_the_last_one_that_leaves_ends_it(shared, threads):
    """Also where several fits at once begin and end in any order; afterwards the number is what it was."""
    assert threads() == {3}
    shared.__enter__()
    shared.__enter__()
    shared.__exit__(None, None, None)
    assert threads() == {1}
    shared.__exit__(None, None, None)
    assert threads() == {3}
    with pytest.raises(ValueError, match="inside"), shared:
        raise ValueError("inside")
    assert threads() == {3}


def test_a_fit_and_a_prediction_at_once_leave_the_threads_as_they_were(monkeypatch):
    monkeypatch.setattr(FREE_THREADS, "count", lambda: 2)
    for first, second in ((FREE_THREADS, ONE_THREAD), (ONE_THREAD, FREE_THREADS)):
        first.__enter__()
        second.__enter__()
        assert torch.get_num_threads() == second.count()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("free", "taken"), [(8, 8), (7, 4), (4, 4), (3, 2), (1, 1)])
def test_as_many_threads_are_taken_as_are_free(monkeypatch, free, taken):
    """Threads that wait for another process have done 1 operation where one thread has done 100."""
    torch.set_num_threads(8)
    rates = []
    monkeypatch.setattr(_shared, "PATIENCE", 0.0)
    monkeypatch.setattr(_shared, "_rate", lambda _, n: (rates.append(n), 100.0 * n if n <= free else 1.0)[1])
    assert free_threads() == taken
    assert rates[0] == 1 and rates[1:] == [n for n in (8, 4, 2) if n >= max(2, taken)]


def test_a_core_that_becomes_idle_is_waited_for(monkeypatch):
    torch.set_num_threads(2)
    rates = iter((100.0, 1.0, 100.0, 1.0, 100.0, 200.0))  # of one thread and of two, again and again
    monkeypatch.setattr(_shared, "_rate", lambda *_: next(rates))
    assert free_threads() == 2 and next(rates, None) is None


def test_one_thread_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(_shared, "_rate", None)
    torch.set_num_threads(1)
    assert free_threads() == 1


def test_a_rate_is_that_of_so_many_threads():
    numbers = torch.zeros(3 * _shared.GRAIN, dtype=torch.float64)
    for threads in (1, 3):
        assert _shared._rate(numbers, threads) > 0 and torch.get_num_threads() == threads


def test_scipy_waits_for_nothing_while_infinite_width_searches(monkeypatch):
    """Its threads would wait in a loop for work, on the cores that PyTorch computes on: twice the time of a fit."""
    seen, own = [], _fit._values.choose
    monkeypatch.setattr(_fit._values, "choose", lambda *a, **k: (seen.append(of_scipy()), own(*a, **k))[1])
    x = torch.linspace(-1, 1, 20)[:, None]
    of_scipy()
    with threadpool_limits(2, user_api="blas"):
        st.InfiniteWidth().posterior(torch.nn.Linear(1, 1), (x, x[:, 0]))
        assert seen == [{1}] and of_scipy() == {2}
