"""From uncertainty to what one can rely on: probabilities and standard deviations that mean what they say."""

from stationary.calibration.recalibration import CalibratedPosterior as CalibratedPosterior
from stationary.calibration.recalibration import calibrate as calibrate
