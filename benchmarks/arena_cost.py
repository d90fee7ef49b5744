"""What the arena's methods cost: seconds of fit, prediction in passes of a trunk, memory, lines of user code.

    python benchmarks/arena_cost.py --json results/benchmarks/arena_cost.json

It runs in the environment of ``make arena``. Each method has a process of its own, with one thread; seconds are those
of the processor, and memory is how much the peak of the process grows in fit and prediction. What counts as a line of
user code are the lines of the text that is executed here, imports included, but for what every user has: the trunk, its
last layer and the rows.

- Features: 2,000 rows to train on, 500 to validate and 2,000 new ones, of 64 features of a trunk and 10 classes, all
  generated. A pass of the trunk is one of a ResNet-20 with an image of 28 x 28 pixels, in batches of 500.
- Tables: the 1,000 rows of the arena's first seed or split of Adult (classes) and of kin8nm (values). What is measured
  is the arena's fit, with all that it chooses; the lines are those without a loop over what may be chosen.

What is not installed is left out, and named in the file.
"""

import argparse
import resource
import time
import warnings
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stationary.lab.experiments.arena import tables, values
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT, TABLES_EVENT, VALUES_EVENT
from stationary.lab.models.resnet import ResNet
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json
from stationary.lab.torchvision_operators import declare

OOD = "from pytorch_ood.detector import {0}\n"
OF_OUTPUTS = OOD + "detector = {0}(network)", "scores = detector.predict(new)"
OF_FEATURES = OOD + "detector = {0}(None{1}).fit_features(*train)", "scores = detector.predict_features(new)"
OF_MAPS = (
    OOD + "detector = {0}(lambda x: x[:, :, None, None], lambda maps: network(maps.flatten(1)))",
    "scores = detector.predict(new)",
)
SKLEARN = "scores = -detector.score_samples(new.numpy())"
HEAD = "import stationary as st\n"
TRAINED = (
    HEAD + "build = lambda: st.StationaryHead(64, 10, hidden=512, {0})\n"
    "training = st.Training(patience=10)\n"
    "posterior = st.fit(st.{1}, build, train, training, validation=validation)"
)
OURS_FINITE = TRAINED.replace(", {0}", "").format(None, "ExactDropout()")
ENTROPY, ENERGY = (f"scores = st.predict(posterior, new).{name}()" for name in ("entropy", "energy"))


def _with(snippet: tuple[str, str], *parts: str) -> tuple[str, str]:
    fit, predict = snippet
    return fit.format(*parts), predict


