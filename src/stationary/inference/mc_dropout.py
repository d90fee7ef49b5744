"""MC dropout (Gal and Ghahramani, 2016), with everything before the first dropout run once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stationary.inference._readout import Readout, Replay, check_dropout, find_readout
from stationary.inference._replay import of_network
from stationary.inference.base import Method, Networks, only_network
from stationary.nn.masks import Random, draw_shape, drawn, keep_mask
from stationary.nn.running import Inputs, evaluating
from stationary.predictive import CHUNK, NODES, Categorical, Members, P
from stationary.training import Data


@dataclass(frozen=True)
class MCDropout(Method):
    """The members of the posterior are the network with random dropout masks.

    Args:
        n_samples: number of dropout masks to draw, at least 2.
        shared_masks: whether a mask drops the same units for every input of a call, which is fast, and makes each
            member a smooth function of the input. Otherwise every input gets masks of its own.
        last_layer: whether to sample only the dropout before the last linear layer, with the other dropout layers off.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data. By default it
            is added where ``calibrate_prior`` was called; True makes it an error where it was not, False leaves it out.
        seed: seed of the masks; the same seed gives the same prediction.
    """

    n_samples: int = 100
    shared_masks: bool = True
    last_layer: bool = False
    restore_prior: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.n_samples, int) or self.n_samples < 2:
            raise ValueError(f"n_samples must be at least 2, got {self.n_samples!r}; use Point() for a single pass")

    def check(self, network: nn.Module, *, sample_weight: Tensor | None = None) -> None:
        check_dropout(network)

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "MCDropoutPosterior":
        return MCDropoutPosterior(self, (only_network(networks, self),))


@dataclass(frozen=True)
class MCDropoutPosterior:
    """One trained network, which predicts with random dropout masks."""

    method: MCDropout
    networks: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        predicted: Callable[[Inputs], tuple[Any, bool]] = partial(self._predicted, family, keep_samples)
        return of_network(self.networks[0], (self.method, family, keep_samples), predicted, x)

    def _predicted(self, family: type[P], keep_samples: bool, x: Inputs) -> tuple[P | Categorical, bool]:
        """The prediction, and whether it was made by kernels that wait for nothing on a GPU."""
        method, [network] = self.method, self.networks
        with evaluating(network):
            readout = find_readout(network, x, last_layer=method.last_layer, restore_prior=method.restore_prior)
            if readout is not None and family is Categorical and not keep_samples and has_kernel(readout):
                return sample_fused(readout, method), True
            members = self.replayed(x) if readout is None else sample_readout(readout, method)
            return family.from_members(members, method.n_samples, keep_samples=keep_samples), False

    def replayed(self, x: Inputs) -> Iterator[Members]:
        """The samples of a network with dropout anywhere; the network must be in eval mode."""
        method = self.method
        replay, generator = Replay(self.networks[0], x, method.restore_prior), None

        def draw(module: Random, x: Tensor) -> Tensor:
            nonlocal generator
            generator = generator or torch.Generator(x.device).manual_seed(method.seed)
            return drawn(module, draw_shape(module, x, shared=method.shared_masks), generator, x.dtype)

        for _ in range(method.n_samples):
            yield replay.sample(draw)


def sample_readout(readout: Readout, method: MCDropout) -> Iterator[Members]:
    """All samples of the last layer as matrix products, in chunks that fit the cache."""
    features, (weight, bias) = readout.features, readout.whole()
    weight, (n, hidden), c = weight / (1 - readout.drop), features.shape, len(weight)
    generator = torch.Generator(features.device).manual_seed(method.seed)
    columns = features.T.contiguous()
    work = n * c if method.shared_masks else n * max(c, hidden)
    chunk = 4 * max(1, CHUNK // (4 * work))  # a multiple of 4: masks cut from 64 bits then do not depend on the chunks
    for start in range(0, method.n_samples, chunk):
        s = min(chunk, method.n_samples - start)
        if method.shared_masks:
            keep = keep_mask((s, 1, hidden), readout.drop, generator, weight.dtype)
            outputs = ((weight * keep).view(s * c, hidden) @ columns).view(s, c, n)
        else:
            keep = keep_mask((s, hidden, n), readout.drop, generator, weight.dtype)
            outputs = weight.expand(s, c, hidden) @ (columns * keep)
        yield readout.sampled((outputs + bias[:, None]).mT)


def has_kernel(readout: Readout) -> bool:
    """Whether the fused kernel can sample this readout: it must be float32, on CUDA, and not too wide."""
    if not readout.fusible:
        return False
    from stationary.inference import _dropout_triton as kernel

    return readout.features.shape[1] <= kernel.MAX_HIDDEN and len(readout.weight) <= kernel.MAX_CLASSES


def sample_fused(readout: Readout, method: MCDropout) -> Categorical:
    """The statistics of all samples in one launch on a GPU; its masks differ from those of ``sample_readout``."""
    from stationary.inference import _dropout_triton as kernel

    prior = None if readout.members.prior is None else readout.members.prior[0].contiguous()
    samples = (
        method.n_samples if prior is None else max(method.n_samples, NODES)
    )  # as ``Categorical.from_members`` takes them
    nodes = None if prior is None else kernel.nodes_on(prior.device, samples, len(readout.weight))
    return Categorical(
        *kernel.launch(
            readout.features,
            readout.weight,
            readout.bias,
            readout.drop,
            n_samples=samples,
            shared=method.shared_masks,
            seed=method.seed,
            prior=prior,
            nodes=nodes,
        ),
        prior_restored=prior is not None,
    )
