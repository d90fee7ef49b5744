"""Small data and a network that the tests of ensembles and SWAG share."""

import torch

import stationary as st

CLASSIFY = st.Training(epochs=8, batch_size=20, learning_rate=0.01)


def classes(n=60):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, (x[:, 0] > 0).long()


def line(n=60):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return x, 2 * x - 1 + torch.randn(n, 1, generator=generator, dtype=torch.float64)


def mlp():
    return st.MLP(3, 2, hidden=(10, 8)).double()
