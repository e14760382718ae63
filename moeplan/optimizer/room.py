"""How many bytes the fullest rank of a candidate needs, without its whole order: few micro-batches show the most."""

from __future__ import annotations

from functools import cache
from math import ceil

from msgspec import structs

from moeplan.cost.durations import loads
from moeplan.draft import outline, shape_of
from moeplan.optimizer.candidate import Candidate, degrees
from moeplan.plan import Plan
from moeplan.resources.memory import Track, peak_activation_bytes, static_bytes, tracks, without_spare
from moeplan.schedule import Shape
from moeplan.schedules import make
from moeplan.spec.case import Case

GROUPS = 4
"""Groups of micro-batches after which no more chunks are alive at once, in every schedule that is not GPipe."""


def enough(schedule: str, shape: Shape) -> Shape:
    """`shape` with as few micro-batches as show the most bytes alive at each position."""
    group = shape.group or ceil(shape.positions * shape.depth)
    most = shape.microbatches if schedule == "gpipe" else GROUPS * group
    return shape._replace(microbatches=min(shape.microbatches, most))


class Room:
    """Bytes of candidates of one case; candidates that differ in their recompute rule only share an outline."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.outlines: dict[tuple[object, ...], tuple[Plan, tuple[float, ...]]] = {}
        self.tracks = cache(_tracks)

    def outlined(self, candidate: Candidate) -> Plan:
        """The plan of `candidate` without predictions and schedule text."""
        return structs.replace(self._outlined(candidate)[0], recompute=candidate.recompute)

    def order(self, candidate: Candidate) -> list[Track]:
        """What memory has to know of the schedule of `candidate`."""
        plan = self._outlined(candidate)[0]
        shape = enough(candidate.schedule, shape_of(plan.layout, plan.graph, plan.batch.microbatches))
        return self.tracks(candidate.schedule, shape)

    def peak_bytes(self, candidate: Candidate, *, spare: bool = True) -> float:
        """HBM bytes that the fullest rank of `candidate` needs, with the `spare` of exchanges that the case names."""
        plan, static = self._outlined(candidate)
        graph = plan.graph if spare else without_spare(plan.graph)
        order = self.order(candidate)
        full = loads(self.case, plan.graph, plan.batch, 0)
        alive = peak_activation_bytes(self.case, graph, order, candidate.recompute, full)
        return max(s + a for s, a in zip(static, alive, strict=True))

    def _outlined(self, candidate: Candidate) -> tuple[Plan, tuple[float, ...]]:
        key = (degrees(candidate.layout), type(candidate.layout), candidate.schedule)
        if key not in self.outlines:
            plan = outline(self.case, candidate.layout, schedule=candidate.schedule)
            static = tuple(static_bytes(self.case, plan.graph, p) for p in range(len(plan.graph.positions)))
            self.outlines[key] = (plan, static)
        return self.outlines[key]


def _tracks(schedule: str, shape: Shape) -> list[Track]:
    return tracks(make(schedule, shape))
