"""From a trained network to a posterior: ``base`` has the contract, each method has one file."""

from stationary.inference.base import Method as Method
from stationary.inference.base import Posterior as Posterior
from stationary.inference.ensemble import Ensemble as Ensemble
from stationary.inference.exact_dropout import ExactDropout as ExactDropout
from stationary.inference.export import exact_predictor as exact_predictor
from stationary.inference.fit import fit as fit
from stationary.inference.fit import fit_folds as fit_folds
from stationary.inference.infinite_width import InfiniteWidth as InfiniteWidth
from stationary.inference.laplace import Laplace as Laplace
from stationary.inference.mc_dropout import MCDropout as MCDropout
from stationary.inference.point import Point as Point
from stationary.inference.predict import predict as predict
from stationary.inference.swag import SWAG as SWAG
