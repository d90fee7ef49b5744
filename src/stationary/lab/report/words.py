"""Plain words for the symbols and abbreviations of the report."""

import re
from collections.abc import Iterator

from stationary.lab.report.content import Measured, Section

WORDS = {
    "Δ/std": "our number minus the paper’s, in units of the paper’s standard deviation",
    "std": "standard deviation",
    "ACC": "accuracy, the share of inputs whose most probable class is the true one",
    "NLPD": "negative log predictive density: how surprised the model is by the truth; lower is better",
    "ECE": "expected calibration error: how far probabilities are from how often they come true; lower is better",
    "AUC": "area under the ROC curve of the classes: 1 ranks all inputs right, 0.5 is guessing",
    "AUROC": "the chance that an unknown input gets a higher score than a known one: 1 is perfect, 0.5 is guessing",
    "AUPR": "area under the precision-recall curve of unknown inputs; higher is better",
    "FPR95": "share of unknown inputs that are accepted if 95 % of the known ones are; lower is better",
    "entropy": "how undecided the probabilities are: 0 is sure, log(number of classes) is a guess",
    "mutual information": "the part of the entropy that comes from networks which disagree, and more data could remove",
    "restored prior": "the uncertainty that a finite network forgets far from its data, given back after training",
    "infinite width": "the network in the limit of infinitely many hidden units, a Gaussian process on its features",
    "ν": "nu, the smoothness of the functions: small is rough, ∞ is the bell curve (RBF)",
    "ℓ": "the length-scale: the distance over which functions change",
    "κ": "kappa, the covariance of the function’s values at two inputs",
    "GP": "Gaussian process",
    "VGP": "variational Gaussian process, with all data",
    "SVGP": "sparse variational Gaussian process",
    "GPDNN": "a Gaussian process behind a deep network, trained together",
    "SV-DKL": "deep kernel learning: Gaussian processes on the features of a deep network",
    "NN": "the network itself, with dropout",
    "MI": "mutual information",
    "H": "entropy",
}


def words_in(section: Section) -> dict[str, str]:
    """Return the symbols and abbreviations that occur in a section, and what they mean."""
    text = "\n".join(_texts(section))
    return {
        word: meaning for word, meaning in WORDS.items() if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
    }


def _texts(section: Section) -> Iterator[str]:
    yield from (section.title, section.paper, section.ours, *section.captions.values())
    for table in section.tables:
        yield from (table.caption, *table.columns)
        for cell in (cell for row in table.rows for cell in row):
            if isinstance(cell, str):
                yield cell
            elif isinstance(cell, Measured) and cell.paper:
                yield "Δ/std"
