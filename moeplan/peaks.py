"""Peak memory of a rank at each position, for orders that moeplan makes and for those that it knows in closed form."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from msgspec import structs

from moeplan.cost.pricing import loads
from moeplan.draft import dealt, shape_of
from moeplan.layout import Colocated, Layout, Recompute, StageGraph
from moeplan.layouts import stages
from moeplan.optimizer.room import enough
from moeplan.resources.memory import (
    CLOSED,
    IN_V,
    Track,
    closed_peaks,
    in_v,
    peak_activation_bytes,
    static_bytes,
    tracks,
)
from moeplan.schedule import Shape
from moeplan.schedules import make
from moeplan.spec.case import Case


class Peak(NamedTuple):
    """Memory of one rank at each position."""

    graph: StageGraph
    bytes: tuple[float, ...]


def peak_of(case: Case, layout: Layout, recompute: Recompute, schedule: str, graph: StageGraph | None = None) -> Peak:
    """Most bytes of one rank at each position of `layout` under `schedule`; `graph` is the layout's, where known.

    A made order is folded over as few micro-batches as show the most. Schedules in closed form are `closed_peaks`;
    those in a V have two virtual stages per position whatever the layout says, the others one. SpecError as the
    layout's, and for a schedule nobody knows.
    """
    if schedule in CLOSED and isinstance(layout, Colocated):
        return _closed(case, layout, recompute, schedule)
    graph = graph or stages(case, layout)
    batch = dealt(case, layout, graph)
    shape = shape_of(layout, graph, batch.microbatches)
    order = list(_tracks(schedule, enough(schedule, shape)))
    alive = peak_activation_bytes(case, graph, order, recompute, loads(case, graph, batch, 0))
    return Peak(graph, tuple(static_bytes(case, graph, p) + bytes_ for p, bytes_ in enumerate(alive)))


def _closed(case: Case, layout: Colocated, recompute: Recompute, schedule: str) -> Peak:
    chunks = 2 if schedule in IN_V else 1
    split = layout.split if len(layout.split) == layout.pp * chunks else ()
    graph = stages(case, structs.replace(layout, vpp=chunks, split=split))
    graph = in_v(case, graph) if schedule in IN_V else graph
    batch = dealt(case, layout, graph)
    at = loads(case, graph, batch, 0)
    return Peak(graph, tuple(closed_peaks(case, graph, schedule, recompute, at, batch.microbatches)))


@lru_cache(maxsize=256)
def _tracks(schedule: str, shape: Shape) -> tuple[Track, ...]:
    return tuple(tracks(make(schedule, shape)))
