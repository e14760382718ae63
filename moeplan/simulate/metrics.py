"""Where the time of a step goes, per position: compute, communication that nothing hides, and waiting."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.program import COMPUTE_KINDS, Program
from moeplan.simulate.timeline import Timeline, step_ns

WORK_KINDS = (*COMPUTE_KINDS, "optimizer")


class Use(NamedTuple):
    """The time of one position; the three parts sum to the step."""

    compute_ns: int
    """At least one piece or the optimizer runs."""
    exposed_ns: int
    """Nothing is computed, and a transfer or collective that involves the position is in flight."""
    bubble_ns: int
    """Neither."""


class Metrics(NamedTuple):
    """The time of one step."""

    step_ns: int
    positions: tuple[Use, ...]


def metrics(program: Program, timeline: Timeline) -> Metrics:
    """The step of `timeline` and where its time goes.

    compute = |union of compute intervals|, exposed = |union of all intervals| - compute, bubble = step - both. A
    transfer involves its sender and its receiver; of a collective, all its positions while it runs at any of them.
    """
    positions = max((op.position for op in program.ops), default=-1) + 1
    work: list[list[int]] = [[] for _ in range(positions)]
    every: list[list[int]] = [[] for _ in range(positions)]
    for op in program.ops:
        if op.kind in WORK_KINDS:
            work[op.position].append(op.id)
        for position in (op.position, *op.peers):
            every[position].append(op.id)
    step, start, end = step_ns(timeline), np.array(timeline.start_ns), np.array(timeline.end_ns)
    uses = []
    for mine, involved in zip(work, every, strict=True):
        compute, busy = covered_ns(start[mine], end[mine]), covered_ns(start[involved], end[involved])
        uses.append(Use(compute, busy - compute, step - busy))
    return Metrics(step, tuple(uses))


def covered_ns(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> int:
    """Length of the union of intervals: of each, in the order of starts, what reaches beyond all before it."""
    if not len(start_ns):
        return 0
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], end_ns[order]
    reached = np.maximum.accumulate(np.concatenate((start[:1], end[:-1])))
    return int(np.maximum(end - np.maximum(start, reached), 0).sum())
