"""From uncertainty to what one can rely on: probabilities and standard deviations that mean what they say."""

from stationary.calibration.recalibration import CalibratedPosterior as CalibratedPosterior
from stationary.calibration.recalibration import calibrate as calibrate
from stationary.calibration.sets import Conformal as Conformal
from stationary.calibration.sets import conformal as conformal
