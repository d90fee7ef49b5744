"""From a trained network to a posterior: one method per file, a frozen dataclass with ``fit`` and ``posterior``."""

from stationary.inference.ensemble import Ensemble as Ensemble
from stationary.inference.exact_dropout import ExactDropout as ExactDropout
from stationary.inference.export import exact_predictor as exact_predictor
from stationary.inference.laplace import Laplace as Laplace
from stationary.inference.mc_dropout import MCDropout as MCDropout
from stationary.inference.point import Point as Point
from stationary.inference.predict import predict as predict
from stationary.inference.swag import SWAG as SWAG
from stationary.nn.restored_prior import calibrate_prior as calibrate_prior
