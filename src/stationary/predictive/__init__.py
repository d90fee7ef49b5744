"""What a prediction is: for every input a distribution, over classes or over real values."""

from stationary.predictive._base import CHUNK as CHUNK
from stationary.predictive._base import NODES as NODES
from stationary.predictive._base import PRIOR_MISSING as PRIOR_MISSING
from stationary.predictive._base import Members as Members
from stationary.predictive._base import P as P
from stationary.predictive._base import Predictive as Predictive
from stationary.predictive._base import at_least_float32 as at_least_float32
from stationary.predictive._base import normal_nodes as normal_nodes
from stationary.predictive.bernoulli import Bernoulli as Bernoulli
from stationary.predictive.categorical import Categorical as Categorical
from stationary.predictive.gaussian import Gaussian as Gaussian
from stationary.predictive.gaussian import Interval as Interval
