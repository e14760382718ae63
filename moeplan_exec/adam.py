"""Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1), element by element: the same on a shard as on the whole."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BETAS = (0.9, 0.95)
EPSILON = 1e-8


class Moments(NamedTuple):
    """Running means of the gradient and of its square."""

    first: Tensor
    second: Tensor


def moments_of(values: Tensor) -> Moments:
    """Zero moments in the shape and type of `values`."""
    return Moments(torch.zeros_like(values), torch.zeros_like(values))


def update(values: Tensor, gradient: Tensor, moments: Moments, *, step: int, lr: float) -> None:
    """Change `values` and `moments` in place; `step` counts from 1.

    values -= lr * m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + epsilon)
    """
    first, second = BETAS
    moments.first.mul_(first).add_(gradient, alpha=1 - first)
    moments.second.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    size = (moments.second / (1 - second**step)).sqrt_().add_(EPSILON)
    values.addcdiv_(moments.first, size, value=-lr / (1 - first**step))
