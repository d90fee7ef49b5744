"""A network that was trained too little says so wherever labels of new rows show it, and a trained one does not."""

import warnings

import pytest
import torch

import stationary as st

generator = torch.Generator().manual_seed(0)
X = torch.randn(600, 4, generator=generator)
Y = (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long()
TRAIN, HELD = (X[:300], Y[:300]), (X[300:], Y[300:])
UNSURE = r"far too unsure: of 300 held-out rows it expects \d+ wrong and gets \d+ wrong; "


def fitted(epochs, data=HELD, fit=st.fit, **options):
    build = lambda: st.MLP(4, 4, hidden=(50,), dropout=0.1)
    return fit(
        st.ExactDropout(), build, TRAIN, st.Training(epochs=epochs, learning_rate=0.02, **options), validation=data
    )


@pytest.mark.parametrize("data", [HELD, [(X[300:400], Y[300:400]), (X[400:], Y[400:])]], ids=["pair", "batches"])
def test_fit_says_it_of_validation_rows(data):
    with pytest.warns(UserWarning, match=UNSURE + "train it longer") as caught:
        posterior = fitted(6, data)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=UNSURE + "its temperature corrects that near the data") as caught:
        calibrated = st.calibrate(posterior, data)
    assert caught[0].filename == __file__ and calibrated.temperature < 1


def test_nothing_is_said_of_what_is_right_or_cannot_be_seen():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = fitted(200, weight_decay=1e-4)
        st.calibrate(posterior, HELD)
        fitted(6, None)  # without labels of new rows
        unsure = fitted(6, fit=lambda a, b, data, *rest, **more: st.fit_folds(a, b, [data], *rest, **more)[0])
        values = (X[300:], X[300:, :1])
        training = st.Training("mse", epochs=1)
        st.fit(st.Point(), lambda: st.MLP(4, 1), (X[:300], X[:300, :1]), training, validation=values)
        network = unsure.networks[0]
        limit = st.InfiniteWidth(n_inducing=50).posterior(network, TRAIN, validation=HELD)
        st.calibrate(limit, (X[:300], Y[:300]))  # its own temperature was chosen by new rows


def test_the_first_thousand_rows_are_enough():
    read = []

    class Batches:
        def __iter__(self):
            for _ in range(5):
                read.append(len(X))
                yield X, Y

    with pytest.warns(UserWarning, match="of 1200 held-out rows"):
        fitted(6, Batches())
    assert len(read) == 6 * 5 + 2, "of all for the loss of each epoch, and then two"
