"""What happens last within a nanosecond: decisions that must see all that arrives in it, whatever the order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simpy import Environment, Event
from simpy.events import EventPriority

LAST = EventPriority(2)
"""After SimPy's urgent (0) and normal (1) events of the same time."""


class Last(Event):
    """Calls `action` once every other event of the current nanosecond has been processed."""

    def __init__(self, env: Environment, action: Callable[[], None]) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        self.callbacks.append(lambda _: action())
        env.schedule(self, LAST)


class Turns:
    """One operation at a time: first come, first served; of those that come at once, the smallest id first."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.queue: list[tuple[int, int, Event]] = []
        self.free = True

    def take(self, number: int) -> Event:
        """An event that occurs when it is the turn of operation `number`, which then must `leave`."""
        turn = Event(self.env)
        heappush(self.queue, (int(self.env.now), number, turn))
        Last(self.env, self._next)
        return turn

    def leave(self, _: Any = None) -> None:
        """The running operation has ended."""
        self.free = True
        Last(self.env, self._next)

    def _next(self) -> None:
        if self.free and self.queue:
            self.free = False
            heappop(self.queue)[2].succeed()