SNIPPETS: dict[str, tuple[str, str]] = {  # what fits, and what gives a score for new rows
    "MSP": ("", "scores = -network(new).softmax(-1).max(-1).values"),
    "energy": ("", "scores = -network(new).logsumexp(-1)"),
    "MaxLogit": _with(OF_OUTPUTS, "MaxLogit"),
    "GEN": _with(OF_OUTPUTS, "GEN"),
    "ReAct": (
        OF_MAPS[0].format("ReAct") + "\ndetector.fit_feature_maps(train[0][:, :, None, None], train[1])",
        OF_MAPS[1],
    ),
    "ASH": _with(OF_MAPS, "ASH"),
    "SHE": _with(OF_FEATURES, "SHE", ", network"),
    "KNN": _with(OF_FEATURES, "KNN", ""),
    "Mahalanobis": _with(OF_FEATURES, "Mahalanobis", ""),
    "RMD": _with(OF_FEATURES, "RMD", ""),
    "ViM": _with(OF_FEATURES, "ViM", ", 32, network.weight, network.bias"),
    "DDU": _with(OF_FEATURES, "GMM", ", 1e-3"),
    "LOF": (
        "from sklearn.neighbors import LocalOutlierFactor\n"
        "detector = LocalOutlierFactor(novelty=True).fit(train[0].numpy())",
        SKLEARN,
    ),
    "isolation forest": (
        "from sklearn.ensemble import IsolationForest\ndetector = IsolationForest().fit(train[0].numpy())",
        SKLEARN,
    ),
    "logistic regression": (
        "from sklearn.linear_model import LogisticRegression\n"
        "model = LogisticRegression(max_iter=300).fit(*(part.numpy() for part in train))",
        "scores = 1 - model.predict_proba(new.numpy()).max(-1)",
    ),
    "VBLL": (
        "from vbll import DiscClassification\n"
        "x, y = train\n"
        "layer = DiscClassification(64, 10, 1 / len(x), 'diagonal')\n"
        "optimizer = torch.optim.Adam(layer.parameters(), 1e-3)\n"
        "for epoch in range(100):\n"
        "    for rows in torch.randperm(len(x)).split(200):\n"
        "        optimizer.zero_grad()\n"
        "        layer(x[rows]).train_loss_fn(y[rows]).backward()\n"
        "        optimizer.step()",
        "scores = 1 - layer.predictive(new, 100).max(-1).values",
    ),
    "MC dropout": (TRAINED.format("activation='relu', dropout=0.1", "MCDropout(100)"), ENTROPY),
    "ensemble of 5 heads": (TRAINED.format("activation='relu'", "Ensemble(5)"), ENTROPY),
    "Laplace": (
        "from laplace import Laplace\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "model = Laplace(torch.nn.Sequential(network), 'classification', 'all', 'kron')\n"
        "model.fit(DataLoader(TensorDataset(*train), 500))\n"
        "model.optimize_prior_precision(method='marglik')",
        "probs = model(new, pred_type='nn', link_approx='mc', n_samples=100)\n"
        "scores = torch.special.entr(probs).sum(-1)",
    ),
    "ours, finite head": (OURS_FINITE, ENTROPY),
    "ours, restored prior": (
        OURS_FINITE + "\nst.calibrate_prior(posterior.networks[0], train[0])",
        ENTROPY,
    ),
    "ours, infinite width": (
        HEAD + "method = st.InfiniteWidth(geometry='polar', per_column=False)\n"
        "posterior = method.posterior(network, train, validation=validation)",
        ENERGY,
    ),
    "ours, infinite width from the network": (
        HEAD + "method = st.InfiniteWidth(geometry='whitened', prior_mean='network', per_column=False)\n"
        "posterior = method.posterior(network, train, validation=validation)",
        ENERGY,
    ),
}
NETWORK = "nn.Linear(x.shape[1], 100), nn.ReLU(), {0}nn.Linear(100, 100), nn.ReLU(), {0}nn.Linear(100, {1})"
TENSORS = (
    "import stationary as st\nimport torch\nfrom torch import nn\n"
    "rows, new = (torch.tensor(x).float(), torch.tensor(y)[:, None].float()), torch.tensor(new).float()\n"
)
PROCESS = (
    "import gpytorch\nimport torch\n"
    "class Process(gpytorch.models.ExactGP):\n"
    "    def __init__(self, x, y, likelihood):\n"
    "        super().__init__(x, y, likelihood)\n"
    "        self.mean_module = gpytorch.means.ConstantMean()\n"
    "        kernel = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=x.shape[1])\n"
    "        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)\n{0}"
    "    def forward(self, x):\n"
    "        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))\n"
    "x, y, new = torch.tensor(x), torch.tensor(y), torch.tensor(new)\n"
    "likelihood = gpytorch.likelihoods.GaussianLikelihood()\n"
    "model = Process(x, y, likelihood).double()\n"
    "objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)\n"
    "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
    "for _ in range(100):\n"
    "    optimizer.zero_grad()\n"
    "    (-objective(model(x), y)).backward()\n"
    "    optimizer.step()\n"
    "model.eval()\n"
    "with torch.no_grad():\n"
    "    said = likelihood(model(new))\n"
    "mean, variance = said.mean, said.variance"
)
INDUCED = (
    "        kernel = self.covar_module\n"
    "        self.covar_module = gpytorch.kernels.InducingPointKernel(kernel, x[:100].clone(), likelihood)\n"
)
REGRESSOR = "from stationary import StationaryRegressor\n{0}\nmean, std = model.predict(new, return_std=True)"
CLASSIFIER = "{0}\nmodel = {1}.fit(x, y)\nprobs = model.predict_proba(new)"
SCALED = "from sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler\n"
BESIDE = CLASSIFIER.format(
    SCALED + "from sklearn.linear_model import LogisticRegression",
    "make_pipeline(StandardScaler(), LogisticRegression())",
)
ON_TABLES: dict[str, dict[str, str]] = {  # what a user writes for values and for classes, without a loop over a grid
    VALUES_EVENT: {
        "marginal": "mean, variance = y.mean(), y.var()",
        "random forest": "import numpy as np\nfrom sklearn.ensemble import RandomForestRegressor\n"
        "forest = RandomForestRegressor(oob_score=True).fit(x, y)\n"
        "trees = np.stack([tree.predict(new) for tree in forest.estimators_])\n"
        "noise = ((y - forest.oob_prediction_) ** 2).mean()\n"
        "mean, variance = trees.mean(0), trees.var(0) + noise",
        "catboost": "from catboost import CatBoostRegressor\n"
        "model = CatBoostRegressor(100, loss_function='RMSEWithUncertainty', posterior_sampling=True, silent=True)\n"
        "model.set_params(allow_writing_files=False).fit(x, y)\n"
        "said = model.virtual_ensembles_predict(new, prediction_type='TotalUncertainty')\n"
        "mean, variance = said[:, 0], said[:, 1:].sum(1)",
        "mc dropout": TENSORS + f"build = lambda: nn.Sequential({NETWORK.format('nn.Dropout(0.1), ', 1)})\n"
        "posterior = st.fit(st.MCDropout(100), build, rows, st.Training('mse'))\n"
        "noise = (st.predict(posterior, rows[0], family=st.Gaussian).mean - rows[1]).square().mean()\n"
        "said = st.predict(posterior, new, family=st.Gaussian)\n"
        "mean, variance = said.mean, said.variance() + noise",
        "ensemble": TENSORS + f"build = lambda: st.MeanAndNoise(nn.Sequential({NETWORK.format('', 2)}))\n"
        "posterior = st.fit(st.Ensemble(5), build, rows, st.Training('beta_nll'))\n"
        "said = st.predict(posterior, new, family=st.Gaussian)\n"
        "mean, variance = said.mean, said.variance()",
        "laplace": "from laplace import Laplace\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        + TENSORS
        + f"build = lambda: nn.Sequential({NETWORK.format('', 1)})\n"
        "network = st.fit(st.Point(), build, rows, st.Training('mse')).networks[0]\n"
        "model = Laplace(network, 'regression', subset_of_weights='all', hessian_structure='kron')\n"
        "model.fit(DataLoader(TensorDataset(*rows), 500))\n"
        "model.optimize_prior_precision()\n"
        "mean, variance = model(new)\n"
        "variance = variance + model.sigma_noise**2",
        "gaussian process": PROCESS.format(""),
        "sparse gaussian process": PROCESS.format(INDUCED),
        "finite network": REGRESSOR.format("model = StationaryRegressor(hidden_layer_sizes=(300,)).fit(x, y)"),
        "infinite width": REGRESSOR.format("model = StationaryRegressor().fit(x, y)"),
    },
    TABLES_EVENT: {
        "logistic regression": BESIDE,
        "random forest": CLASSIFIER.format(
            "from sklearn.ensemble import RandomForestClassifier", "RandomForestClassifier()"
        ),
        "gradient boosting": CLASSIFIER.format(
            "from sklearn.ensemble import HistGradientBoostingClassifier", "HistGradientBoostingClassifier()"
        ),
        "catboost": CLASSIFIER.format(
            "from catboost import CatBoostClassifier",
            "CatBoostClassifier(silent=True, iterations=100, allow_writing_files=False)",
        ),
        "mlp": CLASSIFIER.format(
            SCALED + "from sklearn.neural_network import MLPClassifier",
            "make_pipeline(StandardScaler(), MLPClassifier(early_stopping=True))",
        ),
        "gaussian process": CLASSIFIER.format(
            SCALED + "from sklearn.gaussian_process import GaussianProcessClassifier\n"
            "from sklearn.gaussian_process.kernels import Matern",
            "make_pipeline(StandardScaler(), GaussianProcessClassifier(4 * Matern(3, nu=2.5)))",
        ),
        "tabpfn": CLASSIFIER.format("from tabpfn import TabPFNClassifier", "TabPFNClassifier()"),
        "lof": BESIDE + "\nfrom sklearn.neighbors import LocalOutlierFactor\n"
        "detector = make_pipeline(StandardScaler(), LocalOutlierFactor(novelty=True)).fit(x)\n"
        "scores = -detector.score_samples(new)",
        "isolation forest": BESIDE + "\nfrom sklearn.ensemble import IsolationForest\n"
        "scores = -IsolationForest().fit(x).score_samples(new)",
        **{
            name: CLASSIFIER.format("from stationary import StationaryClassifier", f"StationaryClassifier({options})")
            + "\nscores = model.uncertainty(new, 'mutual_information')"
            for name, options in {
                "finite network": "hidden_layer_sizes=(300,), restore_prior=False",
                "restored prior": "hidden_layer_sizes=(300,)",
                "infinite width": "",
            }.items()
        },
    },
}
IMPORTS = {"pytorch_ood": "pytorch_ood", "from laplace": "laplace", "from vbll": "vbll"}
NEEDS = {name: need for name, (fit, _) in SNIPPETS.items() for text, need in IMPORTS.items() if text in fit}
METHODS = "stationary.lab.experiments.arena.methods"
IMPORTED = ("pytorch_ood.detector", "laplace", "vbll", "catboost", f"{METHODS}.regressors", f"{METHODS}.tabular")
EVENTS = {TABLES_EVENT: "adult", VALUES_EVENT: "kin8nm"}


