"""The protocol of the events with tables, written before any test row was looked at.

A method gets the training rows of a split, all of them. Where it must choose, it holds a tenth of them out, the same
rows for every method; a forest has its out-of-bag rows instead. What it has chosen with these rows it may then fit to
all of them, but for networks, whose held-out rows choose the epoch.
"""

from dataclasses import replace

from stationary.lab.experiments.arena.protocol import EPOCHS, FIXED, INFINITE_WIDTH, OUR_FIT, PROTOCOL, SCORES, Entry

VALUES_EVENT, TABLES_EVENT = "regression away from the data", "tables"
VALUES = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
TABLES = ("diabetes", "adult", "connect-4", "covtype")
SPLITS = 5  # splits of each kind of a table of values, and seeds of a table of classes
MORE_SPLITS = {"covtype": 7}  # as many as it has classes, so that each is left out once
MOST = 1_000  # rows to train on; of a larger table so many are drawn
TESTED_VALUES, TESTED_CLASSES = 1_000, 2_000  # rows to test on
FEWER = 500  # rows of a Gaussian process of classes
INDUCING = 100  # inducing inputs of a sparse Gaussian process of values
SMALLEST = 1e-6  # of a variance in units of that of the targets, and of a probability
HELD_OUT = "the held-out rows"
BY_NLPD = f"lowest NLPD of {HELD_OUT}"
MUTUAL_INFORMATION = "mutual information"
NETWORK = "two layers of 100 ReLU units"
NETWORKS = "Adam, learning rate 3e-3, batches of 64, at most 200 epochs, 30 without a lower loss of the held-out rows"
KINDS = {
    "standard": "a tenth of the rows, at random",
    "gap": "the middle third of the values of one column",
    "tail": "the outer sixths of the values of one column",
}
UNKNOWN = {
    "columns times 5": "the test rows with all columns times 5",
    "a region left out": "rows above the 80 % quantile of one column, which nobody was trained on",
    "a class left out": "rows of one class, which nobody was trained on",
}

DRAWS = "infinite width with draws"  # the second configuration
REGRESSORS: dict[str, Entry] = {
    "marginal": Entry(
        "marginal Gaussian", "numpy", "", settings="mean and variance of the training targets, for every row"
    ),
    "random forest": Entry(
        "random forest",
        "scikit-learn",
        "",
        "lowest NLPD of the out-of-bag rows",
        (("min_samples_leaf", (1, 5)),),
        settings="100 trees; variance of the trees, and noise by the same rule",
    ),
    "catboost": Entry(
        "CatBoost",
        "catboost",
        "",
        f"depth and number of trees by the {BY_NLPD}",
        (("depth", (4, 6)),),
        settings="RMSEWithUncertainty, posterior sampling, at most 1,000 trees, 10 virtual ensembles",
        needs="catboost",
    ),
    "mc dropout": Entry(
        "MC dropout",
        OUR_FIT,
        "",
        f"dropout and noise by the {BY_NLPD}",
        (("dropout", (0.05, 0.2)),),
        settings=f"{NETWORK}, each with dropout, 100 masks",
    ),
    "ensemble": Entry(
        "ensemble of 5", OUR_FIT, "", EPOCHS, settings=f"five networks of {NETWORK}, with mean and noise for each row"
    ),
    "laplace": Entry(
        "Laplace",
        "laplace-torch",
        "",
        "prior precision and noise by its marginal likelihood",
        settings=f"{NETWORK}, all weights, Kronecker, linearised",
        needs="laplace",
    ),
    "gaussian process": Entry(
        "Gaussian process",
        "gpytorch",
        "",
        "all numbers by its marginal likelihood: 100 steps of Adam, learning rate 0.1",
        settings="exact, Matérn-5/2, a length-scale for each column",
    ),
    "sparse gaussian process": Entry(
        "sparse Gaussian process",
        "gpytorch",
        "",
        "all numbers and inducing inputs by Titsias's bound: 100 steps of Adam, learning rate 0.1",
        settings=f"the same with {INDUCING} inducing inputs, which begin at training rows",
    ),
    "finite network": Entry(
        "ours, finite network", "stationary", "", EPOCHS, settings="StationaryRegressor(hidden_layer_sizes=(300,))"
    ),
    INFINITE_WIDTH: Entry(
        "ours, infinite width", "stationary", "", "all numbers by its own search", settings="StationaryRegressor()"
    ),
    DRAWS: Entry(
        "ours, infinite width with draws",
        "stationary",
        "",
        "all numbers by its own search, which also says what else they may be",
        settings="StationaryRegressor(method=InfiniteWidth(draws=8)), an average over nine settings",
    ),
}

