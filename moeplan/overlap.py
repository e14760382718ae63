"""What an overlap is: on which stream each piece and transfer of a layer runs, as data."""

from __future__ import annotations

from collections.abc import Iterable

from moeplan.errors import SpecError
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


def streams_of(overlap: Overlap) -> dict[tuple[str, str], str]:
    """The stream of each (item, phase); phases R and B belong to the backward pass."""
    passes = (("F", overlap.forward), ("R", overlap.backward), ("B", overlap.backward))
    return {(placed.item, phase): placed.stream for phase, placements in passes for placed in placements}


def check_overlap(overlap: Overlap, items: Iterable[str]) -> None:
    """SpecError unless each of `items` has a stream in both passes."""
    streams = streams_of(overlap)
    for item in items:
        if not {(item, "F"), (item, "B")} <= streams.keys():
            raise SpecError(f"overlap {overlap.name!r}: {item} has no stream in both passes")
    known = ("forward", "backward", "collective")
    wrong = sorted(set(streams.values()) - set(known))
    if wrong:
        raise SpecError(f"overlap {overlap.name!r}: stream {wrong[0]!r} is not one of {', '.join(known)}")
