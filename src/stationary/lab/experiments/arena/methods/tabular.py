"""Classifiers on tables: a function from the rows of a fit and a seed to what it says of new rows."""

import typing
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from stationary import StationaryClassifier
from stationary._extras import extra
from stationary.lab.experiments.arena.methods.base import Judged, by_doubt, by_entropy, lowest, nlpd
from stationary.lab.experiments.arena.protocol_tables import CLASSIFIERS as PROTOCOL
from stationary.lab.experiments.arena.protocol_tables import FEWER, SMALLEST
from stationary.lab.experiments.arena.tables import Rows

with extra("experiments"):
    from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

Judge: TypeAlias = Callable[[Tensor], Judged]
Fit: TypeAlias = Callable[[Rows, int], Judge]


def probabilities(model: Any, x: Tensor, n_classes: int) -> Tensor:
    """(n, c) of all known classes, of which a few rows may lack one."""
    found = torch.zeros(len(x), n_classes, dtype=torch.float64)
    found[:, torch.as_tensor(model.classes_.astype(int))] = torch.as_tensor(model.predict_proba(x.numpy())).double()
    return found


def quietly(model: Any, x: Tensor, y: Tensor) -> Any:
    """Fit without warnings, and where early stopping holds out rows of each class without the only row of a class."""
    last = model[-1] if hasattr(model, "steps") else model
    if getattr(last, "early_stopping", None) is True and not isinstance(last, StationaryClassifier):
        several = y.bincount()[y] > 1
        x, y = x[several], y[several]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the protocol says how many iterations there are
        return model.fit(x.numpy(), y.numpy())


def chosen(name: str, make: Callable[[float, int], Any], rows: Rows, seed: int) -> Any:
    """Choose by the held-out rows, and fit what was chosen to all rows."""
    ((_, grid),) = PROTOCOL[name].grid
    held, labels = rows.validation

    def candidate(value: float) -> tuple[float, float]:
        model = quietly(make(value, seed), *rows.train)
        return nlpd(probabilities(model, held, rows.n_classes).clamp(min=SMALLEST), labels), value

    return quietly(make(lowest(candidate, grid), seed), rows.x, rows.y)


def by_grid(name: str, make: Callable[[float, int], Any], by: Callable[[Tensor], Judged] = by_entropy) -> Fit:
    def fitted(rows: Rows, seed: int) -> Judge:
        model = chosen(name, make, rows, seed)
        return lambda x: by(probabilities(model, x, rows.n_classes))

    return fitted


def _logistic_regression(C: float, seed: int) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=300))


def beside_logistic_regression(make: Callable[[int], Any]) -> Fit:
    """Return the fit of a detector of scikit-learn, whose scores are lower farther out."""

    def fitted(rows: Rows, seed: int) -> Judge:
        classifier = chosen("logistic regression", _logistic_regression, rows, seed)
        detector = make(seed).fit(rows.x.numpy())
        score = lambda x: -torch.from_numpy(detector.score_samples(x.numpy()))  # noqa: E731
        return lambda x: Judged(probabilities(classifier, x, rows.n_classes), score(x))

    return fitted


def gaussian_process(rows: Rows, seed: int) -> Judge:
    kernel = ConstantKernel(4.0) * Matern(3.0, nu=2.5)
    model = make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=seed))
    quietly(model, rows.x[:FEWER], rows.y[:FEWER])
    return lambda x: by_entropy(probabilities(model, x, rows.n_classes))


def catboost(rows: Rows, seed: int) -> Judge:
    """Boost until the held-out rows say stop, and fit so many trees to all rows."""
    with extra("arena"):
        from catboost import CatBoostClassifier
    loss = "MultiClass" if rows.n_classes > 2 else "Logloss"

    def made(trees: int) -> Any:
        return CatBoostClassifier(
            iterations=trees,
            loss_function=loss,
            random_seed=seed,
            thread_count=1,
            logging_level="Silent",
            allow_writing_files=False,
        )

    (x, y), (held, labels) = rows.train, rows.validation
    seen = torch.isin(labels, y)  # a rare class may be among the held-out rows alone
    first = made(500)
    first.fit(x.numpy(), y.numpy(), eval_set=(held[seen].numpy(), labels[seen].numpy()), early_stopping_rounds=50)
    model = made(max(first.tree_count_, 10)).fit(rows.x.numpy(), rows.y.numpy())
    return lambda x: by_entropy(probabilities(model, x, rows.n_classes))


def tabpfn(rows: Rows, seed: int) -> Judge:
    """Show TabPFN v1 the rows; its first use downloads its weights."""
    model = _tabpfn()(seed=seed, subsample_features=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows.x.double().numpy(), rows.y.numpy())

    def judge(x: Tensor) -> Judged:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return by_entropy(probabilities(model, x.double(), rows.n_classes))

    return judge


def _tabpfn() -> Any:
    """Import TabPFN 0.1.11 beside newer libraries: a name has left PyTorch's module, another was renamed in sklearn."""
    import torch.nn.modules.transformer as transformer
    from sklearn.utils.validation import check_array, check_X_y

    transformer.Optional = typing.Optional  # type: ignore[attr-defined]
    with extra("arena"):
        from tabpfn.scripts import transformer_prediction_interface as interface
    interface.check_X_y = lambda X, y, force_all_finite: check_X_y(X, y, ensure_all_finite=force_all_finite)
    interface.check_array = lambda X, force_all_finite: check_array(X, ensure_all_finite=force_all_finite)
    return interface.TabPFNClassifier


def ours(measure: str, **options: Any) -> Fit:
    def fitted(rows: Rows, seed: int) -> Judge:
        model = quietly(StationaryClassifier(random_state=seed, **options), rows.x, rows.y)

        def judge(x: Tensor) -> Judged:
            scores = torch.from_numpy(model.uncertainty(x.numpy(), measure))
            return Judged(torch.from_numpy(model.predict_proba(x.numpy())), scores)

        return judge

    return fitted


CLASSIFIERS: dict[str, Fit] = {
    "logistic regression": by_grid("logistic regression", _logistic_regression, by_doubt),
    "random forest": by_grid(
        "random forest",
        lambda leaf, seed: RandomForestClassifier(100, min_samples_leaf=int(leaf), random_state=seed),
    ),
    "gradient boosting": by_grid(
        "gradient boosting",
        lambda rate, seed: HistGradientBoostingClassifier(learning_rate=rate, early_stopping=True, random_state=seed),
    ),
    "catboost": catboost,
    "mlp": by_grid(
        "mlp",
        lambda alpha, seed: make_pipeline(
            StandardScaler(), MLPClassifier(alpha=alpha, early_stopping=True, random_state=seed)
        ),
    ),
    "gaussian process": gaussian_process,
    "tabpfn": tabpfn,
    "lof": beside_logistic_regression(lambda seed: make_pipeline(StandardScaler(), LocalOutlierFactor(novelty=True))),
    "isolation forest": beside_logistic_regression(lambda seed: IsolationForest(random_state=seed)),
    "finite network": ours("entropy", hidden_layer_sizes=(300,), restore_prior=False),
    "restored prior": ours("mutual_information", hidden_layer_sizes=(300,)),
    "infinite width": ours("mutual_information"),
}
