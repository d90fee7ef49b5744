"""Regression with a gap: what three small networks say where there are no data.

Two clusters of points, one hidden layer with 50 units, dropout. Far away ReLU's band grows for ever, a Matérn network's
shrinks (its features vanish, and the variance with them), and the restored prior leads it back to the spread of the
targets. One line, ``calibrate_prior``, is the difference between the last two.

    python examples/regression_gap.py --out out/examples
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch

import stationary as st
from stationary.lab.data import toy_regression
from stationary.lab.report import figures as plots

AT = (0.0, 1.0, 2.5, 5.0, 20.0)
EXTENT = 10.0


def main(out: Path) -> None:
    split = toy_regression.load()
    networks = {"ReLU": fit("relu", split), "Matérn-5/2": fit("matern52", split)}
    restored = fit("matern52", split)
    st.calibrate_prior(restored, *split.train)  # what "far away" means to this network, and what it knows there
    networks["Matérn-5/2, restored prior"] = restored
    print(f"Standard deviation of the prediction; that of the training targets is {split.y_train.std():.2f}")
    print(f"{'':28}" + "".join(f"{f'|x| = {x:g}':>11}" for x in AT))
    both = torch.tensor([[sign * x] for x in AT for sign in (-1, 1)])
    for name, network in networks.items():
        std = ask(network, both).std().view(-1, 2).mean(1)
        print(f"{name:28}" + "".join(f"{s:11.2f}" for s in std))
    draw(split, networks).savefig(out / "regression_gap.png", dpi=150)


def fit(activation: str, split: Any) -> torch.nn.Module:
    training = st.Training("mse", epochs=1000, batch_size=None, learning_rate=0.01)
    build = partial(st.MLP, 1, 1, hidden=(50,), activation=activation)
    return st.fit(st.ExactDropout(), build, split.train, training).networks[0]


def ask(network: torch.nn.Module, x: torch.Tensor) -> st.Gaussian:
    """The mean and the variance over all dropout masks, in closed form."""
    known: Any = network.get_submodule("head.restored_prior")  # without it, as one of them is meant, a prediction warns
    return st.predict(network, x, st.ExactDropout(restore_prior=known.known), family=st.Gaussian)


def draw(split: Any, networks: dict[str, torch.nn.Module]) -> Any:
    figure, axes = plots.panels(1, len(networks), width=12, height=3, sharey=True)
    x = torch.linspace(-EXTENT, EXTENT, 401)[:, None]
    for ax, color, (name, network) in zip(axes, plots.COLORS, networks.items(), strict=False):
        pred = ask(network, x)
        mean, std = pred.mean[:, 0], pred.std()[:, 0]
        ax.fill_between(x[:, 0], mean - 2 * std, mean + 2 * std, color=color, alpha=0.25, lw=0)
        ax.plot(x, mean, color=color)
        ax.plot(split.x_train, split.y_train, ".", color="black", ms=2)
        ax.set(title=name, xlabel="x", ylim=(-4, 4))
    axes[0].set_ylabel("y, two standard deviations")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figure")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out)
