"""Traces as Chrome trace JSON, which Perfetto opens: a process per lane, a thread per stream, a slice per span.

Chrome counts in microseconds; the exact nanoseconds and the operation id stand in each slice's arguments, so that a
trace read back is equal to the one written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from moeplan.errors import SpecError
from moeplan.spec.record import Record, convert, read_json, to_json, write_whole
from moeplan.trace import Span, Trace


class _Name(Record):
    name: str


class _Meta(Record, tag_field="ph", tag="M"):
    """The name of a process (lane) or thread (stream)."""

    name: Literal["process_name", "thread_name"]
    pid: int
    tid: int
    args: _Name


class _Exact(Record):
    op: int
    start_ns: int
    end_ns: int


class _Slice(Record, tag_field="ph", tag="X"):
    """One span; ts and dur in microseconds."""

    name: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: _Exact


class _Other(Record):
    schema: Literal["moeplan.trace"]
    schema_version: Literal["1.0"]
    kind: str


class _File(Record):
    displayTimeUnit: Literal["ns"]  # noqa: N815
    otherData: _Other  # noqa: N815
    traceEvents: tuple[_Meta | _Slice, ...]  # noqa: N815


def write_chrome(trace: Trace, path: Path) -> None:
    """Write `trace` to `path`, whole or not at all."""
    threads: dict[tuple[int, str], int] = {}
    for span in trace.spans:
        threads.setdefault((span.lane, span.stream), len(threads))
    lanes = [_Meta(name="process_name", pid=i, tid=0, args=_Name(name=name)) for i, name in enumerate(trace.lanes)]
    streams = [
        _Meta(name="thread_name", pid=lane, tid=tid, args=_Name(name=name)) for (lane, name), tid in threads.items()
    ]
    slices = [_slice(span, threads[(span.lane, span.stream)]) for span in trace.spans]
    file = _File(
        displayTimeUnit="ns",
        otherData=_Other(schema="moeplan.trace", schema_version="1.0", kind=trace.kind),
        traceEvents=(*lanes, *streams, *slices),
    )
    write_whole(path, to_json(file))


def _slice(span: Span, tid: int) -> _Slice:
    exact = _Exact(op=span.op, start_ns=span.start_ns, end_ns=span.end_ns)
    ts, dur = span.start_ns / 1000, (span.end_ns - span.start_ns) / 1000
    return _Slice(name=span.name, pid=span.lane, tid=tid, ts=ts, dur=dur, args=exact)


def read_chrome(path: Path) -> Trace:
    """The trace in `path`, as `write_chrome` wrote it; SpecError says what is wrong and where."""
    file = convert(read_json(path), _File, where=str(path))
    names = [event for event in file.traceEvents if isinstance(event, _Meta)]
    lanes = [event for event in names if event.name == "process_name"]
    threads = [event for event in names if event.name == "thread_name" and 0 <= event.pid < len(lanes)]
    streams = {(event.pid, event.tid): event.args.name for event in threads}
    if [event.pid for event in lanes] != list(range(len(lanes))):
        raise SpecError(f"{path}: processes {[e.pid for e in lanes[:8]]} are not named 0..{len(lanes) - 1} in order")
    slices = (event for event in file.traceEvents if isinstance(event, _Slice))
    spans = tuple(_span(event, streams, path) for event in slices)
    return Trace(kind=file.otherData.kind, lanes=tuple(event.args.name for event in lanes), spans=spans)


def _span(event: _Slice, streams: dict[tuple[int, int], str], path: Path) -> Span:
    stream, exact = streams.get((event.pid, event.tid)), event.args
    if stream is None:
        raise SpecError(f"{path}: slice {event.name!r}: process {event.pid}, thread {event.tid} has no name")
    if exact.end_ns < exact.start_ns:
        raise SpecError(f"{path}: slice {event.name!r} ends at {exact.end_ns} ns, before {exact.start_ns} ns")
    return Span(
        op=exact.op, name=event.name, lane=event.pid, stream=stream, start_ns=exact.start_ns, end_ns=exact.end_ns
    )
