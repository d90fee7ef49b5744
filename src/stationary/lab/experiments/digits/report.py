"""The report of the digits experiment: which measure and which activation tell unknown digits from known ones."""

import numpy as np
from matplotlib.figure import Figure

from stationary.lab.experiments import paper
from stationary.lab.experiments.digits.config import INFINITE, MEASURES, TITLE, Config
from stationary.lab.experiments.rows import Rows
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table, Verdict, judged
from stationary.lab.runs.store import Arrays

COLUMNS = 8  # number of columns of the figure
NAMES = paper.NAMES | {row: f"{paper.NAMES[prior]}, infinite width" for row, prior in INFINITE.items()}


def report(results: list[tuple[Config, Arrays]]) -> Section:
    by_prior = _by_prior(results)
    best = max(by_prior, key=lambda prior: by_prior[prior]["auroc entropy, plain"].mean())
    wrong_way = [NAMES[prior] for prior, arrays in by_prior.items() if arrays["auroc std, plain"].mean() < 0.5]
    return Section(
        title=TITLE,
        paper="On CIFAR-10 the paper separates known from unknown classes by the standard deviation of the outputs.",
        ours=f"On these digits entropy separates best with {NAMES[best]} (AUROC "
        f"{by_prior[best]['auroc entropy, plain'].mean():.3f}). The standard deviation of the outputs is larger for "
        f"known inputs, AUROC below 0.5, with {', '.join(wrong_way) or 'no activation'}: dropout noise is proportional "
        "to the features, and unknown inputs excite them less.",
        figures={"digits": _histograms(by_prior)},
        captions={
            "digits": "Known (blue) and unknown (orange), all seeds: entropy (log scale) above, output std below."
        },
        tables=tables(results),
        verdicts=verdicts(results),
    )


def tables(results: list[tuple[Config, Arrays]]) -> tuple[Table, ...]:
    """Make a table of the errors on known digits, and of how well unknown ones are told from them."""
    rows: list[tuple[Cell, ...]] = []
    for prior, arrays in _by_prior(results).items():
        for kind in ("plain", "restored"):
            if f"auroc std, {kind}" in arrays:
                errors = [Measured.over(arrays[name]) for name in ("accuracy", "nlpd", "unknown_nlpd")]
                scores = [Measured.over(arrays[f"auroc {measure}, {kind}"]) for measure in MEASURES]
                label = NAMES[prior] + (", restored prior" if kind == "restored" else "")
                rows.append((label, *(errors if kind == "plain" else [None] * 3), *scores))
    columns = (
        "activation",
        "accuracy",
        "NLPD",
        "NLPD unknown",
        "AUROC std",
        "AUROC entropy",
        "AUROC mutual information",
    )
    caption = (
        "Known classes: accuracy and NLPD. Unknown: the paper's modified NLPD, and the area under the ROC curve. "
        "Infinite width has trunks that saw four fifths of the training images; the others chose its numbers."
    )
    return (Table(caption, columns, tuple(rows)),)


def verdicts(results: list[tuple[Config, Arrays]]) -> tuple[Verdict, ...]:
    """Judge the paper's measure of unknown classes by the networks; this needs no histograms."""
    networks = {prior: arrays for prior, arrays in _by_prior(results).items() if prior not in INFINITE}
    by_std, by_entropy = (
        {prior: float(a[f"auroc {name}, plain"].mean()) for prior, a in networks.items()} for name in ("std", "entropy")
    )
    if not networks:
        return ()
    best = max(by_entropy, key=by_entropy.__getitem__)
    return (
        Verdict(
            "The standard deviation of the outputs tells unknown classes from known ones.",
            "Fig. 4, here on digits",
            f"It is the wrong way round (AUROC below 0.5) for {sum(value < 0.5 for value in by_std.values())} of "
            f"{len(networks)} networks; entropy with {NAMES[best]} has {by_entropy[best]:.3f}.",
            judged(value > 0.5 for value in by_std.values()),
        ),
    )


def _by_prior(results: list[tuple[Config, Arrays]]) -> Rows:
    return {config.prior: arrays for config, arrays in results}


def _histograms(by_prior: Rows) -> Figure:
    """Draw two rows for every eight activations: the entropy, and the standard deviation of the outputs."""
    rows = 2 * -(-len(by_prior) // COLUMNS)
    figure, axes = plots.panels(rows, COLUMNS, width=12, height=2.0 * rows)
    for i in range(len(by_prior), rows // 2 * COLUMNS):
        for ax in axes[2 * (i // COLUMNS) :, i % COLUMNS][:2]:
            ax.set_axis_off()
    for i, (prior, arrays) in enumerate(by_prior.items()):
        row, column = 2 * (i // COLUMNS), i % COLUMNS
        for ax, measure in zip(axes[row : row + 2, column], ("entropy", "std"), strict=True):
            values = [arrays[f"{group} {measure}, plain"] for group in ("known", "unknown")]
            bins = np.linspace(0, max(np.quantile(v, 0.99) for v in values) + 1e-9, 30)
            for v, color in zip(values, plots.COLORS, strict=False):
                ax.hist(v, bins, density=True, color=color, alpha=0.6, log=measure == "entropy")
            ax.set(yticks=())
            ax.minorticks_off()
            ax.set_xlabel(measure, fontsize="small")
        axes[row, column].set_title(NAMES[prior].replace(", ", "\n"), fontsize=plots.TITLE)
    return figure
