"""Settings of the whole process, while somebody is inside."""

import numpy as np
import pytest
import scipy.linalg
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import stationary as st
from stationary._shared import ONE_THREAD, ONE_THREAD_OF_SCIPY
from stationary.inference.infinite_width import _fit


def of_scipy():
    scipy.linalg.cholesky(np.eye(2))  # which loads its library
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.mark.parametrize(
    ("shared", "threads"), [(ONE_THREAD, lambda: {torch.get_num_threads()}), (ONE_THREAD_OF_SCIPY, of_scipy)]
)
def test_the_last_one_that_leaves_ends_it(shared, threads):
    """Also where several fits at once begin and end in any order; afterwards the number is what it was."""
    torch_before = torch.get_num_threads()
    torch.set_num_threads(3)
    of_scipy()
    limits = threadpool_limits(3, user_api="blas")
    try:
        before = threads()
        assert before == {3}
        shared.__enter__()
        shared.__enter__()
        shared.__exit__(None, None, None)
        assert threads() == {1}
        shared.__exit__(None, None, None)
        assert threads() == before
        with pytest.raises(ValueError, match="inside"), shared:
            raise ValueError("inside")
        assert threads() == before
    finally:
        torch.set_num_threads(torch_before)
        limits.restore_original_limits()


def test_scipy_waits_for_nothing_while_infinite_width_searches(monkeypatch):
    """Its threads would wait in a loop for work, on the cores that PyTorch computes on: twice the time of a fit."""
    seen, own = [], _fit._values.choose
    monkeypatch.setattr(_fit._values, "choose", lambda *a, **k: (seen.append(of_scipy()), own(*a, **k))[1])
    x = torch.linspace(-1, 1, 20)[:, None]
    of_scipy()
    with threadpool_limits(2, user_api="blas"):
        st.InfiniteWidth().posterior(torch.nn.Linear(1, 1), (x, x[:, 0]))
        assert seen == [{1}] and of_scipy() == {2}
