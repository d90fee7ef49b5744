"""The posterior as one plain network, for deployment: matrix products alone, since ONNX has no triangular solve."""

from copy import deepcopy

from torch import Tensor, nn

from stationary.inference.infinite_width._basis import Products
from stationary.inference.infinite_width._geometry import Geometry
from stationary.inference.infinite_width._outputs import mixed
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
    heads = [LimitHead(each) for each in (posterior, *posterior.draws)]
    head: nn.Module = LimitHeads(heads) if posterior.draws else heads[0]
    if place.side != "input":
        return LimitNetwork(network, place, head).eval()
    if not place.name:
        return head.eval()
    network.set_submodule(place.name, head)
    return network.eval()


class LimitHead(nn.Module):
    """The head of infinite width with its closed form, in float64; its outputs have the dtype of the features.

    It is made of matrix products, as ``Products`` says.
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
        weights, roots, variance = Products.of(basis, posterior.mean, posterior.root, numbers.variance)
        tensors = {  # no name of an operator, such as mean: the exporter to ONNX gives these to its nodes
            "inducing": basis.inducing,
            "lengthscale": basis.lengthscale,
            "shift": posterior.geometry.shift,
            "scale": posterior.geometry.scale,
            "offset": numbers.offset,
            "weights": weights,
            "prior_variance": variance,
            "roots": roots,
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = flat(x)
        u = Geometry(self.geometry, self.shift, self.scale)(z)
        similarity = gram(self.kernel, u / self.lengthscale, self.inducing / self.lengthscale)
        mean, variance = Products(self.weights, self.roots, self.prior_variance)(similarity)
        return (mean + self.offset).to(z), variance.sqrt().expand_as(mean).to(z)


class LimitHeads(nn.Module):
    """Heads of other numbers, over which the mean and the standard deviation of the outputs are taken."""

    heads: nn.ModuleList

    def __init__(self, heads: list[LimitHead]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        every = [head(x) for head in self.heads]
        mean, variance = mixed([(mean, std.square()) for mean, std in every])
        return mean, variance.sqrt()


class LimitNetwork(nn.Module):
    """A network whose features are read on the way, and a head that takes them; the network's own output is not used.

    Args:
        network: the network.
        place: where the features are.
        head: the head.
    """

    network: nn.Module
    place: Place
    head: nn.Module
    reader: nn.Module | None

    def __init__(self, network: nn.Module, place: Place, head: nn.Module) -> None:
        super().__init__()
        self.network, self.place, self.head = network, place, head
        self.reader = place.read if isinstance(place.read, nn.Module) else None

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.head(read(self.network, self.place, x))
        return result
