"""The networks of the CIFAR-10 and the radar experiment."""

from stationary.lab.models.googlenet import GoogLeNet as GoogLeNet
from stationary.lab.models.radar_cnn import RadarCNN as RadarCNN
