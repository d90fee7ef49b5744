"""One order of arguments in the whole library: nu, lengthscale, variance; whatever else there is, is keyword-only."""

import inspect

import pytest

import stationary as st
from stationary import activations
from stationary.activations import duals as activation_duals
from stationary.activations import functional, modules
from stationary.gp import binary, gaussian, kernels
from stationary.gp import stationary as stationary_kernels
from stationary.theory import duals, mercer, special, spectral

ORDER = ("nu", "lengthscale", "variance")
MODULES = (
    st, activations, functional, modules, activation_duals, kernels, binary, gaussian, stationary_kernels, duals,
    mercer, special, spectral,
)  # fmt: skip
WITH_PARAMETERS = {
    f"{value.__module__}.{name}": value
    for module in MODULES
    for name, value in [(name, getattr(module, name)) for name in dir(module)]
    if not name.startswith("_")
    and callable(value)
    and getattr(value, "__module__", "").startswith("stationary.")
    and set(ORDER) & set(inspect.signature(value).parameters)
}
KERNELS_OF_A_MODULE = (
    kernels.BinaryNetworkKernel, kernels.GaussianNetworkKernel, kernels.NeuralTangentKernel, kernels.UniformBiasKernel
)  # fmt: skip


def positional(function):
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [name for name, p in inspect.signature(function).parameters.items() if p.kind in kinds]


def test_the_list_has_what_it_is_about():
    names = {name.rpartition(".")[2] for name in WITH_PARAMETERS}
    assert {"matern", "rbf", "exponential", "Matern", "RBF", "MaternNNKernel", "MaternEnvelopeKernel"} <= names
    assert {"RidgeRBFNNKernel", "RBFNNKernel", "MaternKernel", "RBFEigensystem", "spectral_density"} <= names


@pytest.mark.parametrize("function", WITH_PARAMETERS.values(), ids=WITH_PARAMETERS)
def test_nu_lengthscale_variance_in_this_order_and_nothing_behind_them(function):
    names = positional(function)
    parameters = [name for name in names if name in ORDER]
    assert parameters == [name for name in ORDER if name in parameters]
    assert names[len(names) - len(parameters) :] == parameters, "what else there is, is keyword-only"


@pytest.mark.parametrize("kernel", KERNELS_OF_A_MODULE)
def test_kernels_take_the_activation_and_the_rest_by_name(kernel):
    assert positional(kernel) == ["activation"]
