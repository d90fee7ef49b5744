"""The posterior as one plain network, for deployment: matrix products alone, since ONNX has no triangular solve."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from stationary.inference.infinite_width._geometry import Geometry
from stationary.inference.infinite_width._trunk import Place, flat, read
from stationary.inference.infinite_width.posterior import InfiniteWidthPosterior
from stationary.nn.running import Inputs
from stationary.theory.isotropic import gram


def predictor(posterior: InfiniteWidthPosterior) -> nn.Module:
    """A network that returns the mean (n, c) and the standard deviation (n, c) of the outputs; see exact_predictor."""
    [network] = posterior.networks
    place = posterior.place
    posterior.fingerprint.check(network, place)
    owner = getattr(place.read, "__self__", place.read)
    if place.side == "function" and not isinstance(owner, nn.Module):
        raise ValueError(
            f"features must be the name of a module, a module or a method of one for export, got {place.read!r}, whose "
            "weights cannot be found; make the posterior with InfiniteWidth(features=...) in one of these forms"
        )
    network, place = deepcopy((network, place))  # in one go, so that a method belongs to the copy
    head = LimitHead(posterior)
    if place.side != "input":
        return LimitNetwork(network, place, head).eval()
    if not place.name:
        return head.eval()
    network.set_submodule(place.name, head)
    return network.eval()


class LimitHead(nn.Module):
    """The head of infinite width with its closed form, in float64; what comes out has the dtype of the features.

    With the similarities k = kappa(u, Z), the mean is k A + b and the variance s^2 - |k B|^2, where A = L^-T W and
    B B^T = L^-T (s^2 I - H^-1) L^-1. These products lose less to rounding than phi = L^-1 k and its two norms: where L
    has a condition of 1e8, 2e-10 of a standard deviation instead of 3e-7.
    """

    kernel: str
    geometry: str
    inducing: Tensor
    lengthscale: Tensor
    shift: Tensor
    scale: Tensor
    offset: Tensor
    weights: Tensor
    prior_variance: Tensor
    roots: Tensor

    def __init__(self, posterior: InfiniteWidthPosterior) -> None:
        super().__init__()
        basis, numbers = posterior.basis, posterior.numbers
        self.kernel, self.geometry = basis.kernel, posterior.geometry.name
        eye = torch.eye(basis.size).to(basis.factor)
        inverse = torch.linalg.solve_triangular(basis.factor, eye, upper=False)
        variance = torch.as_tensor(numbers.variance).to(eye).reshape(-1)
        precisions = posterior.root if posterior.root.ndim == 3 else posterior.root[None]
        roots = []
        for s2, root in zip(variance.expand(len(precisions)), precisions, strict=True):
            values, vectors = torch.linalg.eigh(s2 * eye - torch.cholesky_inverse(root))
            roots.append(inverse.mT @ (vectors * values.clamp(min=0).sqrt()))
        tensors = {  # no name of an operator, such as mean: the exporter to ONNX gives these to its nodes
            "inducing": basis.inducing,
            "lengthscale": basis.lengthscale,
            "shift": posterior.geometry.shift,
            "scale": posterior.geometry.scale,
            "offset": numbers.offset,
            "weights": inverse.mT @ posterior.mean,
            "prior_variance": variance,
            "roots": torch.stack(roots),
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = flat(x)
        u = Geometry(self.geometry, self.shift, self.scale)(z)
        similarity = gram(self.kernel, u / self.lengthscale, self.inducing / self.lengthscale)
        mean = similarity @ self.weights + self.offset
        seen = torch.stack([(similarity @ root).square().sum(-1) for root in self.roots], -1)
        std = (self.prior_variance - seen).clamp(min=0).sqrt().expand_as(mean)
        return mean.to(z), std.to(z)


class LimitNetwork(nn.Module):
    """A network whose features are read on the way, and a head that takes them; the network's own output is not used.

    Args:
        network: the network.
        place: where the features are.
        head: the head.
    """

    network: nn.Module
    place: Place
    head: LimitHead
    reader: nn.Module | None

    def __init__(self, network: nn.Module, place: Place, head: LimitHead) -> None:
        super().__init__()
        self.network, self.place, self.head = network, place, head
        self.reader = place.read if isinstance(place.read, nn.Module) else None

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.head(read(self.network, self.place, x))
        return result
