"""Accumulated over chunks, a prediction equals what all members at once would give."""

import math

import numpy as np
import pytest
import torch

import stationary as st
from stationary.predictive import NODES, Members, normal_nodes


def chunks(outputs, sizes, **extra):
    return [Members(part, **extra) for part in outputs.split(sizes)]


def test_categorical_equals_its_definition():
    z = 3 * torch.randn(12, 5, 4, dtype=torch.float64)
    pred = st.Categorical.from_members(chunks(z, [1, 4, 7]), 12)
    p = z.softmax(-1)
    torch.testing.assert_close(pred.probs, p.mean(0))
    torch.testing.assert_close(pred.expected_log_probs, p.log().mean(0))
    torch.testing.assert_close(pred.expected_entropy(), -(p * p.log()).sum(-1).mean(0))
    torch.testing.assert_close(pred.entropy(), -(p.mean(0) * p.mean(0).log()).sum(-1))
    torch.testing.assert_close(pred.mutual_information(), pred.entropy() - pred.expected_entropy())
    torch.testing.assert_close(pred.output_mean, z.mean(0))
    torch.testing.assert_close(pred.output_variance, z.var(0, correction=0))
    torch.testing.assert_close(pred.std(), z.std(0, correction=0).mean(-1))
    torch.testing.assert_close(pred.confidence(), p.mean(0).amax(-1))
    assert torch.equal(pred.predict(), p.mean(0).argmax(-1))
    assert pred.samples is None and len(pred) == 5


def test_samples_are_kept_when_asked_for():
    z = torch.randn(6, 5, 3)
    torch.testing.assert_close(st.Categorical.from_members(chunks(z, 2), 6, keep_samples=True).samples, z)
    torch.testing.assert_close(st.Gaussian.from_members(chunks(z, 2), 6, keep_samples=True).samples, z)


def test_bernoulli_std():
    z = torch.randn(3, 7, 2)
    p = z.softmax(-1).mean(0)[:, 1]
    torch.testing.assert_close(st.Categorical.from_members([Members(z)], 3).bernoulli_std(), (p * (1 - p)).sqrt())
    with pytest.raises(ValueError, match="two classes, got 3; use entropy"):
        st.Categorical.from_members([Members(torch.randn(2, 4, 3))], 2).bernoulli_std()


def test_impossible_classes_have_no_entropy():
    z = torch.tensor([[[0.0, 0.0, -math.inf]]])
    pred = st.Categorical.from_members([Members(z)], 1)
    torch.testing.assert_close(pred.entropy(), torch.tensor([math.log(2)]))
    torch.testing.assert_close(pred.expected_entropy(), torch.tensor([math.log(2)]))


def test_large_offsets_do_not_cancel():
    """The variance is taken about the first member: outputs near 10^4 keep theirs in float32."""
    z = 1e4 + 1e-1 * torch.randn(2000, 3, 2, dtype=torch.float64)
    pred = st.Gaussian.from_members(chunks(z.float(), 100), 2000)
    torch.testing.assert_close(pred.epistemic_variance.double(), z.var(0, correction=0), rtol=0.05, atol=0)


def test_gaussian_is_the_mixture_of_its_members():
    means, noises = torch.randn(8, 5, 2, dtype=torch.float64), torch.rand(8, 5, 2, dtype=torch.float64)
    members = [Members(m, noise=v) for m, v in zip(means.split(3), noises.split(3), strict=True)]
    pred = st.Gaussian.from_members(members, 8)
    draws = means + noises.sqrt() * torch.randn(200_000, 8, 5, 2, dtype=torch.float64)[:20_000]
    total = draws.flatten(0, 1).var(0)
    standard_error = total * math.sqrt(2 / (8 * 20_000)) * 2  # a factor 2 for the tails of the mixture
    torch.testing.assert_close(pred.mean, means.mean(0))
    torch.testing.assert_close(pred.aleatoric_variance, noises.mean(0))
    torch.testing.assert_close(pred.epistemic_variance, means.var(0, correction=0))
    assert ((pred.variance() - total).abs() < 5 * standard_error).all()
    torch.testing.assert_close(pred.std(), pred.variance().sqrt())
    torch.testing.assert_close(pred.with_noise(0.5).variance(), pred.variance() + 0.5)
    with pytest.raises(ValueError, match="variance must be at least 0, got -1"):
        pred.with_noise(-1.0)


@pytest.mark.parametrize("n_members", [1, 5, 64, 300])
def test_restored_prior_as_gaussian_members(n_members):
    """Members with a prior variance: probabilities of that Gaussian, by brute-force sampling."""
    z = torch.randn(n_members, 4, 3, dtype=torch.float64)
    prior = torch.rand(1, 4, 3, dtype=torch.float64) * 4
    pred = st.Categorical.from_members(chunks(z, 50, prior=prior), n_members)
    draws = (z[torch.randint(n_members, (100_000,))] + prior.sqrt() * torch.randn(100_000, 4, 3)).softmax(-1)
    assert ((pred.probs - draws.mean(0)).abs() < 0.03).all()  # 64 points, quasi-random: about 0.01
    torch.testing.assert_close(pred.output_variance, z.var(0, correction=0) + prior[0])
    gaussian = st.Gaussian.from_members(chunks(z, 50, prior=prior), n_members)
    torch.testing.assert_close(gaussian.epistemic_variance, z.var(0, correction=0) + prior[0])


@pytest.mark.parametrize("family", [st.Categorical, st.Gaussian])
def test_the_prior_of_any_member_shows(family):
    plain, restored = Members(torch.randn(1, 4, 3)), Members(torch.randn(1, 4, 3), prior=torch.ones(1, 4, 3))
    for members in ([restored, plain], [plain, restored], [restored, restored]):
        assert family.from_members(members, 2).prior_restored
    assert not family.from_members([plain, plain], 2).prior_restored


