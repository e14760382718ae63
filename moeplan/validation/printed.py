"""What a source means by a rank's peak memory."""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from moeplan.layout import StageGraph
from moeplan.resources.memory import beside, state_bytes
from moeplan.spec.case import Case
from moeplan.validation.negation import says

Counts = Literal["allocated", "reserved", "device", "parts"]
TOLD: tuple[tuple[str, Counts], ...] = (
    (r"nvidia-smi|rocm-smi|amd-smi|(?:whole|entire) (?:device|gpu)", "device"),
    (r"reserved", "reserved"),
)
"""Words of notes for what a peak is; allocated where there are none."""


def counts_told(notes: str) -> Counts:
    """What `notes` say that the memory of their row is."""
    return next((counts for words, counts in TOLD if says(words, notes.lower())), "allocated")


def printed_bytes(case: Case, graph: StageGraph, position: int, peak: float, counts: Counts) -> float:
    """What a source that `counts` so prints where tensors of a rank at `position` take `peak` bytes at most.

    allocated: `peak`. reserved: with what the allocator keeps. device: with communicators and the driver's context too.
    parts: parameters, optimizer state and activations added up (arXiv 2205.05198), without embedding and workspaces.
    """
    more = beside(case, graph, position, peak)
    if counts == "reserved":
        return peak + more.reserve
    if counts == "device":
        return peak + sum(more)
    if counts == "parts":
        layers = structs.replace(graph, replicas=tuple(r for r in graph.replicas if r.parameters != "embedding"))
        held, counted = state_bytes(case, graph, position), state_bytes(case, layers, position)
        return peak - sum(held) + sum(counted) - counted.workspaces
    return peak
