"""The paper's network."""

import pytest
import torch
from torch import nn

import stationary as st
from stationary.nn.restored_prior import RestoredPrior

X = torch.linspace(-2, 2, 40).view(5, 8)


def test_the_papers_network():
    model = st.MLP(8, 2)
    widths = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)]
    assert widths == [1000, 1000, 500, 50, 2]
    others = [type(m) for m in model.modules() if not isinstance(m, nn.Linear) and not list(m.children())]
    assert others == [st.ReLU, st.ReLU, st.ReLU, st.Matern, nn.Dropout, RestoredPrior]
    assert model.head.activation.nu == 2.5 and model.head.dropout.p == 0.2
    pairs = [(8, 1000), (1000, 1000), (1000, 500), (500, 50), (50, 2)]
    assert sum(p.numel() for p in model.parameters()) == sum((n + 1) * m for n, m in pairs)


@pytest.mark.parametrize("hidden", [(4,), (6, 4), [6, 5, 4]])
def test_mlp_shapes(hidden):
    model = st.MLP(8, 3, hidden=hidden, activation=nn.Tanh(), trunk_activation="erf")
    assert model(X).shape == (5, 3) and model(X.view(5, 1, 8)).shape == (5, 1, 3)
    assert model.head.hidden.out_features == 4 and len(model.trunk) == 2 * (len(hidden) - 1)
    assert (model.in_features, model.out_features) == (8, 3)


def test_mlp_in_eval_is_deterministic():
    model = st.MLP(8, 3).eval()
    assert model(X).equal(model(X))


def test_mlp_refuses_no_hidden_layer():
    with pytest.raises(
        ValueError, match=r"widths in hidden must be positive integers, .* such as \(50,\); got 8 and \(\)"
    ):
        st.MLP(8, 3, hidden=())


def test_mlp_exports():
    model = st.MLP(8, 3, hidden=(6, 4)).eval()
    program = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.testing.assert_close(program.module()(X[:2]), model(X[:2]))
