"""Gaussian processes: the kernels behind the networks, with GPyTorch (only this package imports it), and baselines."""

from stationary.gp import kernels as kernels
from stationary.gp.gpdnn import GPDNN as GPDNN
from stationary.gp.kernels import kernel_of as kernel_of
from stationary.gp.kernels import ntk_of as ntk_of
from stationary.gp.svdkl import SVDKL as SVDKL
from stationary.gp.svgp import SVGP as SVGP
