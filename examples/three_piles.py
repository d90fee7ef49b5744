"""Which answers can I use? New rows of a table in three piles: automatic, for a person, and outside of what is known.

Adult (bundled): does this person earn more than 50,000 a year? Nobody with a capital gain above 20,000 is in the rows
to learn from. Two promises, which hold whatever the model is: of people like those held out, at most 5 % are answered
automatically and wrongly, and at most 5 % are called outside. Both are measured for other draws of held-out people.

    python examples/three_piles.py --out out/examples
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split

import stationary as st
from stationary.lab.data import uci
from stationary.lab.report import figures

LEFT_OUT = (
    "sex",
    "race",
    "native",
    "relationship",
)  # by which nobody should be judged; the last names husband and wife
NO_NEWS = ("fnlwgt", "education_")  # the weight of the census, and what education-num says too
PILES = {"automatic": "#009E73", "person": "#E69F00", "outside": "#888888"}
MEASURE = "mutual_information"


def main(out: Path, draws: int) -> None:
    people, rich, outside = load()
    x, rest, y, y_rest = train_test_split(people[~outside], rich[~outside], train_size=2000, random_state=0)
    clf = st.StationaryClassifier(method=st.InfiniteWidth(n_inducing=200), random_state=0).fit(x, y)
    far, y_far = people[outside], rich[outside]

    found = []
    for seed in reversed(range(draws)):  # the last is the one of the pictures
        hold, new, y_hold, y_new = train_test_split(rest, y_rest, train_size=1000, test_size=6000, random_state=seed)
        clf.conformalize(hold, y_hold, coverage=0.95).fit_reject(hold, accept=0.95, measure=MEASURE)
        where = piles(clf, new)
        wrong = (clf.predict(new) != y_new) & (where == "automatic")
        found.append((wrong.mean(), (where == "outside").mean(), (where == "automatic").mean()))

    names = ("of known people automatic and wrong", "of known people outside", "of known people automatic")
    print(f"{draws} draws of 1000 people to hold out and 6000 new ones: mean, smallest and largest share")
    for name, shares in zip(names, np.transpose(found), strict=True):
        print(f"{name:38}{shares.mean():.3f}  {shares.min():.3f}  {shares.max():.3f}")
    print(f"{'of people outside automatic':38}{(piles(clf, far) == 'automatic').mean():.3f}")

    scores = [clf.detector_.scores(clf.inputs(rows)) for rows in (new, far)]
    figure, ax = figures.panels(1, 1, width=6, height=3.4)
    st.plots.score_histograms(*scores, clf.detector_.threshold, ax=ax)
    ax.set(xlabel="mutual information (nats)", ylabel="share of the people")
    ax.legend(frameon=False, loc="upper center")
    figure.savefig(out / "three_piles-scores.png", dpi=150)

    figure, ax = figures.panels(1, 1, width=6, height=3.4)
    curve = st.metrics.risk_coverage(clf.predictive(new), torch.as_tensor(y_new))
    st.plots.risk_coverage(curve, ax=ax)
    mark(ax, where == "automatic", clf.predict(new) != y_new)
    figure.savefig(out / "three_piles-risk.png", dpi=150)
    draw_piles(
        {"known people": (where, wrong), "people outside": (piles(clf, far), clf.predict(far) != y_far)}
    ).savefig(out / "three_piles-piles.png", dpi=150)


def load() -> tuple[pd.DataFrame, Any, Any]:
    """The people, categories as columns of 0 and 1; whether each earns over 50,000; and whether each is outside."""
    table = uci.load("adult")
    people = pd.DataFrame(table.x.numpy(), columns=table.feature_names).astype(float)
    people = people.drop(columns=[column for column in people if column.startswith(LEFT_OUT + NO_NEWS)])
    return people, table.y.numpy(), (people["capital-gain"] > 20_000).to_numpy()


def piles(clf: st.StationaryClassifier, rows: pd.DataFrame) -> Any:
    """(n,) the pile of each row: a single class in its set is an answer, several or none are a question."""
    known, single = clf.accepts(rows), clf.predict_set(rows).sum(1) == 1
    return np.select([~known, single], ["outside", "automatic"], "person")


def mark(ax: Any, automatic: Any, wrong: Any) -> None:
    """The automatic pile beside the curve, and the most that its error may be by the promise."""
    share = automatic.mean()
    ax.plot(100 * share, wrong[automatic].mean(), "o", color=PILES["automatic"], label="the automatic pile")
    ax.plot(100 * share, 0.05 / share, "_", color="black", markersize=16, label="at most, by the promise")
    ax.set(ylabel="share of these that is wrong")
    ax.legend(frameon=False, loc="upper left")


def draw_piles(groups: dict[str, tuple[Any, Any]]) -> Any:
    """One bar for each group of people, as long as its piles are large; what is wrong and automatic is hatched."""
    figure, ax = figures.panels(1, 1, width=7, height=2.2)
    for row, (where, wrong) in enumerate(groups.values()):
        left = 0.0
        for pile, color in PILES.items():
            share = 100 * (where == pile).mean()
            ax.barh(row, share, left=left, color=color, edgecolor="white", label=pile if row == 0 else None)
            if share > 4:
                ax.text(left + share / 2, row, f"{share:.0f} %", ha="center", va="center", color="white", fontsize=9)
            left += share
        bad = 100 * (wrong & (where == "automatic")).mean()
        label = None if row else "automatic, wrong"
        ax.barh(row, bad, color="none", edgecolor="black", hatch="////", linewidth=0, label=label)
    ax.set(yticks=range(len(groups)), yticklabels=list(groups), xlabel="share of the people (%)", xlim=(0, 100))
    ax.invert_yaxis()
    ax.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figures")
    parser.add_argument("--draws", type=int, default=30, help="draws of the people to hold out")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out, arguments.draws)
