"""Gaussian processes, with GPyTorch: the kernels behind the networks. Only this package imports gpytorch."""

from stationary.gp import kernels as kernels
from stationary.gp.kernels import kernel_of as kernel_of
from stationary.gp.kernels import ntk_of as ntk_of
