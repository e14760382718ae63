"""Forward and backward of one piece, cut off from its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


@dataclass
class Kept:
    """What a piece keeps of a micro-batch from its forward until its backward."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...] = ()
    gradients: Gradients = ()
    """Of the outputs, where the parameters' gradients are computed later (W after I)."""


def leaves(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """`tensors` as the start of a new graph; integers have no gradient."""
    return tuple(t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors)


def detached(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """`tensors` without their graph."""
    return tuple(t.detach() for t in tensors)


def input_gradients(kept: Kept, gradients: Gradients, *, retain: bool) -> Gradients:
    """Gradients of the inputs: zeros where outputs do not depend on them, None for integers."""
    inputs = [t for t in kept.inputs if t.requires_grad]
    found = iter(_grad(kept.outputs, gradients, inputs, retain=retain))
    return tuple(next(found) if t.requires_grad else None for t in kept.inputs)


def add_weight_gradients(
    kept: Kept, gradients: Gradients, weights: Mapping[str, Tensor], sums: Mapping[str, Tensor]
) -> None:
    """Add the gradients of `weights` to `sums`."""
    for name, gradient in zip(weights, _grad(kept.outputs, gradients, list(weights.values())), strict=True):
        sums[name].add_(gradient)


def backward(kept: Kept, gradients: Gradients, weights: Mapping[str, Tensor], sums: Mapping[str, Tensor]) -> Gradients:
    """Both at once: gradients of the inputs; those of `weights` are added to `sums`."""
    inputs = [t for t in kept.inputs if t.requires_grad]
    found = iter(_grad(kept.outputs, gradients, [*inputs, *weights.values()]))
    own = tuple(next(found) if t.requires_grad else None for t in kept.inputs)
    for name, gradient in zip(weights, found, strict=True):
        sums[name].add_(gradient)
    return own


def _grad(
    outputs: Sequence[Tensor], gradients: Gradients, wanted: Sequence[Tensor], *, retain: bool = False
) -> list[Tensor]:
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad and g is not None]
    if not pairs or not wanted:
        return [torch.zeros_like(t) for t in wanted]
    found = torch.autograd.grad(
        [o for o, _ in pairs], wanted, [g for _, g in pairs], retain_graph=retain, allow_unused=True
    )
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]
