"""What a trace is: when each operation of a program ran, measured or simulated, in one type."""

from __future__ import annotations

from moeplan.spec.record import Record


class Span(Record):
    """One operation on one rank (measured) or one position (simulated)."""

    op: int
    """Operation id in the program lowered from the plan."""
    name: str
    lane: int
    """Rank where measured, position where simulated."""
    stream: str
    start_ns: int
    end_ns: int


class Trace(Record):
    """Spans of one or several steps."""

    kind: str
    """simulated or measured."""
    lanes: tuple[str, ...]
    """Names of lanes, by number."""
    spans: tuple[Span, ...]


def length_ns(trace: Trace) -> int:
    """Nanoseconds from the first start to the last end."""
    if not trace.spans:
        return 0
    return max(s.end_ns for s in trace.spans) - min(s.start_ns for s in trace.spans)
