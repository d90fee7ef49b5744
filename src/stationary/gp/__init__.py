"""Gaussian processes: the kernels behind the networks, as GPyTorch kernels."""

from stationary.gp import kernels as kernels
from stationary.gp.kernels import kernel_of as kernel_of
from stationary.gp.kernels import ntk_of as ntk_of
