"""When each operation of a program ran in a simulation, and the same as a trace."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.layout import StageGraph
from moeplan.program import Program, text_of
from moeplan.trace import Span, Trace


class Timeline(NamedTuple):
    """Start and end of each operation in nanoseconds, by operation id."""

    start_ns: list[int]
    end_ns: list[int]


def step_ns(timeline: Timeline) -> int:
    """Nanoseconds from the start of the step to the end of its last operation."""
    return max(timeline.end_ns, default=0)


def timeline_to_trace(program: Program, graph: StageGraph, timeline: Timeline) -> Trace:
    """The simulated trace: one lane per position, spans in the order of operation ids."""
    spans = tuple(
        Span(
            op=op.id,
            name=text_of(op),
            lane=op.position,
            stream=program.streams[op.stream].name,
            start_ns=timeline.start_ns[op.id],
            end_ns=timeline.end_ns[op.id],
        )
        for op in program.ops
    )
    return Trace(kind="simulated", lanes=tuple(position.name for position in graph.positions), spans=spans)
