"""Small data, networks of every kind, and how to compare them: what the tests of training share."""

import torch
from torch import nn
from torch.nn import functional as F

import stationary as st
from stationary.nn.masks import Noise
from stationary.training import train_folds
from stationary.training._cuda_graph import Replayed, can_be_replayed
from stationary.training._members import Trainees
from stationary.training._optimizer import optimizer_of
from stationary.training.data import Rows, checked

QUICK = st.Training(epochs=6, batch_size=16, learning_rate=0.01)


def classes(n=90, dtype=torch.float64):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1)


def line(n=50, noise=0.1):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return x, 2 * x - 1 + noise * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def mlp(dropout=0.3):
    return st.MLP(3, 3, hidden=(12, 8), dropout=dropout).double()


def deep_dropout():
    """Dropout at several places, of several kinds, one of them called twice."""
    twice = nn.Dropout(0.1)
    layers = [nn.Linear(3, 8), nn.SELU(), nn.AlphaDropout(0.2), twice, nn.Linear(8, 8), st.Matern(), twice]
    return nn.Sequential(*layers, nn.Linear(8, 3)).double()


def convolutional():
    trunk = [nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 6, 3, padding=1), nn.ReLU(), nn.Dropout1d(0.3), nn.Flatten()]
    return nn.Sequential(*trunk, nn.Linear(18, 3)).double()


def learnable():
    """Scalar parameters, a frozen layer, a constant buffer and tied weights."""
    model = nn.Sequential(nn.Linear(3, 3), st.Matern(1.5, learnable=True), nn.Linear(3, 3), nn.Linear(3, 3)).double()
    model[0].requires_grad_(False)
    model[3].weight = model[2].weight
    model.register_buffer("constant", torch.ones(2))
    return model


class Noisy(nn.Module):
    """Draws random numbers of its own, which no one passes in."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3).double()

    def forward(self, x):
        return self.linear(F.dropout(x, 0.2, self.training))


def batchnorm():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def assert_same(a, b, rtol=1e-9):
    assert a.state_dict().keys() == b.state_dict().keys()
    for name, value in a.state_dict().items():
        torch.testing.assert_close(value, b.state_dict()[name], rtol=rtol, atol=rtol)


def differ(a, b):
    return any(not torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items() if v.is_floating_point())


class Sampled(nn.Module):
    """A loss of its own, that needs noise: the mean over samples of what the outputs become with it."""

    def __init__(self):
        super().__init__()
        self.net, self.noise = mlp(), Noise(4)
        self.register_buffer("scale", torch.tensor(0.1, dtype=torch.float64))

    def losses(self, x, y):
        outputs = self.net(x)
        samples = outputs + self.scale * self.noise(outputs)
        return F.cross_entropy(samples.flatten(0, 1), y.repeat(4), reduction="none").view(4, -1).mean(0)


def folds():
    """Three sets of different sizes, all of six batches of 16."""
    return [classes(n)[0] + k for k, n in enumerate((90, 89, 92))], [classes(n)[1] for n in (90, 89, 92)]


def each(build, x, y, training):
    """A network for each set of data, with seeds of their own."""
    seeds = range(training.seed, training.seed + len(x))
    return train_folds([build] * len(x), list(zip(x, y, strict=True)), training, seeds=seeds)


def replay(builds, x, y, training):
    """What ``train`` does with folds on a GPU, without the graph."""
    parts = [checked(*one, training.loss) for one in zip(x, y, strict=True)]
    seeds = range(training.seed, training.seed + len(x))
    networks = [build_seeded(build, seed) for build, seed in zip(builds, seeds, strict=True)]
    members = Trainees(networks, seeds, torch.device("cpu"), training)
    assert can_be_replayed(members, x[0][:16])
    steps = Replayed(members, Rows.joined(parts), 16, capture=False)
    optimizer = optimizer_of(training, members.parameters)
    losses = [steps.train(epoch, optimizer) for epoch in range(training.epochs)]
    return members.finished([{}] * len(x)), losses


def build_seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def by_hand(build, x, y, training, loss, optimizer=None):
    """Full-batch training without dropout, as in any tutorial."""
    torch.manual_seed(training.seed)
    model = build()
    optimizer = optimizer or (lambda p: torch.optim.SGD(p, training.learning_rate, momentum=training.momentum))
    step = optimizer(model.parameters())
    for _ in range(training.epochs):
        step.zero_grad()
        loss(model(x), y).backward()
        step.step()
    return model


FULL = st.Training(epochs=30, batch_size=None, optimizer="sgd", learning_rate=0.05)


def build_uci(activation="matern32"):
    return st.MLP(3, 3, hidden=(20, 12, 9), activation=activation, dropout=0.2)


SAME, (X, Y) = mlp(), classes(8)


def loader(x, y, size=16):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), size)
