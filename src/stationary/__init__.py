"""Neural networks that know what they do not know: stationary activation functions and the theory behind them.

Reading order: ``activations`` (the functions), ``theory`` (where their constants come from, from any kernel to its
activation, the kernel of any activation), ``gp`` (from an activation to its kernel); then ``nn`` (where an activation
plugs in), ``training``, ``inference`` (from a network to a posterior), ``predictive`` (what a prediction is),
``metrics`` and ``ood`` (what it is worth), ``active`` (which label to ask for next), ``estimators`` (all of it for
scikit-learn), ``adapters`` and ``bo`` (for other libraries). Behind the command line is ``lab``, with the paper's
figures; nothing here imports it.

A name is imported when it is first used, so that ``stationary --help`` need not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; tests/test_public.py compares it with the names below
    from stationary import activations as activations
    from stationary import adapters as adapters
    from stationary import calibration as calibration
    from stationary import gp as gp
    from stationary import inference as inference
    from stationary import metrics as metrics
    from stationary import nn as nn
    from stationary import ood as ood
    from stationary import plots as plots
    from stationary import predictive as predictive
    from stationary import theory as theory
    from stationary import training as training
    from stationary.activations import RBF as RBF
    from stationary.activations import Cosine as Cosine
    from stationary.activations import Erf as Erf
    from stationary.activations import LeakyReLU as LeakyReLU
    from stationary.activations import Matern as Matern
    from stationary.activations import PeriodicReLU as PeriodicReLU
    from stationary.activations import ReLU as ReLU
    from stationary.activations import SinCos as SinCos
    from stationary.activations import Sine as Sine
    from stationary.activations import Step as Step
    from stationary.activations import TriangleWave as TriangleWave
    from stationary.activations import activation as activation
    from stationary.activations import activation_from_kernel as activation_from_kernel
    from stationary.activations import cosine as cosine
    from stationary.activations import erf as erf
    from stationary.activations import exponential as exponential
    from stationary.activations import leaky_relu as leaky_relu
    from stationary.activations import matern as matern
    from stationary.activations import periodic_relu as periodic_relu
    from stationary.activations import rbf as rbf
    from stationary.activations import relu as relu
    from stationary.activations import sincos as sincos
    from stationary.activations import sine as sine
    from stationary.activations import step as step
    from stationary.activations import triangle_wave as triangle_wave
    from stationary.active import acquire as acquire
    from stationary.calibration import calibrate as calibrate
    from stationary.calibration import conformal as conformal
    from stationary.estimators import StationaryClassifier as StationaryClassifier
    from stationary.estimators import StationaryRegressor as StationaryRegressor
    from stationary.inference import SWAG as SWAG
    from stationary.inference import Ensemble as Ensemble
    from stationary.inference import ExactDropout as ExactDropout
    from stationary.inference import InfiniteWidth as InfiniteWidth
    from stationary.inference import Laplace as Laplace
    from stationary.inference import MCDropout as MCDropout
    from stationary.inference import Point as Point
    from stationary.inference import exact_predictor as exact_predictor
    from stationary.inference import fit as fit
    from stationary.inference import fit_folds as fit_folds
    from stationary.inference import predict as predict
    from stationary.nn import MLP as MLP
    from stationary.nn import MeanAndNoise as MeanAndNoise
    from stationary.nn import StationaryHead as StationaryHead
    from stationary.nn import replace_head as replace_head
    from stationary.nn.init import init_stationary_ as init_stationary_
    from stationary.nn.restored_prior import calibrate_prior as calibrate_prior
    from stationary.nn.rotation import RotationPrediction as RotationPrediction
    from stationary.nn.spectral import spectral_normalize as spectral_normalize
    from stationary.ood import OODDetector as OODDetector
    from stationary.predictive import Bernoulli as Bernoulli
    from stationary.predictive import Categorical as Categorical
    from stationary.predictive import Gaussian as Gaussian
    from stationary.predictive import Joint as Joint
    from stationary.theory.monte_carlo import monte_carlo_kernel as monte_carlo_kernel
    from stationary.training import Training as Training
    from stationary.training import beta_nll as beta_nll
    from stationary.training import train as train

__version__ = "0.1.0"

_ROOMS = (
    "activations",
    "adapters",
    "calibration",
    "gp",
    "inference",
    "metrics",
    "nn",
    "ood",
    "plots",
    "predictive",
    "theory",
    "training",
)
_WHERE = {  # in which module each public name is
    "Cosine": "activations",
    "Erf": "activations",
    "LeakyReLU": "activations",
    "Matern": "activations",
    "PeriodicReLU": "activations",
    "RBF": "activations",
    "ReLU": "activations",
    "SinCos": "activations",
    "Sine": "activations",
    "Step": "activations",
    "TriangleWave": "activations",
    "activation": "activations",
    "activation_from_kernel": "activations",
    "cosine": "activations",
    "erf": "activations",
    "exponential": "activations",
    "leaky_relu": "activations",
    "matern": "activations",
    "periodic_relu": "activations",
    "rbf": "activations",
    "relu": "activations",
    "sincos": "activations",
    "sine": "activations",
    "step": "activations",
    "triangle_wave": "activations",
    "acquire": "active",
    "calibrate": "calibration",
    "conformal": "calibration",
    "StationaryClassifier": "estimators",
    "StationaryRegressor": "estimators",
    "Ensemble": "inference",
    "ExactDropout": "inference",
    "InfiniteWidth": "inference",
    "Laplace": "inference",
    "MCDropout": "inference",
    "Point": "inference",
    "SWAG": "inference",
    "exact_predictor": "inference",
    "fit": "inference",
    "fit_folds": "inference",
    "predict": "inference",
    "MLP": "nn",
    "MeanAndNoise": "nn",
    "StationaryHead": "nn",
    "replace_head": "nn",
    "init_stationary_": "nn.init",
    "calibrate_prior": "nn.restored_prior",
    "RotationPrediction": "nn.rotation",
    "spectral_normalize": "nn.spectral",
    "OODDetector": "ood",
    "Bernoulli": "predictive",
    "Categorical": "predictive",
    "Gaussian": "predictive",
    "Joint": "predictive",
    "monte_carlo_kernel": "theory.monte_carlo",
    "Training": "training",
    "beta_nll": "training",
    "train": "training",
}
__all__ = [name for name, room in _WHERE.items() if room != "estimators"]  # import * must not need scikit-learn


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"stationary.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'stationary' has no attribute {name!r}; dir(stationary) lists what it has")
    value = globals()[name] = getattr(import_module(f"stationary.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*_WHERE, *_ROOMS, "__version__"])
