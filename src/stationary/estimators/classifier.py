"""The classifier: probabilities of classes that say where nothing is known."""

from typing import Any

import numpy as np

from stationary._extras import extra
from stationary.estimators._network import Array, Network
from stationary.inference import predict
from stationary.ood import SCORES
from stationary.predictive import Categorical

with extra("sklearn"):
    from sklearn.base import ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import validate_data


class StationaryClassifier(ClassifierMixin, Network):
    """A neural network for tables that says how sure it is, and far from its training data that it does not know.

    As it comes it has infinite width: nothing is trained, and the parameters from ``dropout`` on, but for ``method``,
    ``random_state``, ``device`` and ``verbose``, are those of finite networks. Names and meanings are those of
    ``sklearn.neural_network.MLPClassifier`` where both have a parameter.

    Args:
        hidden_layer_sizes: widths of the hidden layers of a finite network. The last one has the activation and
            dropout, those before it ReLU. With a single layer, what is far for the network is far in the table; ReLU
            layers in front may hide some of the distance. None is () for infinite width, which then rests on the
            columns themselves, and (300,) for other methods.
        activation: activation of the last hidden layer, as a name of ``stationary.activation`` or a module, of which
            every network gets a copy; for infinite width "matern12", "matern32", "matern52", "matern72" or "rbf".
        dropout: probability of dropping a unit of the last hidden layer.
        method: method of inference; by default ``InfiniteWidth()`` without hidden layers, ``ExactDropout()`` with
            some. Others are ``Ensemble(5)``, ``MCDropout(100)``, ``Point()``, ``Laplace()`` and, with
            early_stopping=False, ``SWAG()``. ``InfiniteWidth()`` with hidden layers takes those before its head, which
            are trained first, for its trunk.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data
            (``stationary.calibrate_prior``). By default it is added where the activation decays; True makes it an error
            where it does not, False leaves it out.
        alpha: strength of the penalty alpha / 2 |w|^2, which is added to the sum of the losses (cross entropies, or
            squared errors of the standardised targets). None is 1 for the classifier and 0.01 for the regressor. The
            larger it is, the slower the hidden units vary, and the farther away "far" is.
        batch_size: number of rows in a step of Adam; None for all.
        learning_rate_init: learning rate of Adam.
        max_iter: largest number of epochs.
        early_stopping: whether to hold out rows (stratified by class), stop when their loss no longer falls, and go
            back to the weights of its minimum.
        validation_fraction: share of the rows that is held out for early_stopping.
        n_iter_no_change: number of epochs without a lower validation loss after which training stops.
        random_state: seed of the whole fit; an int makes fits reproducible.
        device: device to train and predict on: "cpu", "cuda", ...; None is the CPU.
        verbose: whether to print a line for each epoch.

    Attributes:
        classes_: (c,) the labels, sorted.
        n_features_in_, feature_names_in_: number of columns of the table, and their names where it has them.
        posterior_: the trained network or networks, for ``stationary.predict`` on standardised inputs.
        scaler_: the ``StandardScaler`` in front of them.
        n_iter_: number of epochs that training took; 1 where the method needs no training.
        loss_curve_: training loss of each epoch.
    """

    _alpha = 1.0
    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "StationaryClassifier":
        """Train on X (n, d) and labels y (n,), of any kind; sample_weight (n,) weighs the loss of each row."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        weight = self._weights(X, sample_weight)
        self.classes_, labels = np.unique(y, return_inverse=True)
        keep = weight > 0
        self._fit(X[keep], labels[keep], weight[keep], n_outputs=len(self.classes_), loss="cross_entropy")
        predict(self.posterior_, self._inputs(X[:1]))  # a method that cannot predict with this network says so now
        return self

    def predictive(self, X: Any) -> Categorical:
        """The whole prediction for X (n, d): probabilities, whose columns are classes_, and measures of uncertainty."""
        return self._predictive(X, Categorical)

    def predict_proba(self, X: Any) -> Array:
        """(n, c) probabilities of the classes, in the order of classes_."""
        return self.predictive(X).probs.numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """(n, c) logarithms of the probabilities of the classes, in the order of classes_."""
        return self.predictive(X).probs.log().numpy()

    def predict(self, X: Any) -> Array:
        """(n,) the most probable class."""
        labels = self.predictive(X).predict().numpy()
        return self.classes_[labels]

    def uncertainty(self, X: Any, measure: str = "entropy") -> Array:
        """(n,) how unsure the prediction is; a higher value is less sure.

        Args:
            X: (n, d) inputs.
            measure: name of the measure: "entropy" of the probabilities, in [0, log c]; "mutual_information", the part
                of the entropy that more data could remove; "std", the standard deviation of the outputs;
                "variance", their variance; "max_probability", 1 - the largest probability; "energy", -logsumexp of
                the outputs.
        """
        if measure not in SCORES:
            raise ValueError(f"measure must be one of {', '.join(SCORES)}; got {measure!r}")
        return SCORES[measure](self.predictive(X)).numpy()
