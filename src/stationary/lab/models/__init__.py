"""Networks of the experiments."""

from stationary.lab.models.googlenet import GoogLeNet as GoogLeNet
from stationary.lab.models.radar_cnn import RadarCNN as RadarCNN
