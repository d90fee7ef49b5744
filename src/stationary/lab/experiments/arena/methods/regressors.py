"""Regressors on tables: a function from a task and a seed to the prediction for new rows."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stationary import StationaryRegressor
from stationary._extras import extra
from stationary.inference import Ensemble, InfiniteWidth, MCDropout, Method, Point, Posterior, fit, predict
from stationary.lab.experiments.arena.methods.base import lowest
from stationary.lab.experiments.arena.protocol_tables import INDUCING, SMALLEST
from stationary.lab.experiments.arena.protocol_tables import REGRESSORS as PROTOCOL
from stationary.lab.experiments.arena.values import Normal, Values
from stationary.lab.runs import inside
from stationary.lab.torchvision_operators import declare
from stationary.nn import MeanAndNoise
from stationary.nn.init import seeded
from stationary.predictive import Gaussian
from stationary.training import Training

with extra("experiments"):
    import gpytorch
    from sklearn.ensemble import RandomForestRegressor

Fit: TypeAlias = Callable[[Values, int], Callable[[Tensor], Normal]]
UNITS, SAMPLES, PIECE = 100, 100, 2_000  # units of a layer; masks; rows that are predicted at a time


def nlpd(mean: Tensor, variance: Tensor, y: Tensor) -> float:
    variance = variance.clamp(min=SMALLEST)
    return (0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())).mean().item()


def with_noise(mean: Tensor, variance: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the lowest NLPD that a constant noise variance gives, and that variance."""
    loss = lambda log_noise: nlpd(mean, variance + math.exp(log_noise), y)  # noqa: E731
    found = minimize_scalar(loss, bounds=(math.log(SMALLEST), math.log(10)), method="bounded")
    return float(found.fun), math.exp(found.x)


def marginal(task: Values, seed: int) -> Callable[[Tensor], Normal]:
    """Say the same of every row; the targets are standardised by the training rows."""
    return lambda x: Normal(torch.zeros(len(x)).double(), torch.ones(len(x)).double())


def ours(**options: Any) -> Fit:
    def fitted(task: Values, seed: int) -> Callable[[Tensor], Normal]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that max_iter ended a training is no news here
            model = StationaryRegressor(random_state=seed, **options).fit(task.x.numpy(), task.y.numpy())
        return lambda x: _normal(model.predictive(x.numpy()))

    return fitted


def _normal(pred: Gaussian) -> Normal:
    return Normal(pred.mean[:, 0].double(), pred.variance()[:, 0].double())


