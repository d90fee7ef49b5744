"""The methods that the paper compares with: Gaussian processes on inputs and on the features of a network."""

from stationary.lab.baselines.exact import VGP as VGP
from stationary.lab.baselines.exact import ExactGP as ExactGP
from stationary.lab.baselines.exact import gp_training as gp_training
from stationary.lab.baselines.gpdnn import GPDNN as GPDNN
from stationary.lab.baselines.svdkl import SVDKL as SVDKL
from stationary.lab.baselines.svgp import SVGP as SVGP
