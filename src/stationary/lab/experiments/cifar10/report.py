"""The report of the CIFAR-10 experiment, beside the paper's table and pictures."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stationary.lab.data.cifar10 import CLASSES
from stationary.lab.experiments import paper
from stationary.lab.experiments.cifar10.config import AS_STATED, ROWS, TITLE, Config
from stationary.lab.experiments.rows import Rows, joined_rows
from stationary.lab.experiments.scores import SCORES
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table, Verdict, judged
from stationary.lab.runs.store import Arrays

COMPARED = {
    "ACC known": 1,
    "NLPD known": -1,
    "NLPD unknown": -1,
}  # the metrics that the paper has; 1 where larger is better, else -1
OTHERS = ("NLPD known mean-probability", "NLPD unknown mean-probability", "ECE known", "clipped unknown")
AUROC, *REST = (tuple(f"{metric} {score}" for score in SCORES) for metric in ("AUROC", "AUPR", "FPR95"))
OOD = (*AUROC, *(name for names in REST for name in names))
SETTINGS = {
    "paper": "The trunk was trained on all ten classes",
    "strict": "The trunk was trained on the five known classes",
    "paper-held-out": "The trunk was trained on nine tenths of the images of all ten classes",
    "strict-held-out": "The trunk was trained on nine tenths of the images of the five known classes",
    "generated": "Generated images, untrained trunk",
}
ROUNDING = 5e-4  # least std to divide by: the paper prints three digits
HEADINGS = 0.25  # inches of space for headings above the figure's first row
SHOWN = 5  # images of each end, wide enough that the words above them are read
BySetting: TypeAlias = dict[str, Rows]  # by setting; the first axis of the arrays is that of the seeds


def by_setting(results: list[tuple[Config, Arrays]]) -> BySetting:
    """Collect results by setting and row, with all seeds of a row together."""
    settings: dict[str, list[Arrays]] = {}
    for config, arrays in results:
        settings.setdefault(config.setting, []).append(arrays)
    return {setting: joined_rows(found) for setting, found in settings.items()}


def report(results: list[tuple[Config, Arrays]]) -> Section:
    rows = by_setting(results)
    return Section(
        title=TITLE,
        paper="Known and unknown classes differ in the standard deviation of the outputs with Matérn activations, more "
        "so for smaller nu, and not with ReLU. All activations but step and Matérn-1/2 are about 97 % accurate; on "
        "unknown classes the NLPD is 0.75 to 0.90 for RBF and Matérn, 2.7 for ERF and infinite for ReLU. The trunk was "
        "trained on all ten classes.",
        ours=_in_words(rows),
        figures={f"cifar10-{setting}": _figure(_split(found)[0] or found) for setting, found in rows.items()},
        captions={
            f"cifar10-{setting}": f"{SETTINGS[setting]}. Left: standard deviation of the outputs over dropout samples, "
            "of test images of known classes (blue) and unknown ones (orange), first seed. Right, by the same measure: "
            "the most uncertain known and the most certain unknown images, with true class, prediction and its "
            "probability."
            for setting in rows
        },
        tables=tables(results),
        records=records(results),
        verdicts=verdicts(results),
    )


def tables(results: list[tuple[Config, Arrays]]) -> tuple[Table, ...]:
    """Make four tables for each setting; they need no images."""
    return tuple(table for setting, found in by_setting(results).items() for table in _tables(setting, found))


def verdicts(results: list[tuple[Config, Arrays]]) -> tuple[Verdict, ...]:
    """Judge the table and the picture; this needs no images."""
    return tuple(_verdicts(by_setting(results)))


def records(results: list[tuple[Config, Arrays]]) -> tuple[dict[str, Any], ...]:
    """List every number of every row for a CSV file; this needs no images."""
    return tuple(_records(by_setting(results)))


def _split(rows: Rows) -> tuple[Rows, Rows]:
    """Return the rows that are trained as the paper says, and the others."""
    others = {row: arrays for row, arrays in rows.items() if ROWS[row].recipe != AS_STATED}
    return {row: arrays for row, arrays in rows.items() if row not in others}, others


def _measured(setting: str, row: str, metric: str, arrays: Arrays) -> Measured:
    prior = ROWS[row].prior.key
    published = paper.published("cifar10", "cifar-10", prior, "NN", metric) if setting == "paper" else None
    return Measured.over(arrays[metric], published, COMPARED.get(metric, 0))


def _tables(setting: str, rows: Rows) -> Iterator[Table]:
    as_stated, otherwise = _split(rows)
    for shown, metrics, caption in (
        (
            as_stated,
            (*COMPARED, *OTHERS),
            "softmax of the mean output, as in the paper; with mean-probability, the mean of the softmax. Clipped: "
            "unknown test images for which 1 - the largest probability is 0 in float64, taken as the smallest number. "
            "The restored prior leaves the mean output as it is, and with it what the paper's rule gives.",
        ),
        (as_stated, AUROC, "how well scores tell unknown from known test images, area under the ROC curve."),
        (
            as_stated,
            OOD[len(AUROC) :],
            "the same as area under the precision-recall curve, unknown as positive; and as the share of "
            "unknown images that are accepted if 95 % of the known ones are.",
        ),
        (
            otherwise,
            (*COMPARED, *AUROC),
            "trained otherwise than we read the paper: on images that are shifted and mirrored (augmented), with a "
            "learning rate divided by 10 half-way (steps), or both, as in the code base that it names; or with Adam "
            "instead of AdamW, where the weight decay is part of the gradient (L2).",
        ),
    ):
        if not shown:
            continue
        seeds = max(len(arrays["ACC known"]) for arrays in shown.values())
        over = f"mean and std over {seeds} seeds" if seeds > 1 else "one seed"
        cells: list[tuple[Cell, ...]] = [
            (ROWS[row].label, *(_measured(setting, row, metric, arrays) for metric in metrics))
            for row, arrays in shown.items()
        ]
        columns = ("activation", *(metric.replace("_", " ") for metric in metrics))
        yield Table(f"{SETTINGS[setting]}; {over}: {caption}", columns, tuple(cells))


def _in_words(rows: BySetting) -> str:
    parts = []
    for setting, found in rows.items():
        shown = _split(found)[0] or found
        mean = {row: {m: float(a[m].mean()) for m in (*COMPARED, *OOD)} for row, a in shown.items()}
        told = {}
        for metric in ("AUROC std", "AUROC entropy"):
            values = {row: of[metric] for row, of in mean.items()}
            told[metric.removeprefix("AUROC ")] = (
                ROWS[max(values, key=values.__getitem__)].label,
                max(values.values()),
            )
        sure = min(mean, key=lambda row: mean[row]["NLPD unknown"])
        wrong_way = [ROWS[row].label for row in mean if mean[row]["AUROC std"] < 0.5]
        parts.append(
            f"{SETTINGS[setting]}: accuracy on known classes from {min(m['ACC known'] for m in mean.values()):.3f} to "
            f"{max(m['ACC known'] for m in mean.values()):.3f}. The NLPD of unknown classes is lowest with "
            f"{ROWS[sure].label} ({mean[sure]['NLPD unknown']:.3f}). Unknown classes are told apart best with "
            + " and with ".join(f"{name} by {score} (AUROC {value:.3f})" for score, (name, value) in told.items())
            + ". The std of the outputs is larger for known classes, below 0.5, with "
            + f"{', '.join(wrong_way) or 'no activation'}."
        )
    return "\n\n".join(parts)


def _verdicts(rows: BySetting) -> Iterator[Verdict]:
    """Judge the table and the picture, by the networks that are trained as we read the paper."""
    for setting in ("paper", "strict"):
        shown = _split(rows.get(setting, {}))[0]
        networks = {row: arrays for row, arrays in shown.items() if not ROWS[row].infinite}
        cells = [_measured(setting, row, metric, arrays) for row, arrays in networks.items() for metric in COMPARED]
        judgeable = [cell for cell in cells if cell.paper and np.isfinite(cell.paper.mean) and cell.std]
        if judgeable:
            apart = [c.better * (c.mean - c.paper.mean) / max(c.std, ROUNDING) for c in judgeable if c.paper and c.std]
            agree, better = sum(abs(d) <= 2 for d in apart), sum(d > 2 for d in apart)
            yield Verdict(
                "Accuracy and NLPD of known and unknown classes are as published.",
                "CIFAR-10 table",
                f"Of {len(apart)} numbers that can be judged {agree} agree within two standard deviations over our "
                f"seeds, {better} are better and {len(apart) - agree - better} worse.",
                judged(d >= -2 for d in apart),
            )
        local = {row: a["AUROC std"].mean() for row, a in shown.items() if row in paper.NUS}
        if local and "relu" in shown:
            relu = shown["relu"]["AUROC std"].mean()
            yield Verdict(
                "With Matérn, and not with ReLU, the standard deviation of the outputs tells unknown classes apart.",
                "Fig. 4" + " (trunk of known classes only)" * (setting == "strict"),
                f"AUROC {min(local.values()):.2f} to {max(local.values()):.2f} with Matérn, {relu:.2f} with ReLU; "
                "below 0.5 it is the wrong way round.",
                judged([all(value > 0.5 for value in local.values()), max(local.values()) > relu]),
            )


def _records(rows: BySetting) -> Iterator[dict[str, Any]]:
    for setting, found in rows.items():
        for row, arrays in found.items():
            for metric in (*COMPARED, *OTHERS, *OOD):
                value = Measured.over(arrays[metric])
                yield {"setting": setting, "prior": row, "metric": metric, "mean": value.mean, "std": value.std}


# Figure


def _figure(rows: Rows) -> Figure:
    """Draw one row for each activation: its histogram, then the images from its two ends."""
    n = min(SHOWN, len(next(iter(rows.values()))["ends known"][0]))
    height = 1.45 * len(rows) + HEADINGS
    figure = Figure(figsize=(9.5, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - HEADINGS / height))  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(
        len(rows), 2 * n + 2, squeeze=False, gridspec_kw={"width_ratios": [3.2, *([1] * n), 0.15, *([1] * n)]}
    )
    for line, (row, arrays) in zip(axes, rows.items(), strict=True):
        _histogram(line[0], arrays)
        line[0].set_ylabel(ROWS[row].label.replace(" ", "\n", 1), fontsize="small")
        line[n + 1].set_axis_off()
        for group, start in (("known", 1), ("unknown", n + 2)):
            for ax, pixels, end in zip(
                line[start : start + n], arrays[f"pixels {group}"][0], arrays[f"ends {group}"][0], strict=False
            ):
                _image(ax, pixels, end)
    for start, text in ((1, "known, most uncertain"), (n + 2, "unknown, most certain")):
        above = {"xycoords": "axes fraction", "textcoords": "offset points"}
        axes[0, start].annotate(text, (0, 1), (0, 26), fontsize="small", **above).set_in_layout(False)
    legend = {"loc": "lower left", "bbox_to_anchor": (-0.05, 1), "ncols": 2, "columnspacing": 1, "handlelength": 1}
    axes[0, 0].legend(frameon=False, fontsize="small", **legend).set_in_layout(False)
    axes[-1, 0].set_xlabel("std of the outputs", fontsize="small")
    return figure


def _histogram(ax: Axes, arrays: Arrays) -> None:
    edges = arrays["std edges"][0]
    for group, color in zip(("known", "unknown"), plots.COLORS, strict=False):
        counts = arrays[f"std {group}"][0]
        ax.stairs(counts / counts.sum(), edges, fill=True, color=color, alpha=0.6, label=group)
    first = edges[np.flatnonzero(arrays["std known"][0] + arrays["std unknown"][0])[0]]
    margin = 0.05 * (edges[-1] - first)
    ax.set(yticks=(), xlim=(first - margin, edges[-1] + margin))
    ax.tick_params(labelsize="small")


def _image(ax: Axes, pixels: np.ndarray[Any, Any], end: np.ndarray[Any, Any]) -> None:
    _, true, predicted, probability = end
    ax.imshow(pixels.transpose(1, 2, 0))
    ax.set(xticks=(), yticks=())
    ax.set_title(f"{CLASSES[int(true)]}\n{CLASSES[int(predicted)]} {probability:.2f}", fontsize=8, pad=2)
