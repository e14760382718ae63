"""Bytes that a piece keeps of a micro-batch, as terms: what each is, and which recomputation frees it."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.layout import Module
from moeplan.resources.work import ELEMENT_BYTES
from moeplan.spec.case import Case

NARROW = {"fp8": 1.0, "fp8_block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
"""Bytes of an element that a narrow product keeps for its weight gradient, with its share of the scales."""
Modules = tuple[Module, ...]
AGAIN: Module = "every_other_product"


class Term(NamedTuple):
    """Bytes on one rank from a forward to its backward."""

    size: float
    freed_by: Modules = ()
    """Modules of `Recompute` under which they are computed again."""
    routing: bool = False
    """Whether they are scores of the router or say where rows go."""


def linear_bytes(case: Case) -> float:
    """Bytes of one element of a linear layer's input that is kept for its weight gradient."""
    return NARROW.get(case.execution.linear, ELEMENT_BYTES[case.workload.dtype])
