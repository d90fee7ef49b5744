"""GPflow's own SVGP on the first fold of Covtype, from a start like ours: has it the AUC of ours too?

    python benchmarks/gpflow_svgp.py --export fold.npz --data-dir DATA
    python benchmarks/gpflow_svgp.py --train fold.npz --json results/benchmarks/gpflow_svgp.json

The first line needs this package, the second GPflow 2.9 with scikit-learn, in an environment of its own: GPflow and
this package want different versions of NumPy. Matérn-3/2, length-scale 1, 500 inducing points at our k-means centres,
softmax, Adam 0.01, 20 epochs in batches of 500, as in the row ``SVGP unit``; GPflow computes in float64. An epoch takes
two or three minutes on two cores, and the results of some are stored on the way.
"""

import argparse
import json
import os
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

EPOCHS, BATCH, RATE, SHOWN = 20, 500, 0.01, (1, 2, 5, 10, 20)
PACKAGES = ("gpflow", "tensorflow", "tensorflow-probability", "numpy", "scikit-learn")


def export(path: Path) -> None:
    """The fold as our experiment has it, and where our SVGP starts."""
    import torch

    from stationary.lab.baselines import SVGP
    from stationary.lab.experiments.uci import run as uci
    from stationary.lab.runs.provenance import environment

    (split,) = uci._splits("covtype", 10, 0, (0,), "cpu")
    torch.manual_seed(0)
    points = SVGP(1.5, lengthscale=1.0).build(split.x_train, split.n_classes).variational.points.detach()
    (x, y), (x_test, y_test) = (tuple(part.numpy() for part in pair) for pair in (split.train, split.test))
    np.savez(path, x=x, y=y, x_test=x_test, y_test=y_test, points=points, environment=json.dumps(environment("cpu")))


def train(path: Path, json_path: Path | None) -> None:
    gpflow: Any = import_module("gpflow")
    tf: Any = import_module("tensorflow")
    data = np.load(path)
    x, x_test, points = (data[name].astype(np.float64) for name in ("x", "x_test", "points"))
    y, y_test = data["y"].astype(np.int64)[:, None], data["y_test"]
    n, n_classes = len(x), int(y.max()) + 1
    likelihood = gpflow.likelihoods.Softmax(n_classes)
    model = gpflow.models.SVGP(
        gpflow.kernels.Matern32(), likelihood, points, num_latent_gps=n_classes, num_data=n, whiten=True
    )
    optimizer = tf.keras.optimizers.legacy.Adam(RATE)
    environment = json.loads(str(data["environment"]))
    environment["versions"] |= {name: version(name) for name in PACKAGES}
    results: dict[str, Any] = {"environment": environment, "samples": likelihood.num_monte_carlo_points, "epochs": {}}

    def step(rows: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = -model.elbo((rows, labels))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(step)
    random, start = np.random.default_rng(0), perf_counter()
    tf.random.set_seed(0)
    for epoch in range(1, EPOCHS + 1):
        for batch in np.array_split(random.permutation(n), range(BATCH, n, BATCH)):
            step(tf.constant(x[batch]), tf.constant(y[batch]))
        if epoch in SHOWN:
            parts = np.array_split(x_test, range(2000, len(x_test), 2000))
            probs = np.concatenate([model.predict_y(part)[0].numpy() for part in parts])
            found = measured(probs / probs.sum(1, keepdims=True), y_test) | {
                "lengthscale": float(model.kernel.lengthscales.numpy()),
                "variance": float(model.kernel.variance.numpy()),
                "seconds": perf_counter() - start,
            }
            results["epochs"][epoch] = found
            print(epoch, found, flush=True)
            if json_path:
                partial = json_path.with_suffix(".part")
                partial.write_text(json.dumps(results, indent=2) + "\n")
                os.replace(partial, json_path)


def measured(probs: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    by_class = [float(roc_auc_score(y == label, probs[:, label])) for label in range(probs.shape[1])]
    return {
        "NLPD": float(-np.log(probs[np.arange(len(y)), y]).mean()),
        "ACC": float((probs.argmax(1) == y).mean()),
        "AUC": float(np.mean(by_class)),
        "AUC by class": by_class,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--export", type=Path, help="write the fold there")
    parser.add_argument("--train", type=Path, help="train on a fold written before")
    parser.add_argument("--data-dir", help="where covtype.csv.xz is, if not in STATIONARY_DATA")
    parser.add_argument("--json", type=Path, help="where to store the results")
    arguments = parser.parse_args()
    if arguments.data_dir:
        os.environ["STATIONARY_DATA"] = arguments.data_dir
    if arguments.export:
        export(arguments.export)
    if arguments.train:
        train(arguments.train, arguments.json)


if __name__ == "__main__":
    main()
