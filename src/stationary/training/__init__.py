"""Training: its configuration, and one loop for one network or many."""

from stationary.training.config import Group as Group
from stationary.training.config import Training as Training
from stationary.training.train import Progress as Progress
from stationary.training.train import train as train