@pytest.mark.parametrize("c", [2, 3, 10])
def test_categorical_from_moments(c):
    mean, root = torch.randn(6, c, dtype=torch.float64), torch.randn(6, c, c + 2, dtype=torch.float64)
    covariance = root @ root.mT / c
    pred = st.Categorical.from_moments(mean, covariance)
    draws = torch.distributions.MultivariateNormal(mean, covariance).sample((100_000,)).softmax(-1)
    tolerance = 5 * 0.5 / math.sqrt(100_000) if c == 2 else 0.03
    assert ((pred.probs - draws.mean(0)).abs() < tolerance).all()
    assert ((pred.expected_entropy() - torch.special.entr(draws).sum(-1).mean(0)).abs() < 2 * tolerance).all()
    assert ((pred.expected_log_probs - draws.log().mean(0)).abs() < 6 * tolerance).all()
    torch.testing.assert_close(pred.output_variance, covariance.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize(("c", "scale"), [(3, 1.0), (10, 30.0), (200, 300.0)])
def test_more_classes_are_means_over_the_nodes(engine, c, scale):
    """Also where there is a single class left, and beyond a tile of rows and a piece of nodes."""
    mean, root = scale * torch.randn(70, c, dtype=torch.float64), torch.randn(70, c, c, dtype=torch.float64)
    covariance = root @ root.mT / c + torch.eye(c, dtype=torch.float64)
    z = torch.einsum("sd,ncd->snc", normal_nodes(NODES, c), torch.linalg.cholesky(covariance)) + mean
    pred = st.Categorical.from_moments(mean, covariance)
    # a few roundings of logits of the size of the scale
    close = {"rtol": 0, "atol": 50 * torch.finfo(torch.float64).eps * (1 + scale)}
    torch.testing.assert_close(pred.probs, z.softmax(-1).mean(0), **close)
    torch.testing.assert_close(pred.expected_entropy(), torch.special.entr(z.softmax(-1)).sum(-1).mean(0), **close)
    torch.testing.assert_close(pred.expected_log_probs, mean - z.logsumexp(-1).mean(0)[:, None], **close)


def test_from_moments_without_variance_is_the_softmax():
    mean = torch.randn(6, 4)
    pred = st.Categorical.from_moments(mean, torch.zeros(6, 4, 4))
    torch.testing.assert_close(pred.probs, mean.softmax(-1))
    assert pred.mutual_information().max() < 1e-6


def test_nodes_are_normal_points():
    nodes = normal_nodes(NODES, 10)
    torch.testing.assert_close(nodes.mean(0), torch.zeros(10, dtype=torch.float64))
    torch.testing.assert_close(nodes.square().mean(0), torch.ones(10, dtype=torch.float64))


def test_half_precision_is_accumulated_in_float32():
    pred = st.Categorical.from_members([Members(torch.randn(50, 3, 4, dtype=torch.bfloat16))], 50)
    assert pred.probs.dtype == torch.float32


@pytest.mark.parametrize("family", [st.Categorical, st.Gaussian])
def test_save_load_and_cat(family, tmp_path):
    pred = family.from_members([Members(torch.randn(5, 4, 3))], 5, keep_samples=True)
    loaded = family.load(pred.save(tmp_path / "folder" / "prediction.npz"))
    both = family.concatenate([pred, loaded.to("cpu")])
    for name, value in pred.tensors().items():
        torch.testing.assert_close(getattr(loaded, name), value, rtol=0, atol=0)
        assert getattr(both, name).shape[1 if name == "samples" else 0] == 8
    assert len(both) == 8


def test_load_refuses_other_files(tmp_path):
    pred = st.Gaussian.from_members([Members(torch.randn(5, 4, 3))], 5)
    with pytest.raises(ValueError, match="must hold a categorical prediction, got gaussian"):
        st.Categorical.load(pred.save(tmp_path / "p.npz"))
    np.savez(tmp_path / "evil.npz", probs=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        st.Categorical.load(tmp_path / "evil.npz")


def test_moments_with_a_covariance_that_rounding_made_indefinite():
    """As from products in TF32: no error, and the same probabilities to the size of the rounding."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(200, 4, 2, generator=generator)
    exact = root @ root.mT
    noise = 1e-3 * torch.randn(200, 4, 4, generator=generator)
    mean = torch.randn(200, 4, generator=generator)
    rounded = st.Categorical.from_moments(mean, exact + (noise + noise.mT) / 2)
    assert rounded.probs.isfinite().all()
    error = (rounded.probs - st.Categorical.from_moments(mean, exact).probs).abs()
    assert error.mean() < 0.02  # the points are others where the factor is, too


def test_the_root_of_an_indefinite_covariance_is_near_that_without_the_rounding():
    """The first three outputs are almost independent, and the fourth is their sum: a root cannot be far from theirs."""
    from stationary.predictive._base import square_root

    generator = torch.Generator().manual_seed(0)
    first = torch.eye(3) + 0.1 * torch.randn(50, 3, 3, generator=generator)
    exact = torch.cat([first, first.sum(1, keepdim=True)], 1)
    noise = 1e-3 * torch.randn(50, 4, 4, generator=generator)
    covariance = exact @ exact.mT + (noise + noise.mT) / 2
    found, wanted = square_root(covariance), torch.linalg.cholesky(first @ first.mT)
    assert (torch.linalg.eigvalsh(covariance)[:, 0] < 0).any()
    torch.testing.assert_close(found @ found.mT, covariance, rtol=0.0, atol=0.02)
    torch.testing.assert_close(found[:, :3, :3], wanted, rtol=0.0, atol=0.02)
