"""The methods of the arena, each a function from a task and a seed to what it says; a file for each family."""

from stationary.lab.experiments.arena.methods import classifiers, detectors, ours
from stationary.lab.experiments.arena.methods.base import Fit
from stationary.lab.experiments.arena.methods.base import Fitted as Fitted
from stationary.lab.experiments.arena.methods.base import Judged as Judged
from stationary.lab.experiments.arena.protocol import CALIBRATED, FROM_NETWORK, INFINITE_WIDTH, MORE_ROWS

METHODS: dict[str, Fit] = {
    "msp": detectors.of_outputs("MaxSoftmax"),
    "energy": detectors.of_outputs("EnergyBased"),
    "maxlogit": detectors.of_outputs("MaxLogit"),
    "gen": detectors.of_outputs("GEN"),
    "react": detectors.of_feature_maps("ReAct"),
    "ash": detectors.of_feature_maps("ASH"),
    "she": detectors.of_features("SHE", lambda task: (task.network,)),
    "vim": detectors.of_features("ViM", detectors.vim_settings),
    "knn": detectors.of_features("KNN"),
    "mahalanobis": detectors.of_features("Mahalanobis"),
    "rmd": detectors.of_features("RMD"),
    "ddu": detectors.ddu,
    "laplace": classifiers.laplace,
    "vbll": classifiers.vbll,
    "mc dropout": classifiers.mc_dropout,
    "ensemble": classifiers.ensemble,
    "lof": detectors.lof,
    "isolation forest": detectors.isolation_forest,
    "logistic regression": classifiers.logistic_regression,
    "finite head": ours.finite_head,
    "restored prior": ours.restored_prior,
    INFINITE_WIDTH: ours.infinite_width,
    FROM_NETWORK: ours.from_network,
    MORE_ROWS: ours.with_more_rows,
    CALIBRATED: ours.calibrated,
}
