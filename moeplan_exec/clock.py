"""When each operation of this rank ran, by the clock of its machine; on a GPU, when it was handed to the device."""

from __future__ import annotations

import threading
import time

from moeplan.program import Op, Program, text_of
from moeplan.trace import Span


class Clock:
    """Collects spans, from the interpreter and from the threads of its queues."""

    def __init__(self, program: Program, rank: int) -> None:
        self.program, self.rank = program, rank
        self.spans: list[Span] = []
        self.lock = threading.Lock()

    def record(self, op: Op, start_ns: int) -> None:
        """`op` began at `start_ns` and ends now."""
        span = Span(
            op=op.id,
            name=text_of(op),
            lane=self.rank,
            stream=self.program.streams[op.stream].name,
            start_ns=start_ns,
            end_ns=time.perf_counter_ns(),
        )
        with self.lock:
            self.spans.append(span)

    def phase(self, op: Op, name: str, start_ns: int, end_ns: int) -> None:
        """A part of `op`, such as phase I of HALO, ran from `start_ns` to `end_ns`; parts may overlap."""
        stream = f"{self.program.streams[op.stream].name}, {name}"
        span = Span(
            op=op.id, name=f"{text_of(op)} {name}", lane=self.rank, stream=stream, start_ns=start_ns, end_ns=end_ns
        )
        with self.lock:
            self.spans.append(span)

    def take(self) -> list[Span]:
        """The spans since the last call, in the order in which they began."""
        spans, self.spans = sorted(self.spans, key=lambda span: span.start_ns), []
        return spans