CLASSIFIERS: dict[str, Entry] = {
    "logistic regression": replace(PROTOCOL["logistic regression"], rule=BY_NLPD),
    "random forest": Entry(
        "random forest",
        "scikit-learn",
        "entropy",
        BY_NLPD,
        (("min_samples_leaf", (1, 5, 20)),),
        "own",
        "100 trees",
    ),
    "gradient boosting": Entry(
        "gradient boosting",
        "scikit-learn",
        "entropy",
        BY_NLPD,
        (("learning_rate", (0.03, 0.1)),),
        "own",
        "HistGradientBoostingClassifier with early stopping, for which a class must have two rows",
    ),
    "catboost": Entry(
        "CatBoost",
        "catboost",
        "entropy",
        f"number of trees by the {BY_NLPD}",
        (),
        "own",
        "at most 500 trees",
        "catboost",
    ),
    "mlp": Entry(
        "MLP",
        "scikit-learn",
        "entropy",
        BY_NLPD,
        (("alpha", (1e-4, 1e-2)),),
        "own",
        "MLPClassifier with early stopping, standardised columns",
    ),
    "gaussian process": Entry(
        "Gaussian process",
        "scikit-learn",
        "entropy",
        "variance and length-scale by its marginal likelihood",
        (),
        "own",
        f"GaussianProcessClassifier, Matérn-5/2, standardised columns, the first {FEWER:,} rows",
    ),
    "tabpfn": Entry(
        "TabPFN v1",
        "tabpfn",
        "entropy",
        FIXED,
        (),
        "own",
        "of more than 100 columns 100",
        "tabpfn",
    ),
    "lof": Entry(
        "LOF", "scikit-learn", "detector", settings="standardised columns, beside the logistic regression", rule=FIXED
    ),
    "isolation forest": Entry(
        "isolation forest", "scikit-learn", "detector", settings="beside the logistic regression", rule=FIXED
    ),
    "finite network": Entry(
        "ours, finite network",
        "stationary",
        "entropy",
        EPOCHS,
        (),
        "own",
        "StationaryClassifier(hidden_layer_sizes=(300,), restore_prior=False)",
    ),
    "restored prior": Entry(
        "ours, restored prior",
        "stationary",
        MUTUAL_INFORMATION,
        EPOCHS,
        (),
        "own",
        "StationaryClassifier(hidden_layer_sizes=(300,))",
    ),
    INFINITE_WIDTH: Entry(
        "ours, infinite width",
        "stationary",
        MUTUAL_INFORMATION,
        "all numbers by its own search",
        (),
        "own",
        "StationaryClassifier()",
    ),
}
OF_EVENT = {VALUES_EVENT: REGRESSORS, TABLES_EVENT: CLASSIFIERS}


def rows_of_values() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the protocol of the regressors as a heading and the rows of a table."""
    return ("method", "code", "what is chosen", "what is not"), [
        (entry.label, entry.code, _chosen(entry), entry.settings) for entry in REGRESSORS.values()
    ]


def rows_of_classes() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the protocol of the classifiers as a heading and the rows of a table."""
    scores = SCORES | {MUTUAL_INFORMATION: "mutual information of class and outputs"}
    return ("method", "code", "score", "what is chosen", "what is not"), [
        (entry.label, entry.code, scores[entry.score], _chosen(entry), entry.settings) for entry in CLASSIFIERS.values()
    ]


def _chosen(entry: Entry) -> str:
    return "; ".join([entry.rule, *(f"{name} of {', '.join(f'{v:g}' for v in tried)}" for name, tried in entry.grid)])
