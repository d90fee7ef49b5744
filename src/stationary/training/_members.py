"""Networks in training: one as it is, or several as one, by ``vmap`` over their stacked parameters."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from stationary.nn.masks import Random, draw_shape, drawing, drawn, masked, masking
from stationary.nn.running import Inputs, call, outputs_of
from stationary.training.config import Training
from stationary.training.data import REAL, Rows
from stationary.training.losses import beta_nll

Named: TypeAlias = dict[str, Tensor]


class Losses(nn.Module):
    """A network together with its loss: inputs (n, ...) and their targets give the losses (n,).

    Args:
        model: the network.
        training: the configuration, which names the loss, its label smoothing or beta, and the precision.
    """

    def __init__(self, model: nn.Module, training: Training) -> None:
        super().__init__()
        self.model, self.loss, self.precision = model, training.loss, training.precision
        self.smoothing, self.beta = training.label_smoothing, training.beta

    def forward(self, x: Inputs, y: Tensor) -> Tensor:
        with self.autocast(y.device):
            if self.loss == "own":
                return self.model.losses(x, y)  # type: ignore[operator]
            outputs = call(self.model, x)
        return self.of_outputs(outputs if self.loss == "beta_nll" else outputs_of(outputs), y)

    def of_outputs(self, outputs: Any, y: Tensor) -> Tensor:
        """The losses (n,) of outputs (n, c), for "beta_nll" of a pair of mean and noise variance."""
        if self.loss == "beta_nll":
            mean, variance = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in outputs)
            return beta_nll(mean, y, variance, beta=self.beta if self.training else 0.0).mean(-1)
        if self.loss == "cross_entropy":
            logits = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            return F.cross_entropy(logits, y, reduction="none", label_smoothing=self.smoothing)
        return (outputs - y).square().mean(-1)

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


class Trainees:
    """The networks in training.

    Args:
        models: the networks; ``finished`` writes the trained weights into them.
        seeds: one seed for each network, of the order of its data and of its masks.
        device: device the networks are on.
        training: the configuration of the training.
        stacked: whether the networks run as one, with copies of their parameters stacked along a new first dimension.
            Otherwise there is a single network, whose own parameters are trained.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        seeds: Sequence[int],
        device: torch.device,
        training: Training,
        *,
        stacked: bool = True,
    ) -> None:
        self.models, self.seeds, self.stacked, self.device = list(models), list(seeds), stacked, device
        state: tuple[Named, Named] = stack_module_state(self.models) if stacked else _state(self.models[0])
        self.parameters, self.buffers = state
        self.still = [module for model in self.models for module in model.modules() if not module.training]
        self.drawing = drawing(self.models[0])
        self.losses = Losses(self.models[0], training)
        self.orders = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        mask_seeds = [int(torch.randint(2**62, (), generator=order, device=device)) for order in self.orders]
        self.masks = [torch.Generator(device).manual_seed(seed) for seed in mask_seeds]
        self.found: dict[torch.Size, list[tuple[str, Random, tuple[int, ...]]]] = {}

    # Data

    def hold_out(self, data: Rows, fraction: float) -> tuple[Rows, Rows]:
        """The data in two parts: for training, and for validation a random fraction, which each member draws itself."""
        n = data.rows.shape[1]
        held_out = max(1, round(fraction * n))
        if held_out == n:
            raise ValueError(
                f"validation_fraction must leave rows to train on, got {fraction} of {n} rows; lower it, or pass "
                "validation=(x, y)"
            )
        rows = self.shuffled(data)
        return (
            data._replace(rows=rows[:, held_out:], counts=(n - held_out,)),
            data._replace(rows=rows[:, :held_out], counts=(held_out,)),
        )

    def shuffled(self, data: Rows) -> Tensor:
        """Each member's rows in an order that its own generator draws."""
        k, device = len(self.models), data.rows.device
        rows, counts = data.rows.expand(k, -1), data.counts * (k // len(data.counts))
        orders = [torch.randperm(n, generator=g, device=device) for n, g in zip(counts, self.orders, strict=True)]
        rest = torch.arange(rows.shape[1], device=device)
        return rows.gather(1, torch.stack([torch.cat([order, rest[len(order) :]]) for order in orders]))

    # Passes

    def sums(self, x: Any, y: Tensor, weight: Tensor, *, dropout: bool) -> tuple[Tensor, Tensor]:
        """The weighted losses and the weights, summed over one batch of each member: (K,) each.

        Args:
            x, y, weight: inputs, targets and weights of the batch: (K, b, ...) for stacked members, (b, ...) for a
                network by itself.
            dropout: whether to draw dropout masks.
        """
        if self.stacked:
            losses = vmap(self._member)(self.parameters, self.buffers, x, y, self.draws(x[0]) if dropout else [])
            return (losses * weight).sum(1), weight.sum(1)
        with masking(self.drawing, self._draw) if dropout else nullcontext():
            losses = self.losses(x, y)
        return (losses * weight).sum()[None], weight.sum()[None]

    def _member(self, parameters: Named, buffers: Named, x: Tensor, y: Tensor, draws: list[Tensor]) -> Tensor:
        remaining = iter(draws)
        with masked(self.models[0], lambda *_: next(remaining)) if draws else nullcontext():
            return functional_call(self.losses, (within(parameters), within(buffers)), (x, y))

    # Randomness

    def _draw(self, module: Random, x: Tensor) -> Tensor:
        return drawn(module, draw_shape(module, x, shared=False), self.masks[0])

    def draws(self, x: Tensor) -> list[Tensor]:
        """Masks and noise of all members for one batch, in the order in which the modules use them."""
        return [torch.stack([drawn(m, shape, generator) for generator in self.masks]) for _, m, shape in self.calls(x)]

    def calls(self, x: Tensor) -> list[tuple[str, Random, tuple[int, ...]]]:
        """The name of each module that draws in a pass over one member's batch, the module, and the shape it draws."""
        if x.shape not in self.found:
            names = {module: name for name, module in self.models[0].named_modules()}
            found = self.found[x.shape] = []

            def note(module: Random, x: Tensor) -> Tensor:
                found.append((names[module], module, draw_shape(module, x, shared=False)))
                return torch.ones(found[-1][2], dtype=x.dtype, device=x.device)

            with torch.no_grad(), masked(self.models[0], note):
                self.losses(x, self._targets(x))
        return self.found[x.shape]

    def _targets(self, x: Tensor) -> Tensor:
        """Zeros that can stand for the targets of x in a trial pass."""
        if self.losses.loss in REAL:
            return x.new_zeros(1, 1)
        return torch.zeros(len(x), dtype=torch.long, device=x.device)

    # State

    def run_as_one(self, x: Tensor) -> bool:
        """Whether ``vmap`` can run the networks, and a training pass leaves their buffers alone."""
        before = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.set_mode(training=True)
        k = len(self.models)
        try:
            with torch.no_grad():
                y = self._targets(x)
                vmap(self._member)(self.parameters, self.buffers, x.expand(k, *x.shape), y.expand(k, *y.shape), [])
        except RuntimeError:  # what vmap cannot do: random numbers, control flow that depends on data, too much memory
            return False
        return all(torch.equal(buffer, before[name]) for name, buffer in self.buffers.items())

    def set_mode(self, *, training: bool) -> None:
        """Put the networks in train or eval mode; modules that draw, or came in eval mode, stay in eval mode."""
        for model in self.models:
            model.train(training)
            for random in drawing(model):
                random.eval()  # its masks or numbers are given by hooks
        self.losses.training = training
        for module in self.still:
            module.training = False  # not eval(), which would take its parts along, such as a new head

    def state(self, k: int) -> Named:
        """The parameters and buffers of member k by name, not copied."""
        state = self.parameters | self.buffers
        return {name: value[k] for name, value in state.items()} if self.stacked else state

    def parameters_of(self, k: int) -> Named:
        """The parameters of member k by name, not copied."""
        return {name: value[k] for name, value in self.parameters.items()} if self.stacked else self.parameters

    def finished(self, states: list[Named]) -> list[nn.Module]:
        """The networks with these parameters and buffers, in eval mode; an empty state means the present one."""
        for k, model in enumerate(self.models):
            load(model, states[k] or self.state(k))
        return [model.eval() for model in self.models]


class Best:
    """The state of each member at its lowest validation loss, and which members still train.

    Args:
        n_members: number of members.
        patience: number of epochs without a lower validation loss after which a member stops; None for never.
    """

    def __init__(self, n_members: int, patience: int | None) -> None:
        self.patience, self.running = patience, list(range(n_members))
        self.losses, self.waited = [math.inf] * n_members, [0] * n_members
        self.states: list[Named] = [{}] * n_members

    def mean_of_running(self, losses: list[float] | None) -> float | None:
        """The mean loss of the members that still train; None for None."""
        return None if losses is None else fmean(losses[k] for k in self.running)

    def update(self, losses: list[float], members: Trainees) -> bool:
        """Take in the validation losses of an epoch, and return whether any member still trains."""
        if self.patience is None:
            return True
        for k in self.running:
            self.waited[k] += 1
            if losses[k] < self.losses[k]:
                self.losses[k], self.waited[k] = losses[k], 0
                self.states[k] = {name: value.detach().clone() for name, value in members.state(k).items()}
        self.running = [k for k in self.running if self.waited[k] < self.patience]
        return bool(self.running)


def _state(model: nn.Module) -> tuple[Named, Named]:
    return dict(model.named_parameters()), dict(model.named_buffers())


@torch.no_grad()
def load(model: nn.Module, state: Named) -> None:
    """Copy these parameters and buffers into those of the model."""
    parameters, buffers = _state(model)
    for name, value in (parameters | buffers).items():
        value.copy_(state[name])


def within(state: Named) -> Named:
    """The same state under the names that parameters and buffers have in ``Losses``."""
    return {f"model.{name}": value for name, value in state.items()}
