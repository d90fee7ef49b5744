"""Networks: the head with the stationary activation, and what it can stand on."""

from stationary.models.googlenet import GoogLeNet as GoogLeNet
from stationary.models.heads import StationaryHead as StationaryHead
from stationary.models.mlp import MLP as MLP
from stationary.models.radar_cnn import RadarCNN as RadarCNN
from stationary.models.replace import replace_head as replace_head
