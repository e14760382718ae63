"""Activations over a schedule: a forward adds what its stage keeps, its backward takes it away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.layout import Recompute, StageGraph
from moeplan.resources.memory.need import NOTHING, Live, Need, needs
from moeplan.resources.memory.track import Track, waits_since
from moeplan.resources.work import Load
from moeplan.spec.case import Case

MIDDLE = 0.5
"""Share of a forward that has passed when its rows in flight are most (assumed)."""


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
    stages = _columns(needs(case, graph, recompute, loads))
    return [_peak(track, stages) for track in order]


class _Columns(NamedTuple):
    """`Need` of all stages."""

    kept: NDArray[np.float64]
    """alive, routing and logits [stages, 3]."""
    first: NDArray[np.float64]
    """[stages, 5], as `later` and `passing`."""
    later: NDArray[np.float64]
    passing: NDArray[np.float64]
    late: NDArray[np.float64]
    again: NDArray[np.bool_]
    arriving: NDArray[np.float64]
    """[stages, 2], as `leaving`."""
    leaving: NDArray[np.float64]


def _columns(stages: Sequence[Need]) -> _Columns:
    passing = [NOTHING._replace(buffers=stage.passing) for stage in stages]
    return _Columns(
        np.array([stage[:3] for stage in stages]),
        np.array([stage.first for stage in stages]),
        np.array([stage.later for stage in stages]),
        np.array(passing),
        np.array([stage.late for stage in stages]),
        np.array([stage.again for stage in stages]),
        np.array([stage.arriving for stage in stages]),
        np.array([stage.leaving for stage in stages]),
    )


def _peak(track: Track, stages: _Columns) -> Live:
    """The fullest moment of one position: F adds what its stage keeps, B and W take it away.

    Every backward needs what its moments say; the forward that runs already counts as kept.
    """
    kept = stages.kept[track.stages]
    enters, weights = (track.kinds == "F")[:, None], (track.kinds == "I")[:, None]
    after = np.cumsum(np.where(enters, kept, np.where(weights, 0.0, -kept)), axis=0)
    held = np.where(enters | weights, after, after + kept)
    most, best = -1.0, NOTHING
    for beside in _beside(track, stages, enters):
        fullest = int((held[:, 0] + beside.sum(axis=1)).argmax())
        alive, routing, logits = held[fullest].tolist()
        extra = Live(*beside[fullest].tolist())
        if alive + sum(extra) > most:
            most = alive + sum(extra)
            best = Live(
                max(0.0, alive - routing - logits + extra.activations),
                max(0.0, routing + extra.routing),
                max(0.0, logits + extra.logits),
                extra.working,
                extra.buffers,
            )
    return best


def _beside(
    track: Track, stages: _Columns, enters: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`Live` beside what is kept, when each action begins and later in it [actions, 5]."""
    at = track.stages
    first = np.where(enters, 0.0, stages.first[at])
    later = np.where(enters, stages.passing[at], stages.later[at])
    again = ~enters[:, 0] & stages.again[at]
    comes, leaves = _bytes(track, stages.arriving), _bytes(track, stages.leaving)
    own = np.arange(len(comes))
    before, during = waits_since(track), waits_since(track, np.where(enters[:, 0], MIDDLE, stages.late[at]))
    first[:, 4] += _waiting(comes, before, own) + np.where(again & (during < own), comes, 0.0)
    first[1:, 4] += np.where((again | track.follows)[1:], leaves[:-1], 0.0)
    later[:, 4] += _waiting(comes, during, own)
    return first, later


def _bytes(track: Track, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """What F, and what B and I of each action's stage move; W moves nothing."""
    both = sizes[track.stages]
    moved: NDArray[np.float64] = np.where(track.kinds == "F", both[:, 0], np.where(track.kinds == "W", 0.0, both[:, 1]))
    return moved


def _waiting(sizes: NDArray[np.float64], since: NDArray[np.intp], own: NDArray[np.intp]) -> NDArray[np.float64]:
    """Bytes that wait at each action, when each action's wait from `since` until its own turn."""
    came = np.bincount(since, sizes, minlength=len(own))
    waiting: NDArray[np.float64] = np.cumsum(came - np.bincount(own, sizes, minlength=len(own)))
    return waiting