def features() -> dict[str, Any]:
    """Return rows of ten clouds on a sphere, and the linear layer that tells them apart."""
    generator = torch.Generator().manual_seed(0)
    centres = nn.functional.normalize(torch.randn(10, 64, generator=generator), dim=-1)

    def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(n) % 10
        return (4 * centres[y] + 0.5 * torch.randn(n, 64, generator=generator)).relu(), y

    train, validation, (new, _) = rows(2000), rows(500), rows(2000)
    network = nn.Linear(64, 10)
    with torch.no_grad():
        network.weight.copy_(2 * centres)
        network.bias.zero_()
    return {"torch": torch, "train": train, "validation": validation, "new": new, "network": network}


def peak() -> float:
    """Return the largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured_snippet(name: str) -> dict[str, float]:
    place, (fit, predict) = features(), SNIPPETS[name]
    before, start = peak(), time.process_time()
    exec(fit, place)
    between = time.process_time()
    with torch.no_grad():
        exec(predict, place)
    end = time.process_time()
    lines = sum(bool(line.strip()) for line in f"{fit}\n{predict}".splitlines())
    rows = len(place["new"])
    return {"fit_s": between - start, "row_s": (end - between) / rows, "mib": peak() - before, "lines": lines}


def measured_table(event: str, name: str) -> dict[str, float]:
    if event == VALUES_EVENT:
        from stationary.lab.experiments.arena.methods.regressors import REGRESSORS

        task = next(iter(values.tasks(EVENTS[event], 0)))[1]
        assert task is not None
        fit, new = lambda: REGRESSORS[name](task, 0), task.test_x
    else:
        from stationary.lab.experiments.arena.methods.tabular import CLASSIFIERS

        rows = next(iter(tables.tasks(EVENTS[event], 0)))
        fit, new = lambda: CLASSIFIERS[name](rows, 0), rows.test[0]  # type: ignore[return-value,assignment]
    before, start = peak(), time.process_time()
    fitted: Any = fit()
    between = time.process_time()
    fitted(new)
    end, grown, code = time.process_time(), peak() - before, ON_TABLES[event][name]
    if name != "tabpfn":  # beside newer libraries it works only as the arena imports it
        rows_of: Any = task if event == VALUES_EVENT else rows
        x, y = (part[:200].numpy() for part in (rows_of.x, rows_of.y))  # enough to see that the lines work
        exec(code, {"x": x, "y": y, "new": new[:10].numpy()})
    lines = len(code.splitlines())
    return {"fit_s": between - start, "row_s": (end - between) / len(new), "mib": grown, "lines": lines}


def measured(event: str, name: str) -> dict[str, float]:
    return measured_snippet(name) if event == "features" else measured_table(event, name)


def trunk_pass() -> float:
    """Return the seconds of the processor that a pass of one image through a ResNet-20 takes; the median of 5."""
    network, images = ResNet(10).eval(), torch.randn(500, 1, 28, 28)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        with torch.inference_mode():
            network(images)
        seconds.append((time.process_time() - start) / len(images))
    return sorted(seconds)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="how often; the median counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    declare()
    for module in IMPORTED:  # the seconds are those of fits, not of imports
        if find_spec(module.partition(".")[0]):
            import_module(module)
    todo = [("features", name, NEEDS.get(name, "")) for name in SNIPPETS]
    todo += [(event, name, entry.needs) for event in EVENTS for name, entry in OF_EVENT[event].items()]
    content: dict[str, Any] = {"command": "benchmarks/arena_cost.py", "environment": environment(), "rounds": []}
    content["left out"] = [name for _, name, needs in todo if needs and find_spec(needs) is None]
    for _ in range(options.rounds):
        found: dict[str, Any] = {"trunk_s": trunk_pass()}
        for event, name, needs in todo:
            if needs and find_spec(needs) is None:
                continue
            with get_context("fork").Pool(1) as alone:
                found.setdefault(event, {})[name] = alone.apply(measured, (event, name))
            print(event, name, found[event][name], flush=True)
        content["rounds"].append(found)
        write_json(options.json, content)


if __name__ == "__main__":
    main()
