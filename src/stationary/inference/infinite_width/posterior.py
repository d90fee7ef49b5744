"""The posterior: how it predicts, learns more and explains itself."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stationary._checks import is_count
from stationary.inference._replay import Replayed
from stationary.inference.infinite_width import _classes, _values
from stationary.inference.infinite_width._basis import Basis, Passes, Products, at_a_time, greedy
from stationary.inference.infinite_width._geometry import Geometry
from stationary.inference.infinite_width._joint import joint_moments
from stationary.inference.infinite_width._journal import Journal
from stationary.inference.infinite_width._numbers import Numbers
from stationary.inference.infinite_width._outputs import at_least_tiny, mixed, of_classes, probs_of
from stationary.inference.infinite_width._sums import Total, alone
from stationary.inference.infinite_width._trunk import Fingerprint, Place, Rows, check_labels, collect, read
from stationary.nn.inputs import prepared
from stationary.nn.running import Batches, Inputs, batches, evaluating, wants_gradients
from stationary.predictive import Bernoulli, Categorical, Gaussian, Joint, P, grouped
from stationary.training import Data

if TYPE_CHECKING:
    from stationary.inference.infinite_width.method import InfiniteWidth

MANY, FEWER, ROUGH = 5000, 16, 1e-3  # a fit of 80,000 rows or more starts where a rough one of every 16th row ends
COMPUTED = ("_products", "_replayed", "_untempered")  # what a copy computes again
UNSEEN = 0.1  # share of the prior variance that a new row must show for it to become an inducing input


class Neighbours(NamedTuple):
    """The training rows that an answer rests on.

    Attributes:
        rows: (n, k) their numbers, the most similar first.
        similarity: (n, k) the kernel's correlation between the input and the row, from 0 to 1.
    """

    rows: Tensor
    similarity: Tensor


@dataclass(frozen=True)
class InfiniteWidthPosterior:
    """A trained network whose head is replaced by its limit of infinite width; ``InfiniteWidth`` makes it.

    Args:
        method: the method that made it.
        networks: the trained network, as a tuple of one.
        family: kind of its predictions: ``Categorical``, ``Bernoulli`` or ``Gaussian``.
        numbers: length-scale, variance, temperature, noise and prior mean, as given or chosen.
        validation_rows: numbers by which the validation rows that chose them are known again; None without any.
        draws: the posteriors of other numbers, which predictions of a regression average over.
    """

    method: "InfiniteWidth"
    networks: tuple[nn.Module, ...]
    place: Place
    fingerprint: Fingerprint
    geometry: Geometry
    basis: Basis
    numbers: Numbers
    family: type[Any]
    mean: Tensor  # (M, c)
    root: Tensor  # (M, M), or (c, M, M)
    rows: Rows | None
    validation_rows: Tensor | None = None
    draws: tuple["InfiniteWidthPosterior", ...] = ()

    @classmethod
    def fitted(
        cls,
        method: "InfiniteWidth",
        network: nn.Module,
        place: Place,
        fingerprint: Fingerprint,
        geometry: Geometry,
        basis: Basis,
        numbers: Numbers,
        family: type[Any],
        rows: Rows,
        validation_rows: Tensor | None = None,
        total: Total = alone,
        start: Tensor | None = None,
        nearby: Tensor | None = None,
        prior: Tensor | None = None,
        journal: Journal | None = None,
    ) -> "InfiniteWidthPosterior":
        """The posterior of these rows, by one solve."""
        journal = journal or Journal(None)
        passes = Passes(basis, lambda some: geometry(rows.z[some]), len(rows), method.memory)
        if family is Gaussian:
            noise = numbers.noise_at(geometry(rows.z))
            values = _values.solve(passes, rows.y - numbers.offset, rows.weight, numbers.variance, noise, total)
            mean, root = values.mean, values.root
        else:
            task = _classes.Task(passes, rows.y, rows.weight, numbers.variance, numbers.offset, total, prior)
            if start is None and len(rows) >= MANY * FEWER and not method.distributed:
                few = rows[torch.arange(0, len(rows), FEWER)]
                passes = Passes(basis, lambda some: geometry(few.z[some]), len(few), method.memory)
                near = replace(task, passes=passes, targets=few.y, weight=FEWER * few.weight)
                start = journal.step(lambda: {"mean": _classes.solve(near, None, ROUGH).mean})["mean"]
            solved = journal.step(
                lambda: _classes.solve(task, start, nearby=nearby, journal=journal).tensors, last=True
            )
            mean, root = solved["mean"], solved["root"]
            numbers = replace(numbers, variance=task.prior_variance)
        return cls(
            method, (network,), place, fingerprint, geometry, basis, numbers, family, mean, root, rows, validation_rows
        )

    # Prediction

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        if keep_samples:
            raise ValueError(
                "keep_samples must be False for InfiniteWidth, which takes no samples; got True: sample from the mean "
                "and variance of the prediction's outputs"
            )
        if family is not self.family:
            raise ValueError(
                f"family must be {self.family.__name__} for this posterior, whose targets were such; got "
                f"{family.__name__}: leave it out"
            )
        z = self._features(x)
        # integrals and solves wait for the GPU
        waits = self.family is Bernoulli or self.numbers.input_noise is not None
        return self._replayed(self._of_features, z) if z.is_cuda and not waits else self._of_features(z)

    def _of_features(self, z: Tensor) -> Any:
        u = self._place_of(z)
        noise = self._noise_at(u) if self.family is Gaussian else None
        return self._prediction(*self._moments(u), noise, z)

    @cached_property
    def _replayed(self) -> Replayed[Any]:
        return Replayed()

    def _prediction(self, mean: Tensor, variance: Tensor, noise: Tensor | None, like: Tensor) -> Any:
        """The prediction of outputs with this mean, for classes without their prior mean, this variance and noise."""
        if self.family is Gaussian:
            assert noise is not None
            return Gaussian(*(part.to(like) for part in (mean, variance, noise.expand_as(mean))))
        offset, temperature = self.numbers.offset, self.numbers.temperature
        if temperature == 1:
            kept = (pred := of_classes(mean, variance, offset)).tensors()
        else:  # the variance and the mutual information are the posterior's own
            pred = of_classes(mean.repeat(2, 1), torch.cat([temperature * variance, variance]), offset)
            kept = {name: each[: len(mean)] for name, each in pred.tensors().items()}
            kept |= {"output_variance": variance.expand_as(mean), "information": pred.mutual_information()[len(mean) :]}
        made = {name: each.to(like) for name, each in kept.items()}
        return replace(pred, **made | {"probs": at_least_tiny(made["probs"])})

    def untempered(self) -> "InfiniteWidthPosterior":
        """The same posterior at temperature 1, whose variance and mutual information are its own."""
        return self if self.numbers.temperature == 1 else self._untempered

    @cached_property
    def _untempered(self) -> "InfiniteWidthPosterior":
        return replace(self, numbers=replace(self.numbers, temperature=1.0))

    def prior(self) -> Any:
        """The prediction far from all data, of one input."""
        outputs = len(self.numbers.offset)
        every = [torch.as_tensor(each.numbers.variance).to(self.mean).expand(outputs) for each in self._every]
        variance = torch.stack(every).mean(0)[None]
        alike = self.family is Categorical
        mean = self.numbers.offset[None] if self.family is Gaussian else torch.zeros_like(self.mean[:1])
        noise = self._noise_at(self.mean) if self.draws else self.numbers.noise
        return self._prediction(mean, variance[:, :1] if alike else variance, noise, self.mean)

    def moments(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """The mean (n, c) and variance (n, c) of the outputs at a batch of inputs, in float64, at temperature 1."""
        mean, variance = self._moments(self._place_of(self._features(x)))
        if self.family is not Gaussian:
            mean = mean + self.numbers.offset
        return mean, variance.expand_as(mean)

    def output_mean(self, x: Inputs) -> Tensor:
        """The mean (n, c) of the outputs alone, without the n M^2 operations of the variance."""
        u = self._place_of(self._features(x))
        some = u.split(at_a_time(u, self.basis.size))
        every = [[each.basis.similarity(part) @ each._products.weights for part in some] for each in self._every]
        return torch.stack([torch.cat(parts) for parts in every]).mean(0) + self.numbers.offset

    def probs(self, x: Inputs) -> Tensor:
        """The probabilities (n, c) of classes alone, without a second integral for their mutual information."""
        z = self._features(x)
        return probs_of(*self._moments(self._place_of(z)), self.numbers.offset, self.numbers.temperature, z)

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """The joint distribution of the outputs at all rows of x, in float64, at temperature 1; differentiable in x.

        With phi and H of the posterior, the outputs at the places u and u' of two rows have the covariance
        phi(u)^T H^-1 phi(u') + s^2 (kappa(u, u') - phi(u)^T phi(u')). For classes it is that of the outputs before the
        softmax, the same for every class.

        Args:
            x: one batch of inputs.
            group_size: number of consecutive rows in a group, each with a joint distribution of its own; None takes
                all rows together.
        """
        x = prepared(x, self.networks[0])
        u = self._place_of(self._features(x, gradients=wants_gradients(x)))
        at = grouped(u, group_size)
        every = [joint_moments(each.basis, each.mean, each.root, at, each.numbers.variance) for each in self._every]
        mean, covariance = every[0]
        if self.draws:
            means, covariances = (torch.stack(parts) for parts in zip(*every, strict=True))
            mean = means.mean(0)
            apart = (means - mean).movedim(0, -1).transpose(-3, -2) / len(every) ** 0.5  # (..., c, n, draws)
            covariance = covariances.mean(0) + apart @ apart.mT
        mean = mean + self.numbers.offset
        if self.family is not Gaussian:
            return Joint(mean, covariance, torch.zeros_like(mean))
        noise = self._noise_at(u).expand(len(u), mean.shape[-1])
        return Joint(mean, covariance, grouped(noise, group_size))

    def _features(self, x: Inputs, *, gradients: bool = False) -> Tensor:
        [network] = self.networks
        with evaluating(network, gradients=gradients):
            z = read(network, self.place, x)
        self.fingerprint.check(network, self.place)  # a GPU computes the features meanwhile
        return z

    def _place_of(self, z: Tensor) -> Tensor:
        columns = self.basis.inducing.shape[1] - (self.geometry.name == "polar")  # which has one more, for the length
        if z.shape[1] != columns:  # a single one would be taken for all
            raise ValueError(
                f"inputs must give {columns} features in each row, as the training rows do; got {z.shape[1]}: look at "
                "the shape of x, whose first dimension is that of the inputs"
            )
        return self.geometry(z.to(self.basis.factor.device))

    def _moments(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The mean (n, c) of the outputs, for classes without their prior mean, and the variance (n, 1) or (n, c)."""
        parts = [self._products(self.basis.similarity(some)) for some in u.split(at_a_time(u, self.basis.size))]
        mean, variance = (torch.cat(each) for each in zip(*parts, strict=True))
        mean = mean + self.numbers.offset if self.family is Gaussian else mean
        return mixed([(mean, variance), *(each._moments(u) for each in self.draws)]) if self.draws else (mean, variance)

    def _noise_at(self, u: Tensor) -> Tensor:
        """The noise variances of real values at places (n, d): (m,), or (n, m) where they depend on it."""
        return torch.stack([each.numbers.noise_at(u) for each in self._every]).mean(0)

    @property
    def _every(self) -> tuple["InfiniteWidthPosterior", ...]:
        return (self, *self.draws)

    @cached_property
    def _products(self) -> Products:
        return Products.of(self.basis, self.mean, self.root, self.numbers.variance)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in COMPUTED}

    # More data

    def update(
        self, data: Data, *, sample_weight: Tensor | None = None, max_new_inducing: int | None = None
    ) -> "InfiniteWidthPosterior":
        """The posterior of the old rows and these; length-scale, variance and temperature stay.

        Rows that the present inducing inputs hardly see become inducing inputs, so that new regions are learnt. Class
        indices beyond the present ones are new classes.

        Args:
            data: more training data, a pair of tensors or batches of (x, y).
            sample_weight: (n,) weights of the rows.
            max_new_inducing: largest number of inducing inputs to add; None is the method's ``n_inducing``, 0 keeps
                them fixed, and then a region without any is never learnt.
        """
        if self.rows is None:
            raise ValueError(
                "update needs the training rows, which this posterior was saved without; save it with rows=True"
            )
        if self.method.prior_mean == "network":
            raise ValueError(
                "update must be of a posterior whose prior_mean is not 'network', which has not seen the new rows; got "
                "'network': train it on them too, and make the posterior again"
            )
        if self.method.class_weight is not None:
            raise ValueError(
                f"update must be of a posterior without class_weight, whose weights depend on all rows; got "
                f"{self.method.class_weight!r}: make the posterior again, or use sample_weight"
            )
        if self.method.distributed:
            raise ValueError("update must be called where distributed=False; make the posterior of all rows again")
        most = self.method.n_inducing if max_new_inducing is None else max_new_inducing
        if most != 0 and not is_count(most):
            raise ValueError(f"max_new_inducing must be an integer from 0 or None, got {max_new_inducing!r}")
        [network] = self.networks
        self.fingerprint.check(network, self.place)
        new, _ = collect(network, self.place, data, sample_weight=sample_weight, batch_size=self.method.batch_size)
        return self._grown(new.to(self.basis.factor.device), most)

    def _grown(self, new: Rows, most: int) -> "InfiniteWidthPosterior":
        """The posterior with new rows, and at most so many new inducing inputs."""
        numbers, mean, rows = self._with_classes(new)
        u = self.geometry(new.z)
        chosen = greedy(self.basis, u, most, UNSEEN)
        basis = self.basis.extended(u[chosen]) if len(chosen) else self.basis
        start = torch.cat([mean, mean.new_zeros(len(chosen), mean.shape[1])])  # the old features stay what they were
        made = InfiniteWidthPosterior.fitted(
            self.method,
            self.networks[0],
            self.place,
            self.fingerprint,
            self.geometry,
            basis,
            numbers,
            self.family,
            rows,
            self.validation_rows,
            start=None if self.family is Gaussian else start,
        )
        return replace(made, draws=tuple(replace(each._grown(new, most), rows=rows) for each in self.draws))

    def _with_classes(self, new: Rows) -> tuple[Numbers, Tensor, Rows]:
        """The numbers and the mean with a column for each class among old and new targets, and all rows."""
        y = new.y.reshape(len(new), -1).double() if self.family is Gaussian else new.y
        if y.is_floating_point() != (self.family is Gaussian) or y.shape[1:] != self._rows().y.shape[1:]:
            raise ValueError(
                f"data must have targets like those before, {tuple(self._rows().y.shape[1:])} for each row; got "
                f"{tuple(y.shape[1:])} {y.dtype}"
            )
        if self.family is Bernoulli:
            check_labels(y, "data")
        rows, mean, offset = self._rows() + replace(new, y=y), self.mean, self.numbers.offset
        if self.family is Categorical:
            if y.min() < 0:
                raise ValueError(f"data must have class indices 0, 1, ...; got {int(y.min())}")
            more = max(0, int(y.max()) + 1 - len(offset))
            offset, mean = torch.cat([offset, offset.new_zeros(more)]), F.pad(mean, (0, more))
        if self.family is not Gaussian and self.method.prior_mean == "frequencies":
            offset = _classes.of_frequencies(rows.y, rows.weight, len(offset), alone)
        return replace(self.numbers, offset=offset), mean, rows

    def _rows(self) -> Rows:
        assert self.rows is not None
        return self.rows

    # Why

    def nearest(self, x: Inputs | Batches, k: int = 5) -> Neighbours:
        """The training rows that are most like each input for the kernel, which its answer rests on.

        They have their numbers in the data, rows of weight 0 counted; those of ``update`` follow the rows before them.

        Args:
            x: inputs, as for ``predict``.
            k: number of rows for each input.
        """
        if self.rows is None:
            raise ValueError("nearest needs the training rows, which this posterior was saved without; use rows=True")
        numbers = self.rows.numbers
        if numbers is None:
            raise ValueError(
                "nearest needs training rows in the order of the data, and they came from an iterable that may have "
                "drawn them in another; make the posterior of two tensors, of a list of batches, or of a DataLoader "
                "with shuffle=False and no sampler of its own, to know which row is which"
            )
        if k not in range(1, len(self.rows) + 1):
            raise ValueError(f"k must be an integer from 1 to the number of training rows, {len(self.rows)}; got {k!r}")
        found = []
        for part, _ in batches(x, None, self.networks[0]):
            found.append(self._nearest(self._place_of(self._features(part)), k))
        rows, similarity = (torch.cat(each) for each in zip(*found, strict=True))
        return Neighbours(numbers.to(rows.device)[rows], similarity)

    def _nearest(self, u: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best, rows = u.new_zeros(len(u), 0), torch.zeros(len(u), 0, dtype=torch.long, device=u.device)
        z = self._rows().z
        size = max(k, at_a_time(u, max(1, len(u))))
        for start in range(0, len(z), size):
            some = Basis(self.basis.kernel, self.basis.lengthscale, self.geometry(z[start : start + size]), u[:0])
            near = torch.cat([best, some.similarity(u)], 1)
            numbers = torch.arange(start, start + near.shape[1] - best.shape[1], device=u.device).expand(len(u), -1)
            top = near.topk(min(k, near.shape[1]), 1)
            best, rows = top.values, torch.cat([rows, numbers], 1).gather(1, top.indices)
        return rows, best

    # Files

    def save(self, path: str | Path, *, rows: bool = True) -> Path:
        """Write the posterior to a safetensors file, which is never half written; the network is not in it.

        Args:
            path: path of the file.
            rows: whether to keep the training rows, which ``update`` and ``nearest`` need and prediction does not.
        """
        from stationary.inference.infinite_width._files import save

        return save(self, path, rows=rows)
