"""Bayesian optimisation with BoTorch: posteriors of networks as its models, and kernels of networks in its own ones.

The kernels of ``stationary.gp`` are kernels of GPyTorch, and go into ``SingleTaskGP`` as they are; for a fit of their
hyperparameters ``with_priors`` and ``centred`` have what was measured.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from stationary._checks import is_count
from stationary._extras import extra
from stationary.inference.base import Posterior, joint_of
from stationary.ood import TableModel
from stationary.predictive import Gaussian, Joint

with extra("bo"):
    from botorch.models.model import FantasizeMixin, Model
    from botorch.models.transforms.input import AffineInputTransform
    from botorch.posteriors import GPyTorchPosterior
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
    from gpytorch.kernels import Kernel, ScaleKernel
    from gpytorch.priors import LogNormalPrior
    from linear_operator import to_linear_operator


def with_priors(kernel: Kernel) -> Kernel:
    """A network's kernel times a scale, for a fit: the prior of its weight_std and bias_std is that they are near 1.

    It is log-normal with the parameters 0 and 1; without it a fit may run away. The length-scale of the activation
    stays, since only weights and biases in units of it matter.

    Examples:
        >>> kernel = with_priors(st.gp.kernel_of(st.Matern(2.5), normalize=True))
        >>> model = SingleTaskGP(X, Y, covar_module=kernel, input_transform=centred(X.shape[-1]))
    """
    for name in ("weight_std", "bias_std"):
        kernel.register_prior(f"{name}_prior", LogNormalPrior(0.0, 1.0), name)
    if kernel.has_lengthscale:
        kernel.raw_lengthscale.requires_grad_(False)
    return ScaleKernel(kernel)


def centred(dims: int, square: float = 1.0) -> AffineInputTransform:
    """From the unit cube to inputs around 0, where kernels of networks have their centre.

    Args:
        dims: number of inputs.
        square: mean over the cube of the sum of squares of the new inputs. At 1 a weight of standard deviation 1 means
            the same in any number of dimensions.
    """
    middle = torch.full((dims,), 0.5, dtype=torch.float64)
    scale = torch.full_like(middle, math.sqrt(dims / (12 * square)))  # 1 / 12 is the variance of each input
    return AffineInputTransform(dims, coefficient=scale, offset=middle)


class SurrogateModel(Model, FantasizeMixin):
    """A regression posterior as a ``Model`` of BoTorch, for its acquisition functions and ``optimize_acqf``.

    ``posterior(X)`` is the joint Gaussian of the outputs at the q points of each t-batch, differentiable in X through
    the network and the kernel. ``condition_on_observations`` and ``fantasize`` condition that Gaussian on targets, in
    closed form: for ``InfiniteWidth`` this is the Gaussian process with the new rows, for finite networks the Gaussian
    with their mean and covariance. Nothing is trained in it; when real observations have come, make it again from
    ``posterior.update(...)`` or ``fit``.

    Examples:
        >>> posterior = st.InfiniteWidth().posterior(torch.nn.Linear(2, 1).double(), (X, Y))
        >>> model = SurrogateModel(posterior)
        >>> candidates, _ = optimize_acqf(qLogExpectedImprovement(model, Y.max()), bounds, q=2, ...)

    Args:
        posterior: a regression posterior with a joint distribution: of ``InfiniteWidth``, ``ExactDropout``,
            ``Laplace``, ``MCDropout``, ``Ensemble`` or ``SWAG``, or one of these after ``calibrate``. Or a fitted
            ``StationaryRegressor``; the model then has the units of its table.
        num_outputs: number of targets.
        noise: variance of the noise that is added to the posterior's own; a number, or a tensor (m,).
    """

    likelihood: None = None  # fantasize asks for it; the noise is that of the posterior
    base: Any
    noise: float | Tensor
    outputs: list[int]  # those of the posterior's outputs that it is the model of
    n_columns: int
    seen: tuple[Tensor, Tensor, Tensor] | None  # inputs, targets and noise variances to condition on

    def __init__(self, posterior: Posterior | TableModel, *, num_outputs: int = 1, noise: float | Tensor = 0.0) -> None:
        super().__init__()
        kind: type[Any] = getattr(posterior, "family", Gaussian)
        if kind is not Gaussian:
            raise ValueError(
                f"posterior must be of a regression, got one of {kind.__name__}; its targets must be "
                "floating-point numbers"
            )
        if not is_count(num_outputs):
            raise ValueError(f"num_outputs must be a positive integer, got {num_outputs!r}")
        if not torch.as_tensor(noise).ge(0).all():
            raise ValueError(f"noise must be at least 0, got {noise!r}; pass the square of the standard deviation")
        self.base, self.noise = posterior, noise
        self.outputs = list(range(num_outputs))
        self.n_columns = num_outputs
        self.seen = None

    @property
    def num_outputs(self) -> int:
        """The number of targets."""
        return len(self.outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of the batch of observations that it is conditioned on."""
        return torch.Size() if self.seen is None else torch.broadcast_shapes(*(part.shape[:-2] for part in self.seen))

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """The joint Gaussian of the outputs at q points, for each t-batch of them.

        Args:
            X: (..., q, d) inputs.
            output_indices: the outputs that are wanted; by default all.
            observation_noise: whether to add the noise of the posterior; or variances (..., q, m) to add.
            posterior_transform: a ``PosteriorTransform`` of BoTorch.
        """
        if output_indices is not None:
            return self.subset_output(output_indices).posterior(X, None, observation_noise, posterior_transform)
        joint = self._given(X)
        covariance = joint.covariance
        if observation_noise is not False:
            noise = observation_noise if isinstance(observation_noise, Tensor) else joint.noise
            covariance = covariance + torch.diag_embed(noise.expand_as(joint.mean).mT)
        mean, covariance = joint.mean.mT.to(X), covariance.to(X)
        covariance = covariance.expand(*mean.shape, mean.shape[-1])
        if self.num_outputs == 1:
            result = GPyTorchPosterior(_gaussian(mean[..., 0, :], covariance[..., 0, :, :]))
        else:
            each = _gaussian(mean, covariance)
            result = GPyTorchPosterior(MultitaskMultivariateNormal.from_batch_mvn(each, task_dim=-1))
        return result if posterior_transform is None else posterior_transform(posterior=result, X=X)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> "SurrogateModel":
        """The model once the targets Y of the inputs X are known; its own numbers stay.

        Args:
            X: (..., k, d) inputs.
            Y: (..., k, m) targets, which may have more batches in front than X.
            noise: variances (..., k, m) of their noise; by default that of the posterior.
            kwargs: what BoTorch passes to other models; nothing is taken from it.
        """
        if X.shape[-2] != Y.shape[-2] or Y.shape[-1] != self.num_outputs:
            raise ValueError(
                f"Y must be (..., {X.shape[-2]}, {self.num_outputs}), a row for each input and a column for each "
                f"output; got {tuple(Y.shape)}"
            )
        new = X, Y, self._prior(X).noise if noise is None else noise
        seen = new if self.seen is None else tuple(_below(a, b) for a, b in zip(self.seen, new, strict=True))
        return self._changed(seen=seen)

    def subset_output(self, idcs: list[int]) -> "SurrogateModel":
        """The model of some of the outputs."""
        seen = self.seen and (self.seen[0], self.seen[1][..., idcs], self.seen[2][..., idcs])
        return self._changed(outputs=[self.outputs[i] for i in idcs], seen=seen)

    def _changed(self, **changes: Any) -> "SurrogateModel":
        other = copy.copy(self)
        for name, value in changes.items():
            setattr(other, name, value)
        return other

    def _prior(self, X: Tensor) -> Joint:
        """The joint at X (..., q, d), without the observations that were added."""
        *batch, q, d = X.shape
        joint = joint_of(self.base, X.reshape(-1, d), group_size=q).with_noise(self.noise)
        if joint.mean.shape[-1] != self.n_columns:
            raise ValueError(
                f"num_outputs must be the number of the posterior's outputs, {joint.mean.shape[-1]}; got "
                f"{self.n_columns}"
            )
        mean, noise = (part[..., self.outputs].reshape(*batch, q, -1) for part in (joint.mean, joint.noise))
        covariance = joint.covariance[:, self.outputs]
        return Joint(mean, covariance.reshape(*batch, *covariance.shape[1:]), noise)

    def _given(self, X: Tensor) -> Joint:
        """The joint at X, given the observations."""
        if self.seen is None:
            return self._prior(X)
        inputs, targets, noise = self.seen
        k, joint = inputs.shape[-2], self._prior(_below(inputs.to(X), X))
        noises = _below(noise.to(joint.noise), joint.noise[..., k:, :])
        return Joint(joint.mean, joint.covariance, noises).given(targets.to(joint.mean))


def _gaussian(mean: Tensor, covariance: Tensor) -> Any:
    """The distribution, whose covariance may be singular by rounding: GPyTorch raises the diagonal where it has to."""
    return MultivariateNormal(mean, to_linear_operator(covariance))


def _below(first: Tensor, second: Tensor) -> Tensor:
    """Rows (..., k, d) and (..., q, d) as (..., k + q, d), with the batches of both."""
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    return torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (first, second)], -2)
