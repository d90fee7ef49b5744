"""Networks: the head, the only place where an activation plugs in, and what it can stand on."""

from stationary.nn.heads import StationaryHead as StationaryHead
from stationary.nn.init import init_stationary_ as init_stationary_
from stationary.nn.mean_and_noise import MeanAndNoise as MeanAndNoise
from stationary.nn.mlp import MLP as MLP
from stationary.nn.replace import replace_head as replace_head
from stationary.nn.rotation import RotationPrediction as RotationPrediction
from stationary.nn.spectral import spectral_normalize as spectral_normalize
