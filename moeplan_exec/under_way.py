"""Exchanges that go on while their rank does other things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from moeplan_exec.lanes import Lanes
from moeplan_exec.worker import Worker

T = TypeVar("T")


class Underway(Generic[T]):
    """Work over `lanes` in a thread of its own; it begins after that which was begun before over the same ones.

    All ranks begin theirs in the same order. On a GPU, which has not been tried, the thread would use the default
    stream, and what it waits for there would hold up whatever else does.
    """

    def __init__(self, work: Callable[[], T], lanes: Lanes) -> None:
        self.results: list[T] = []
        before = lanes.last

        def in_order() -> None:
            if before is not None:
                before.join()
            self.results.append(work())

        self.worker = lanes.last = Worker(in_order)

    def wait(self) -> T:
        """What the work brought, once it is here; raises what it raised."""
        self.worker.join()
        return self.results[0]
