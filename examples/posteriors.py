"""One network, six ways to be unsure: what each costs and what it knows, on two moons.

The same architecture with a Matérn-5/2 head: a plain pass, dropout by sampling and in closed form, the same with the
restored prior, an ensemble, and SWAG. Which is best on the test points, and what do they say 20 units away?

    python examples/posteriors.py --out out/examples
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_moons

import stationary as st
from stationary.lab.report import figures as plots

TRAINING = st.Training(epochs=200, batch_size=50, learning_rate=0.01, weight_decay=1e-4)
METHODS: dict[str, Any] = {
    "Point": st.Point(restore_prior=False),
    "MCDropout": st.MCDropout(100, restore_prior=False),  # what they are without it; left out, they would warn
    "ExactDropout": st.ExactDropout(restore_prior=False),
    "restored": st.ExactDropout(),  # after calibrate_prior
    "Ensemble": st.Ensemble(5, restore_prior=False),
    "SWAG": st.SWAG(30, restore_prior=False),
}


def main(out: Path) -> None:
    (x, y), (x_test, y_test) = moons(200, 0), moons(2000, 1)
    far = 20 * torch.nn.functional.normalize(torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)))
    print(f"{'':14}{'training':>9}{'NLPD':>8}{'accuracy':>10}{'entropy near, far':>20}{'epistemic near, far':>24}")
    posteriors = {}
    for name, method in METHODS.items():
        start = time.perf_counter()
        posterior = posteriors[name] = st.fit(method, build, (x, y), TRAINING)
        seconds = time.perf_counter() - start
        if name == "restored":
            st.calibrate_prior(posterior.networks[0], x)
        near, away = st.predict(posterior, x_test), st.predict(posterior, far)
        print(
            f"{name:14}{seconds:>7.1f} s{st.metrics.nlpd(near, y_test):>8.3f}{st.metrics.accuracy(near, y_test):>10.3f}"
            f"{near.entropy().mean():>12.2f}{away.entropy().mean():>8.2f}"
            f"{near.mutual_information().mean():>16.3f}{away.mutual_information().mean():>8.3f}"
        )
    print(
        f"\nThe largest entropy is log 2 = {np.log(2):.2f}. Epistemic is the mutual information, what the members of a"
    )
    print(
        "posterior disagree on: far away a local activation leaves little to disagree on, unless its prior is restored."
    )
    draw(x, y, posteriors).savefig(out / "posteriors.png", dpi=150)


def moons(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = make_moons(n, noise=0.25, random_state=seed)
    return torch.tensor(x - (0.5, 0.25), dtype=torch.float32), torch.tensor(y)


def build() -> torch.nn.Module:
    return st.MLP(2, 2, hidden=(50,), activation="matern52", dropout=0.2)


def draw(x: torch.Tensor, y: torch.Tensor, posteriors: dict[str, Any]) -> Any:
    figure, axes = plots.panels(1, len(posteriors), width=14, height=2.7, sharey=True)
    side = torch.linspace(-5, 5, 150)
    grid = torch.cartesian_prod(side, side)
    for ax, (name, posterior) in zip(axes, posteriors.items(), strict=True):
        entropy = st.predict(posterior, grid).entropy().view(150, 150).T.numpy()
        shading = ax.imshow(entropy, "Blues", vmin=0, vmax=np.log(2), origin="lower", extent=(-5, 5, -5, 5))
        for label, color in enumerate(plots.COLORS[3:5]):
            ax.plot(*x[y == label].T, ".", color=color, ms=2)
        ax.set(title=name, xticks=(-5, 0, 5), yticks=(-5, 0, 5))
    figure.colorbar(shading, ax=axes, label="entropy", fraction=0.012)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figure")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out)
