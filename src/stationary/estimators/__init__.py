"""The networks as scikit-learn estimators: a table in, predictions that know their uncertainty out.

Inputs, and the targets of a regression, are standardised inside. Networks train in float32, in half the time, and
predict in float64: what is predicted for a row then does not depend on the rows beside it.
"""

from stationary.estimators.classifier import StationaryClassifier as StationaryClassifier
from stationary.estimators.regressor import StationaryRegressor as StationaryRegressor
