"""Which customers should a person look at? A reject option for a table, against a ReLU network and boosted trees.

Adult (bundled): does this person earn more than 50,000 a year? Each model hands the customers it is least sure of to a
person: those whose entropy is above a threshold that lets 90 % of ordinary customers pass. How right is it about the
rest, and what happens to forms with a slip of the pen?

    python examples/reject_option.py --out out/examples
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import entropy
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split

import stationary as st
from stationary.lab.data import uci
from stationary.lab.report import figures as plots

NUMBERS = ("age", "education-num", "hours-per-week", "capital-gain", "capital-loss")
CATEGORIES = ("workclass", "marital-status", "occupation")  # not sex, race and origin, by which nobody should be judged
ACCEPT = 0.9
SLIPS = {
    "hours per year": lambda x: x.assign(**{"hours-per-week": 52 * x["hours-per-week"]}),
    "year of birth as age": lambda x: x.assign(age=1994 - x["age"]),  # the census was in 1994
    "age in months": lambda x: x.assign(age=12 * x["age"]),
    "capital gain in cents": lambda x: x[x["capital-gain"] > 0].assign(**{"capital-gain": 100 * x["capital-gain"]}),
}


def main(out: Path, seeds: int) -> None:
    people, rich = load()
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        x, rest, y, y_rest = train_test_split(people, rich, train_size=4000, random_state=seed, stratify=rich)
        known, new, _, y_new = train_test_split(rest, y_rest, train_size=2000, test_size=6000, random_state=seed)
        curves = {}
        for name, model in models(seed).items():
            model.fit(x, y)
            row, curves[name] = judge(model, known, new, y_new)
            found.setdefault(name, []).append(row)
    table = pd.DataFrame({name: pd.DataFrame(rows).mean() for name, rows in found.items()})
    print(f"Mean over {seeds} splits; a person looks at about {1 - ACCEPT:.0%} of ordinary customers.\n")
    print(table.to_string(float_format="{:.3f}".format))
    slips = table.drop(index="handed over: ordinary").filter(like="handed over", axis="index").mean()
    print(f"\nRight most often about ordinary customers: {table.loc['accuracy'].idxmax()}.")
    print(f"Hands over most slips: {slips.idxmax()}, {slips.max():.0%} of them.")
    draw(curves, table).savefig(out / "reject_option.png", dpi=150)


def load() -> tuple[pd.DataFrame, Any]:
    """The people, categories as columns of 0 and 1, and whether each earns more than 50,000."""
    table = uci.load("adult")
    people = pd.DataFrame(table.x.numpy(), columns=table.feature_names).astype(float)
    return people[[c for c in people if c.split("_")[0] in NUMBERS + CATEGORIES]], table.y.numpy()


def models(seed: int) -> dict[str, Any]:
    return {
        "stationary": st.StationaryClassifier(100, random_state=seed),
        "ReLU network": st.StationaryClassifier(100, "relu", random_state=seed),
        "boosted trees": HistGradientBoostingClassifier(random_state=seed),
    }


def judge(model: Any, known: pd.DataFrame, new: pd.DataFrame, y: Any) -> tuple[dict[str, float], Any]:
    """What it is worth on ordinary customers and on slips; and (share kept, accuracy) for every threshold."""

    def doubt(x: pd.DataFrame) -> Any:
        return entropy(model.predict_proba(x), axis=1)

    threshold, doubts, right = np.quantile(doubt(known), ACCEPT), doubt(new), model.predict(new) == y
    row = {
        "accuracy": right.mean(),
        "NLPD": -np.log(model.predict_proba(new)[np.arange(len(y)), y]).mean(),
        "accuracy, surest 90 %": right[doubts <= threshold].mean(),
        "handed over: ordinary": (doubts > threshold).mean(),
    }
    row |= {f"handed over: {name}": (doubt(slip(new)) > threshold).mean() for name, slip in SLIPS.items()}
    kept = np.arange(1, len(y) + 1)
    return row, (kept / len(y), right[np.argsort(doubts)].cumsum() / kept)


def draw(curves: dict[str, Any], table: pd.DataFrame) -> Any:
    figure, (left, right) = plots.panels(1, 2, width=9, height=3.4)
    for (name, (kept, accuracy)), color in zip(curves.items(), plots.COLORS, strict=False):
        left.plot(100 * kept[200:], 100 * accuracy[200:], color=color, label=name)
    left.set(xlabel="customers decided by the model, surest first (%)", ylabel="of these right (%)", xlim=(100, 20))
    left.set_title("Ordinary customers", loc="left")
    left.legend(frameon=False)
    rows = [name for name in table.index if name.startswith("handed over")]
    for i, (name, color) in enumerate(zip(table.columns, plots.COLORS, strict=False)):
        places = np.arange(len(rows)) + 0.26 * (i - 1)
        right.barh(places, 100 * table.loc[rows, name], 0.24, color=color)
    right.set_yticks(range(len(rows)), [name.removeprefix("handed over: ") for name in rows])
    right.invert_yaxis()
    right.set(xlabel="handed to a person (%)", xlim=(0, 100))
    right.set_title("Slips of the pen", loc="left")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figure")
    parser.add_argument("--seeds", type=int, default=3, help="random splits")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out, arguments.seeds)
