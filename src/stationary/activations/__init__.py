"""Activation functions: ``functional`` states them, ``modules`` are layers, ``tabulated`` finds them for a kernel.

``duals`` knows the kernels of their networks. ``_recompute``, ``_cpu``, ``_periodic`` and ``_triton`` are the same
functions, faster.
"""

from stationary.activations.duals import dual_of as dual_of
from stationary.activations.functional import cosine as cosine
from stationary.activations.functional import erf as erf
from stationary.activations.functional import exponential as exponential
from stationary.activations.functional import leaky_relu as leaky_relu
from stationary.activations.functional import matern as matern
from stationary.activations.functional import periodic_relu as periodic_relu
from stationary.activations.functional import rbf as rbf
from stationary.activations.functional import relu as relu
from stationary.activations.functional import sincos as sincos
from stationary.activations.functional import sine as sine
from stationary.activations.functional import step as step
from stationary.activations.functional import triangle_wave as triangle_wave
from stationary.activations.modules import ACTIVATIONS as ACTIVATIONS
from stationary.activations.modules import RBF as RBF
from stationary.activations.modules import Cosine as Cosine
from stationary.activations.modules import Erf as Erf
from stationary.activations.modules import LeakyReLU as LeakyReLU
from stationary.activations.modules import Matern as Matern
from stationary.activations.modules import PeriodicReLU as PeriodicReLU
from stationary.activations.modules import ReLU as ReLU
from stationary.activations.modules import SinCos as SinCos
from stationary.activations.modules import Sine as Sine
from stationary.activations.modules import Step as Step
from stationary.activations.modules import TriangleWave as TriangleWave
from stationary.activations.modules import activation as activation
from stationary.activations.modules import twin_of as twin_of
from stationary.activations.tabulated import TabulatedActivation as TabulatedActivation
from stationary.activations.tabulated import activation_from_kernel as activation_from_kernel
