"""How a network is walked through and run."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo
from torch import nn

import stationary as st
from stationary.nn.running import batches, evaluating, modules_of


def test_modules_are_those_of_pytorch_in_its_order():
    shared = nn.Linear(2, 2)
    odd = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.ReLU(), nn.ModuleList([nn.Dropout(), shared]))})
    odd.register_module("nothing", None)
    for model in (shared, odd, st.MLP(3, 2), nn.TransformerEncoderLayer(8, 2)):
        assert modules_of(model) == list(model.modules())


def test_one_batch_is_the_input_itself():
    x = torch.randn(4, 3)
    for size in (None, 4, 9):
        [(part, _)] = batches(x, size)
        assert part is x
    assert [len(part) for part, _ in batches(x, 3)] == [3, 1]
    [(part, _)] = batches({"a": x, "b": x})
    assert part["a"] is x and set(part) == {"a", "b"}


# Threads


class Slow(nn.Module):
    """A layer in which all threads meet, unless they take turns."""

    def forward(self, x):
        time.sleep(0.02)
        return x


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("method", [None, st.MCDropout(10), st.Point()], ids=["exact", "mc", "point"])
def test_threads_that_share_a_network_predict_what_one_predicts(method, training):
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), Slow(), st.StationaryHead(8, 3)).train(training)
    x = torch.randn(20, 3)
    alone = st.predict(network, x, method).probs
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: st.predict(network, x, method).probs, range(8)))
    assert all(torch.equal(probs, alone) for probs in found)
    assert all(module.training == training for module in network.modules())


def test_compiled_code_runs_compiled_again_after_threads_that_end_in_any_order():
    def stance():
        return torch._dynamo.eval_frame._stance.stance

    first, second = evaluating(st.MLP(3, 2)), evaluating(st.MLP(3, 2))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for thread, inside in ((one, first), (other, second)):
            thread.submit(inside.__enter__).result()
            assert stance() == "force_eager"
        one.submit(first.__exit__, None, None, None).result()
        assert stance() == "force_eager"
        other.submit(second.__exit__, None, None, None).result()
    assert stance() == "default"
