"""The joint distribution by itself: its samples, and what it says once some targets are known."""

import pytest
import torch

import stationary as st
from stationary.predictive import Joint, Members

GENERATOR = torch.Generator().manual_seed(0)
ROOT = torch.randn(2, 5, 5, generator=GENERATOR, dtype=torch.float64)
JOINT = Joint(
    torch.randn(5, 2, generator=GENERATOR, dtype=torch.float64),
    ROOT @ ROOT.mT,
    torch.rand(5, 2, generator=GENERATOR, dtype=torch.float64),
)


@pytest.mark.parametrize("noise", [False, True])
def test_samples_have_its_moments(noise):
    n = 200_000
    drawn = JOINT.sample(n, generator=torch.Generator().manual_seed(1), noise=noise)
    assert drawn.shape == (n, 5, 2)
    for k in range(2):
        covariance = JOINT.covariance[k] + noise * torch.diag(JOINT.noise[:, k])
        scale = covariance.diagonal().sqrt()
        error = 5 / n**0.5  # five standard errors, of the mean and of correlations, times sqrt 2 where they are 1
        mean, theirs = drawn[..., k].mean(0), drawn[..., k].T.cov()
        assert ((mean - JOINT.mean[:, k]) / scale).abs().max() < error
        assert ((theirs - covariance) / (scale[:, None] * scale)).abs().max() < 2**0.5 * error


def test_the_same_seed_gives_the_same_samples():
    first, second = (JOINT.sample(3, generator=torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, second)


def test_groups_and_a_shared_covariance():
    shared = Joint(JOINT.mean.expand(3, 5, 2), JOINT.covariance[:1].expand(3, 1, 5, 5), JOINT.noise.expand(3, 5, 2))
    assert shared.sample(4).shape == (4, 3, 5, 2) and shared.variance().shape == (3, 5, 2)
    given = shared.given(torch.zeros(7, 3, 2, 2, dtype=torch.float64))
    assert given.mean.shape == given.noise.shape == (7, 3, 3, 2) and given.covariance.shape == (3, 2, 3, 3)


def test_given_some_targets_it_is_the_gaussian_conditional():
    """By the precision matrix, which conditions by leaving rows out."""
    y = torch.tensor([[1.0, -1.0], [0.5, 2.0]], dtype=torch.float64)
    given = JOINT.given(y)
    for k in range(2):
        noise = torch.cat([JOINT.noise[:2, k], torch.zeros(3, dtype=torch.float64)])
        precision = torch.linalg.inv(JOINT.covariance[k] + torch.diag(noise))
        covariance = torch.linalg.inv(precision[2:, 2:])
        mean = JOINT.mean[2:, k] - covariance @ precision[2:, :2] @ (y[:, k] - JOINT.mean[:2, k])
        torch.testing.assert_close(given.mean[:, k], mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(given.covariance[k], covariance, rtol=1e-9, atol=1e-9)
    assert torch.equal(given.noise, JOINT.noise[2:])


def test_given_targets_whose_covariance_rounding_made_indefinite():
    """As from products in TF32. By the pseudo-inverse, which leaves out what is as small as the rounding."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    noise = 1e-4 * torch.randn(6, 6, generator=generator, dtype=torch.float64)
    covariance, y = root @ root.mT + (noise + noise.mT) / 2, root[:4] @ torch.ones(2, 1, dtype=torch.float64)
    given = Joint(torch.zeros_like(root[:, :1]), covariance[None], torch.zeros_like(root[:, :1])).given(y)
    assert torch.linalg.eigvalsh(covariance[:4, :4])[0] < -1e-5
    torch.testing.assert_close(given.mean, root[4:] @ torch.ones(2, 1, dtype=torch.float64), rtol=0, atol=0.01)


@pytest.mark.parametrize("shape", [(5, 2), (2, 1)])
def test_targets_of_another_shape_are_an_error(shape):
    with pytest.raises(ValueError, match=r"y must be targets \(k, 2\) of the first k of 5 inputs"):
        JOINT.given(torch.zeros(shape))


def test_members_and_their_noise():
    parts = [torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    members = [Members(part, 0.5 * torch.ones(1, 6, 2), part.square()) for part in parts]
    joint, pred = Joint.from_members(members), st.Gaussian.from_members(members, 6)
    torch.testing.assert_close(joint.mean, pred.mean)
    torch.testing.assert_close(joint.variance(), pred.epistemic_variance)
    torch.testing.assert_close(joint.noise, pred.aleatoric_variance)
    outputs = torch.cat(parts)[..., 0]
    torch.testing.assert_close(joint.covariance[0], outputs.T.cov(correction=0) + 0.5 * torch.eye(6))
