"""Ridge regression of a sine on random Matérn features."""

from typing import Any

import numpy as np
import torch

import stationary as st
from killed.config import Config


def run(config: Config, device: str = "cpu") -> dict[str, np.ndarray[Any, Any]]:
    """The weights and the predictions."""
    generator = torch.Generator().manual_seed(config.seed)
    weight, bias = torch.randn(2, config.hidden, generator=generator, dtype=torch.float64)
    x = torch.randn(config.n_points, 1, generator=generator, dtype=torch.float64)
    features = st.Matern(1.5)(x * weight + bias)
    train = features[:200]
    gram = train.T @ train + 1e-3 * torch.eye(config.hidden, dtype=torch.float64)
    solution = torch.linalg.solve(gram, train.T @ torch.sin(3 * x[:200]))
    return {"weights": solution.numpy(), "predictions": (features @ solution).numpy()}
