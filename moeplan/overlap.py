"""What an overlap is: on which stream each piece and transfer of a layer runs, as data."""

from __future__ import annotations

from moeplan.spec.record import Record


class Placement(Record):
    """One piece or transfer of a layer."""

    item: str
    """attention, experts, dense, embedding, head, or a transfer's kind."""
    stream: str
    """forward, backward, or collective."""


class Overlap(Record):
    """The streams of a layer's items in the forward and in the backward pass."""

    name: str
    forward: tuple[Placement, ...]
    backward: tuple[Placement, ...]


def stream_of(overlap: Overlap, item: str, phase: str) -> str:
    """The stream on which `item` runs in `phase` (F, or R and B for the backward pass)."""
    placements = overlap.forward if phase == "F" else overlap.backward
    return next(p.stream for p in placements if p.item == item)
