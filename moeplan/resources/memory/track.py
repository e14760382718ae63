"""The actions of one position in their order, and when in it their inputs arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.schedule import Action, Step, Steps


class Lengths(NamedTuple):
    """How long actions take, in any unit."""

    forward: Sequence[float]
    """Of each virtual stage."""
    backward: Sequence[float]
    """Of each virtual stage; I and W take half of it each."""
    transfer: float


def even(stages: int) -> Lengths:
    """Every stage takes equally long, a backward twice a forward, and a transfer hardly anything."""
    return Lengths((1.0,) * stages, (2.0,) * stages, 1 / 256)


_Key = tuple[int, str, int]
"""Stage, F, B (or I) or W, and micro-batch."""


class Track(NamedTuple):
    """The actions of one position in their order, as arrays [actions]."""

    stages: NDArray[np.intp]
    kinds: NDArray[np.str_]
    starts: NDArray[np.float64]
    """When each action starts; inf where it waits for ever, as below."""
    takes: NDArray[np.float64]
    came: NDArray[np.float64]
    """When the input (F) or gradient (B, I) of each action has begun to arrive; inf where nothing arrives."""
    follows: NDArray[np.bool_]
    """Whether an action starts while the rows of the one before it still leave."""


class _Times(NamedTuple):
    """When actions started and ended; what waits for ever has no entry."""

    starts: dict[_Key, float]
    ends: dict[_Key, float]


def waits_since(track: Track, share: NDArray[np.float64] | None = None) -> NDArray[np.intp]:
    """Number of the first action that sees the input of each action wait: at its start, or when `share` of it [actions]
    has passed; at most its own."""
    if share is None:
        found = np.searchsorted(track.starts, track.came)
    else:
        found = np.searchsorted(track.starts + share * track.takes, track.came, side="right")
    return np.minimum(found, np.arange(len(found)))


def tracks(steps: Steps, lengths: Lengths | None = None) -> list[Track]:
    """`steps` as arrays, for every position.

    Rows begin to arrive when the action that makes them has ended. Actions start as soon as they can and take
    `lengths`, else are `even`: what waits is then that of a balanced pipeline. Transfers share no link.
    """
    rows = [[action for step in row for action in step] for row in steps]
    last = max((action.stage for row in rows for action in row), default=0)
    taken = lengths or even(last + 1)
    times = _times(steps, taken, last)
    return [_track(row, times, last, taken) for row in rows]


def _track(row: list[Action], times: _Times, last: int, lengths: Lengths) -> Track:
    keys = [_key(action) for action in row]
    starts = np.array([times.starts.get(key, np.inf) for key in keys])
    ends = np.array([times.ends.get(key, np.inf) for key in keys])
    sources = (_source(action, last) for action in row)
    came = np.array([np.inf if source is None else times.ends.get(source, np.inf) for source in sources])
    return Track(
        np.array([a.stage for a in row]),
        np.array([a.kind for a in row]),
        starts,
        np.array([_length(action, lengths) for action in row]),
        came,
        np.concatenate(([False], starts[1:] < ends[:-1] + lengths.transfer)),
    )


def _times(steps: Steps, lengths: Lengths, last: int) -> _Times:
    times, at, clock, moved = _Times({}, {}), [0] * len(steps), [0.0] * len(steps), True
    while moved:
        moved = False
        for position, row in enumerate(steps):
            while at[position] < len(row):
                ready = [_ready(action, times, last, lengths.transfer) for action in row[at[position]]]
                if np.inf in ready:
                    break
                clock[position] = _run(row[at[position]], max(clock[position], *ready), times, lengths)
                at[position] += 1
                moved = True
    return times


def _ready(action: Action, times: _Times, last: int, transfer: float) -> float:
    """When the input of `action` is there; never, where its maker has not run."""
    source = _source(action, last)
    return 0.0 if source is None else times.ends.get(source, np.inf) + transfer


def _key(action: Action) -> _Key:
    return action.stage, "B" if action.kind == "I" else action.kind, action.microbatch


def _source(action: Action, last: int) -> _Key | None:
    """What makes the rows that `action` starts from."""
    stage, kind, microbatch = action
    if kind == "F":
        return (stage - 1, "F", microbatch) if stage else None
    return (stage + 1, "B", microbatch) if kind in "BI" and stage < last else None


def _run(step: Step, start: float, times: _Times, lengths: Lengths) -> float:
    """The end of `step`, whose actions run one after another."""
    for action in step:
        times.starts[_key(action)] = start
        start += _length(action, lengths)
        times.ends[_key(action)] = start
    return start


def _length(action: Action, lengths: Lengths) -> float:
    if action.kind == "F":
        return lengths.forward[action.stage]
    return lengths.backward[action.stage] * (1.0 if action.kind == "B" else 0.5)
