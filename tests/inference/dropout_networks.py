"""Networks with dropout that the tests of its methods share."""

import itertools

import torch
from torch import nn

import stationary as st


def enumerated(head, x, drop):
    """Outputs under every mask of the head's hidden units, and the masks' probabilities."""
    phi = head.features(x)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=phi.shape[1])), dtype=x.dtype)
    outputs = head.output(phi * masks[:, None] / (1 - drop))
    return outputs, (masks * (1 - drop) + (1 - masks) * drop).prod(1)


def small_head(c, drop=0.3, hidden=9):
    head = st.StationaryHead(3, c, hidden=hidden, activation="matern32", dropout=drop).double()
    nn.init.normal_(head.output.weight, std=2.0)
    return head


class Residual(nn.Module):
    """Dropout in a residual branch, an in-place sum, a module used twice, and BatchNorm: what a replay must survive."""

    def __init__(self, dropout=None):
        super().__init__()
        self.stem, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.branch, self.dropout = nn.Linear(6, 6), dropout or nn.Dropout(0.4)
        self.relu = nn.ReLU(inplace=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        h = self.relu(self.norm(self.stem(x)))
        b = self.branch(h)
        b += h
        return self.out(self.relu(self.dropout(b)) + h)
