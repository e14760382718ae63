"""Activations over a schedule: a forward adds what its stage keeps, its backward takes it away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.layout import Recompute, StageGraph, pieces_of, rides
from moeplan.program import keeps
from moeplan.resources.memory.kept import Parts, piece_parts
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import Load
from moeplan.schedule import Steps
from moeplan.spec.case import Case
from moeplan.spec.model import has_state, is_dense


class Live(NamedTuple):
    """Bytes of one rank at the moment of a step when they are most."""

    activations: float
    """Kept from forwards for their backwards, without the next two."""
    routing: float
    """Kept by router and permutation."""
    logits: float
    """Logits, loss and their gradients."""
    working: float
    """What the running backward needs beside: recomputed activations and gradients."""
    buffers: float
    """Rows in flight."""


class Track(NamedTuple):
    """The actions of one position in their order, as arrays [actions]."""

    stages: NDArray[np.intp]
    kinds: NDArray[np.str_]


class _Stage(NamedTuple):
    """What one virtual stage keeps of a micro-batch, and what the fullest moment of its backward has beside."""

    alive: float
    routing: float
    logits: float
    moment: Live
    """Beside what is kept: less of it, where later pieces have gone back already."""
    passing: float
    """Rows in flight in its forward."""


def tracks(steps: Steps) -> list[Track]:
    """`steps` as arrays, for every position."""
    rows = [[action for step in row for action in step] for row in steps]
    return [Track(np.array([a.stage for a in row]), np.array([a.kind for a in row])) for row in rows]


def peak_activation_bytes(
    case: Case, graph: StageGraph, order: Sequence[Track], recompute: Recompute, loads: Sequence[Load]
) -> list[float]:
    """Most bytes at once of one rank at each position beside its state: `peak_activations` together."""
    return [sum(live) for live in peak_activations(case, graph, order, recompute, loads)]


def peak_activations(
    case: Case, graph: StageGraph, order: Sequence[Track], recompute: Recompute, loads: Sequence[Load]
) -> list[Live]:
    """The fullest moment of one rank at each position, folded over the schedule's order; `loads` per position.

    Rows in flight: while a transfer runs, one buffer of its edge on each side; while experts run, their gradients'
    rows. Piper counts none.
    """
    known: dict[tuple[object, ...], Parts] = {}
    stages = [_stage(case, graph, stage, recompute, loads[homes[0]], known) for stage, homes in enumerate(graph.stages)]
    return [_peak(track, stages) for track in order]


def _stage(
    case: Case, graph: StageGraph, stage: int, recompute: Recompute, load: Load, known: dict[tuple[object, ...], Parts]
) -> _Stage:
    """What a stage keeps; its backward needs one piece's transient at a time. `known`: parts of alike pieces."""
    numbers, model, parts = pieces_of(graph, stage), case.model, []
    for i in numbers:
        piece, ride = graph.pieces[i], rides(graph, i)
        mixed = piece.kind == "attention" and (is_dense(model, piece.layer), has_state(model, piece.layer))
        key = (piece.kind, mixed, ride, load)
        if key not in known:
            known[key] = piece_parts(case, piece, recompute, load, ride=ride)
        parts.append(known[key])
    rows = [_rows(case, graph, i, load) for i in numbers]
    moments, passing = _moments(graph, numbers, parts, rows, recompute), max(rows)
    fullest = max([*moments, Live(0.0, 0.0, 0.0, 0.0, passing)], key=sum)
    alive, routing, logits = (sum(part[i] for part in parts) for i in range(3))
    return _Stage(alive, routing, logits, fullest, passing)


def _moments(
    graph: StageGraph, numbers: Sequence[int], parts: Sequence[Parts], rows: Sequence[float], recompute: Recompute
) -> list[Live]:
    """While each piece's backward runs: what it needs, less what the pieces after it kept of this micro-batch.

    Where rows are dispatched again, the recomputed attention before them is there too; where a piece is recomputed, so
    it is while the gradients' rows arrive for it.
    """
    result, gone = [], (0.0, 0.0, 0.0)
    for place in reversed(range(len(numbers))):
        part, (alive, routing, logits) = parts[place], gone
        before = 0.0
        nothing = keeps(graph.pieces[numbers[place]], recompute) == "nothing"
        if place and nothing and keeps(graph.pieces[numbers[place - 1]], recompute) != "activations":
            before = parts[place - 1].again
        left = Live(routing + logits - alive, -routing, -logits, before, 0.0)
        running = part.transient - part.loss - part.rows
        result.append(left._replace(logits=part.loss - logits, working=before + running, buffers=part.rows))
        if part.again:
            result.append(left._replace(working=before + part.again, buffers=rows[place]))
        gone = (alive + part.alive, routing + part.routing, logits + part.logits)
    return result


def _rows(case: Case, graph: StageGraph, number: int, load: Load) -> float:
    """Bytes of the rows in flight between pieces: the larger edge of one, as sent and as received."""
    if case.memory.activations == "piper":
        return 0.0
    edges = [e for e in (number - 1, number) if 0 <= e < len(graph.edges)]
    sent = [edge_bytes(case.model, graph, e, "F", load, dtype=case.workload.dtype) for e in edges]
    return 2 * (case.execution.capacity or 1.0) * max(sent, default=0.0)


def _peak(track: Track, stages: Sequence[_Stage]) -> Live:
    """The fullest moment of one position: F adds what its stage keeps, B and W take it away.

    Every backward needs what its moment says; the forward that runs already counts as kept.
    """
    kept = np.array([stage[:3] for stage in stages])[track.stages]
    moments = np.array([stage.moment for stage in stages])[track.stages]
    passing = np.array([Live(0.0, 0.0, 0.0, 0.0, stage.passing) for stage in stages])[track.stages]
    enters = (track.kinds == "F")[:, None]
    change = np.where(enters, kept, np.where((track.kinds == "I")[:, None], 0.0, -kept))
    after = np.cumsum(change, axis=0)
    held, beside = np.where(enters, after, after - change), np.where(enters, passing, moments)
    fullest = int((held[:, 0] + beside.sum(axis=1)).argmax())
    alive, routing, logits = held[fullest].tolist()
    extra = Live(*beside[fullest].tolist())
    return Live(
        max(0.0, alive - routing - logits + extra.activations),
        max(0.0, routing + extra.routing),
        max(0.0, logits + extra.logits),
        extra.working,
        extra.buffers,
    )
