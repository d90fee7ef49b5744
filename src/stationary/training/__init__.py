"""Training: its configuration, what networks train on, and one loop for one network or many."""

from stationary.training._checkpoint import Remembering as Remembering
from stationary.training.config import Group as Group
from stationary.training.config import Training as Training
from stationary.training.data import Data as Data
from stationary.training.losses import beta_nll as beta_nll
from stationary.training.train import Build as Build
from stationary.training.train import Observer as Observer
from stationary.training.train import Progress as Progress
from stationary.training.train import train as train
from stationary.training.train import train_folds as train_folds