def random_forest(task: Values, seed: int) -> Callable[[Tensor], Normal]:
    """Predict with the mean and the variance of the trees, and a noise that the out-of-bag rows choose."""
    x, y = task.x.numpy(), task.y

    def candidate(leaf: float) -> tuple[float, tuple[Any, float]]:
        model = RandomForestRegressor(100, min_samples_leaf=int(leaf), oob_score=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a row may be in every tree of a small forest
            model.fit(x, y.numpy())
        spread = _of_trees(model, x).variance  # of all trees: those that have not seen the row differ more
        loss, noise = with_noise(torch.from_numpy(model.oob_prediction_), spread, y)
        return loss, (model, noise)

    ((_, grid),) = PROTOCOL["random forest"].grid
    model, noise = lowest(candidate, grid)

    def said(x: Tensor) -> Normal:
        of_trees = _of_trees(model, x.numpy())
        return Normal(of_trees.mean, of_trees.variance + noise)

    return said


def _of_trees(model: Any, x: Any) -> Normal:
    each = torch.stack([torch.from_numpy(tree.predict(x)) for tree in model.estimators_])
    return Normal(each.mean(0), each.var(0, correction=0))


def catboost(task: Values, seed: int) -> Callable[[Tensor], Normal]:
    """Boost mean and variance; once the number of trees is chosen, fit so many to all rows."""
    with extra("arena"):
        from catboost import CatBoostRegressor
    (x, y), (held_x, held_y) = task.train, task.validation

    def made(depth: float, trees: int) -> Any:
        return CatBoostRegressor(
            iterations=trees,
            depth=int(depth),
            loss_function="RMSEWithUncertainty",
            posterior_sampling=True,
            random_seed=seed,
            thread_count=1,
            logging_level="Silent",
            allow_writing_files=False,
        )

    def candidate(depth: float) -> tuple[float, tuple[float, int]]:
        model = made(depth, 1000)
        model.fit(x.numpy(), y.numpy(), eval_set=(held_x.numpy(), held_y.numpy()), early_stopping_rounds=50)
        return model.best_score_["validation"]["RMSEWithUncertainty"], (depth, max(model.tree_count_, 10))

    ((_, grid),) = PROTOCOL["catboost"].grid
    depth, trees = lowest(candidate, grid)
    model = made(depth, trees).fit(task.x.numpy(), task.y.numpy())

    def said(x: Tensor) -> Normal:
        found = model.virtual_ensembles_predict(
            x.numpy(), prediction_type="TotalUncertainty", virtual_ensembles_count=10, thread_count=1
        )
        mean, knowledge, data = torch.from_numpy(found).double().T
        return Normal(mean, knowledge + data)

    return said


def network(n_features: int, n_outputs: int = 1, dropout: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in in (n_features, UNITS):
        layers += [nn.Linear(n_in, UNITS), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(UNITS, n_outputs))


def _trained(task: Values, method: Method, build: Callable[[], nn.Module], seed: int, loss: str = "mse") -> Posterior:
    (x, y), (held_x, held_y) = task.train, task.validation
    how = Training(loss, epochs=200, batch_size=64, learning_rate=3e-3, patience=30, seed=seed)
    held = held_x.float(), held_y[:, None].float()
    progress = inside.watched(how.epochs).epoch
    return fit(method, build, (x.float(), y[:, None].float()), how, validation=held, progress=progress)


def _predicted(posterior: Posterior, x: Tensor) -> Normal:
    return _normal(predict(posterior, x.float(), family=Gaussian, batch_size=PIECE))


def mc_dropout(task: Values, seed: int) -> Callable[[Tensor], Normal]:
    held_x, held_y = task.validation

    def candidate(dropout: float) -> tuple[float, tuple[Posterior, float]]:
        posterior = _trained(task, MCDropout(SAMPLES), lambda: network(task.x.shape[1], dropout=dropout), seed)
        said = _predicted(posterior, held_x)
        loss, noise = with_noise(said.mean, said.variance, held_y)
        return loss, (posterior, noise)

    ((_, grid),) = PROTOCOL["mc dropout"].grid
    posterior, noise = lowest(candidate, grid)

    def judge(x: Tensor) -> Normal:
        said = _predicted(posterior, x)
        return Normal(said.mean, said.variance + noise)

    return judge


def ensemble(task: Values, seed: int) -> Callable[[Tensor], Normal]:
    build = lambda: MeanAndNoise(network(task.x.shape[1], 2))  # noqa: E731
    posterior = _trained(task, Ensemble(5), build, 5 * seed, "beta_nll")
    return lambda x: _predicted(posterior, x)


def laplace(task: Values, seed: int) -> Callable[[Tensor], Normal]:
    """Make all weights of a trained network Gaussian, by laplace-torch, and predict with the linearised network."""
    declare()
    with extra("arena"):
        from laplace import Laplace
    trained = _trained(task, Point(), lambda: network(task.x.shape[1]), seed).networks[0]
    model = Laplace(trained, "regression", subset_of_weights="all", hessian_structure="kron")
    x, y = task.train
    model.fit(DataLoader(TensorDataset(x.float(), y[:, None].float()), 500))
    log_prior, log_noise = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([log_prior, log_noise], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (-model.log_marginal_likelihood(log_prior.exp(), log_noise.exp())).backward()
        optimizer.step()
    noise = model.sigma_noise.item() ** 2

    def said(x: Tensor) -> Normal:
        parts: Iterable[tuple[Tensor, Tensor]] = [model(some) for some in x.float().split(500)]
        means, variances = zip(*parts, strict=True)
        variance = torch.cat([variance.detach().flatten() for variance in variances])
        return Normal(torch.cat(means).detach().flatten().double(), variance.double() + noise)

    return said


class _Process(gpytorch.models.ExactGP):
    """A Gaussian process in GPyTorch, sparse where it gets inducing inputs (Titsias, 2009)."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: Any, inducing: Tensor | None = None) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        matern = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=x.shape[1])
        self.covar_module: Any = gpytorch.kernels.ScaleKernel(matern)
        if inducing is not None:
            self.covar_module = gpytorch.kernels.InducingPointKernel(self.covar_module, inducing.clone(), likelihood)

    def forward(self, x: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gaussian_process(task: Values, seed: int, n_inducing: int | None = None) -> Callable[[Tensor], Normal]:
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    inducing = None if n_inducing is None else task.x[:n_inducing]  # the rows are in random order
    model = _Process(task.x, task.y, likelihood, inducing).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    exactly = gpytorch.settings.max_cholesky_size(10**6)
    with exactly, seeded(seed, torch.device("cpu")):
        model.train()
        for _ in range(100):
            optimizer.zero_grad()
            (-objective(model(task.x), task.y)).backward()
            optimizer.step()
    model.eval()

    def said(x: Tensor) -> Normal:
        with torch.no_grad(), gpytorch.settings.max_cholesky_size(10**6):
            found = [likelihood(model(some)) for some in x.split(PIECE)]
        return Normal(torch.cat([one.mean for one in found]), torch.cat([one.variance for one in found]))

    return said


def sparse_gaussian_process(task: Values, seed: int) -> Callable[[Tensor], Normal]:
    return gaussian_process(task, seed, INDUCING)


REGRESSORS: dict[str, Fit] = {
    "marginal": marginal,
    "random forest": random_forest,
    "catboost": catboost,
    "mc dropout": mc_dropout,
    "ensemble": ensemble,
    "laplace": laplace,
    "gaussian process": gaussian_process,
    "sparse gaussian process": sparse_gaussian_process,
    "finite network": ours(hidden_layer_sizes=(300,)),
    "infinite width": ours(),
    "infinite width with draws": ours(method=InfiniteWidth(draws=8)),
}
