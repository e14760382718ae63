"""Bytes that a piece keeps of a micro-batch, as terms: what each is, and which recomputation frees it."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.layout import Module
from moeplan.resources.kernels import ELEMENT_BYTES, NARROW_BYTES
from moeplan.spec.case import Case

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
    return NARROW_BYTES.get(case.execution.linear, ELEMENT_BYTES[case.workload.dtype])
