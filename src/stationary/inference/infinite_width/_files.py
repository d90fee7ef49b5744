"""A posterior in a safetensors file, and back."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from stationary._files import write_atomically
from stationary.inference.infinite_width._basis import Basis
from stationary.inference.infinite_width._geometry import Geometry
from stationary.inference.infinite_width._noise import Noise
from stationary.inference.infinite_width._numbers import Numbers
from stationary.inference.infinite_width._trunk import Fingerprint, Place, Reader, Rows, with_float64
from stationary.inference.infinite_width.posterior import InfiniteWidthPosterior
from stationary.nn.inputs import device_of
from stationary.predictive import Bernoulli, Categorical, Gaussian

FAMILIES: dict[str, type[Any]] = {family.kind: family for family in (Categorical, Bernoulli, Gaussian)}
NOISE_BASIS, NOISE_PARTS = ("lengthscale", "inducing", "factor"), ("variance", "mean", "root")
OF_DRAW = ("lengthscale", "inducing", "factor", "variance", "noise", "mean", "root")


def save(posterior: InfiniteWidthPosterior, path: str | Path, *, rows: bool) -> Path:
    """Write a posterior to a file, as ``InfiniteWidthPosterior.save`` says."""
    numbers = posterior.numbers
    tensors = {
        "shift": posterior.geometry.shift,
        "scale": posterior.geometry.scale,
        "lengthscale": numbers.lengthscale,
        "inducing": posterior.basis.inducing,
        "factor": posterior.basis.factor,
        "mean": posterior.mean,
        "root": posterior.root,
        "offset": numbers.offset,
        "variance": torch.as_tensor(numbers.variance, dtype=torch.float64),
    }
    optional = {"noise": numbers.noise, "validation_rows": posterior.validation_rows}
    if (varying := numbers.input_noise) is not None:
        optional |= {f"noise.{name}": getattr(varying.basis, name).clone() for name in NOISE_BASIS}
        optional |= {f"noise.{name}": getattr(varying, name) for name in NOISE_PARTS}
    for k, draw in enumerate(posterior.draws):
        own = vars(draw.basis) | vars(draw.numbers) | vars(draw)
        optional |= {f"draw{k}.{name}": own[name].clone() for name in OF_DRAW}
    if rows and posterior.rows is not None:
        optional |= {name: getattr(posterior.rows, name) for name in ("z", "y", "weight", "numbers")}
    tensors |= {name: value for name, value in optional.items() if value is not None}
    settings = asdict(replace(posterior.method, features=None, store=None, checkpoint=None, verbose=False))
    about = {
        "format": "stationary infinite width 1",
        "method": json.dumps(settings),
        "geometry": posterior.geometry.name,
        "family": posterior.family.kind,
        "temperature": repr(numbers.temperature),
        "place": json.dumps([posterior.place.name, posterior.place.side]),
        "trunk": posterior.fingerprint.digest,
        "read": str(posterior.rows.read if posterior.rows is not None else 0),
    }
    content = safetensors.torch.save({name: value.contiguous().cpu() for name, value in tensors.items()}, about)
    return write_atomically(Path(path), lambda file: file.write(content))


def load(path: str | Path, network: nn.Module, features: Reader | None = None) -> InfiniteWidthPosterior:
    """The posterior that ``save`` wrote, as ``InfiniteWidth.load`` says."""
    from stationary.inference.infinite_width.method import InfiniteWidth

    device = with_float64(device_of(network) or torch.device("cpu"))
    try:
        with safetensors.safe_open(str(path), "pt") as file:
            about = file.metadata() or {}
            if about.get("format") != "stationary infinite width 1":
                raise ValueError(f"{path} must be written by InfiniteWidthPosterior.save, got another file")
            tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} must be written by InfiniteWidthPosterior.save, got a file that cannot be read: {error}"
        ) from error
    method = InfiniteWidth(**json.loads(about["method"]))
    name, side = json.loads(about["place"])
    if side == "function" and features is None:
        raise ValueError("features must be the function that the posterior was made with, got None; pass it again")
    place = Place(name, side, features if side == "function" else None)
    fingerprint = Fingerprint(about["trunk"])
    fingerprint.check(network, place)
    variance, noise = tensors["variance"], tensors.get("noise")
    varying = None
    if "noise.mean" in tensors and noise is not None:
        basis, parts = ([tensors[f"noise.{name}"] for name in names] for names in (NOISE_BASIS, NOISE_PARTS))
        varying = Noise(Basis(method.kernel, *basis), noise, *parts)
    numbers = Numbers(
        tensors["lengthscale"],
        variance if variance.ndim else float(variance),
        float(about["temperature"]),
        tensors["offset"],
        noise,
        varying,
    )
    rows = None
    if "z" in tensors:
        z, y, weight = (tensors[name] for name in ("z", "y", "weight"))
        rows = Rows(z, y, weight, numbers=tensors.get("numbers"), read=int(about["read"]))
    posterior = InfiniteWidthPosterior(
        method,
        (network,),
        place,
        fingerprint,
        Geometry(about["geometry"], tensors["shift"], tensors["scale"]),
        Basis(method.kernel, numbers.lengthscale, tensors["inducing"], tensors["factor"]),
        numbers,
        FAMILIES[about["family"]],
        tensors["mean"],
        tensors["root"],
        rows,
        tensors.get("validation_rows"),
    )
    draws: list[InfiniteWidthPosterior] = []
    while f"draw{len(draws)}.mean" in tensors:
        part = {name: tensors[f"draw{len(draws)}.{name}"] for name in OF_DRAW}
        own = replace(numbers, **{name: part.pop(name) for name in ("lengthscale", "variance", "noise")})
        placed = Basis(method.kernel, own.lengthscale, part.pop("inducing"), part.pop("factor"))
        draws.append(replace(posterior, numbers=own, basis=placed, **part))
    return replace(posterior, draws=tuple(draws))
