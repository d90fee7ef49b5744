"""How a network is walked through and run."""

import torch
from torch import nn

import stationary as st
from stationary.nn.running import batches, modules_of


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
