"""Neural networks that know what they do not know: stationary activation functions and the theory behind them.

Reading order: ``activations`` (the functions), ``spectral`` (where their constants come from), ``factorization``
(from any kernel to its activation), ``duals`` and ``gp`` (from an activation to its kernel), ``mercer`` (kernels as
operators), ``initialization`` (weights that keep the variance), ``monte_carlo`` (the kernel of any activation),
``fused`` (the same functions, faster); then ``models`` (where an activation plugs in), ``training``, ``inference``
(from a network to a posterior), ``predictive`` (what a prediction is), ``metrics`` and ``ood`` (what it is worth),
``estimators`` (all of it for scikit-learn), ``adapters`` (for other libraries), ``experiments`` (the paper's figures).
"""

from typing import TYPE_CHECKING, Any

from stationary import adapters as adapters
from stationary import metrics as metrics
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
from stationary.inference import SWAG as SWAG
from stationary.inference import Ensemble as Ensemble
from stationary.inference import ExactDropout as ExactDropout
from stationary.inference import Laplace as Laplace
from stationary.inference import MCDropout as MCDropout
from stationary.inference import Point as Point
from stationary.inference import exact_predictor as exact_predictor
from stationary.inference import fit as fit
from stationary.inference import fit_folds as fit_folds
from stationary.inference import predict as predict
from stationary.nn import MLP as MLP
from stationary.nn import StationaryHead as StationaryHead
from stationary.nn import replace_head as replace_head
from stationary.nn.init import init_stationary_ as init_stationary_
from stationary.nn.restored_prior import calibrate_prior as calibrate_prior
from stationary.ood import OODDetector as OODDetector
from stationary.predictive import Categorical as Categorical
from stationary.predictive import Gaussian as Gaussian
from stationary.theory.monte_carlo import monte_carlo_kernel as monte_carlo_kernel
from stationary.training import Training as Training
from stationary.training import train as train

if TYPE_CHECKING:  # they need an extra, scikit-learn, and are imported when they are asked for
    from stationary.estimators import StationaryClassifier as StationaryClassifier
    from stationary.estimators import StationaryRegressor as StationaryRegressor

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in ("StationaryClassifier", "StationaryRegressor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stationary import estimators

    return getattr(estimators, name)
