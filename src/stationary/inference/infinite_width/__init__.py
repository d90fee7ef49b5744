"""The head of infinite width: ``method`` says what there is to choose, ``posterior`` what comes of it.

The rest is private: ``_trunk`` (features of a network), ``_geometry`` (where they are far from each other), ``_basis``
(finite features of the infinite network), ``_classes`` and ``_values`` (the posteriors), ``_likelihoods`` (softmax and
sigmoids), ``_evidence`` (what the rows say about their numbers) and ``_search`` (how these are chosen), ``_fit`` (one
fit from rows to a posterior), ``_sums`` (several machines).
"""

from stationary.inference.infinite_width.method import InfiniteWidth as InfiniteWidth
from stationary.inference.infinite_width.posterior import InfiniteWidthPosterior as InfiniteWidthPosterior
