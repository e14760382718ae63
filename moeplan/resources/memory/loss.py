"""Logits and cross entropy: bytes per element of [tokens, vocabulary]."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.spec.case import Case


class Loss(NamedTuple):
    """Bytes of logits and their gradients on one rank."""

    alive: float
    """From the forward to the backward."""
    transient: float
    """More while the backward runs, the gradient of the head's matrix included."""


def loss_parts(case: Case, load: Load) -> Loss:
    """Bytes of the head's logits and loss for one micro-batch on one rank.

    Fused: fp32 scores, 4 bytes per element, become the gradient in place; 2 more beside them, or the gradient of the
    head's matrix in the element type (and the rows gathered for it), whichever is more. Eager: 12 bytes per element
    together as PyTorch runs it, log-probabilities and two gradients in fp32 (whoever holds the logits meanwhile has 2
    more), or 10 with a vocabulary that is cut by hand (Megatron-LM without fusion). Chunked: none are ever all there.
    Further-token modules keep one more each.
    """
    model, size = case.model, ELEMENT_BYTES[case.workload.dtype]
    elements, wide = load.tokens * model.vocab / load.tp, max(4, size)
    matrix = size * model.vocab * model.hidden / load.tp
    gathered = size * load.tokens * model.hidden * (2 if load.tp > 1 else 1)
    passes = 1 + (model.mtp_layers if case.memory.mtp else 0)
    if case.execution.loss == "chunked":
        return Loss(0.0, matrix + gathered)
    if case.execution.loss == "fused":
        return Loss(passes * wide * elements, max(size * elements, matrix + gathered))
    if case.execution.kernels == "fused":
        return Loss(passes * wide * elements, max((wide + size) * elements, matrix + gathered))
    return Loss(passes * wide * elements, max(2 * wide * elements, (size - wide) * elements + matrix + gathered))
