"""Shared links: transfers in flight get their max-min fair share of all links they use, as fluid.

Shares change when a transfer arrives or departs and at no other time. Ends are rounded up to whole nanoseconds, so a
transfer never ends before its work is done and holds its links for less than one nanosecond longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from simpy import Environment, Event
from simpy.events import Timeout

from moeplan.simulate.instant import Last

TOLERANCE_NS = 1e-3
"""Work below this is rounding."""


class Demand(NamedTuple):
    """What one transfer asks of the links; alone it takes latency_ns + work_ns."""

    latency_ns: int
    """Before the first row arrives; holds no link."""
    work_ns: int
    """Time of the rows at full rate."""
    links: tuple[int, ...]
    """Numbers of the links it uses: at least the sender's way out and the receiver's way in."""
    shares: tuple[float, ...]
    """Part of each link that it fills at full rate, in (0, 1]."""
    bandwidth: float = 1.0
    """At full rate, in any unit common to all demands: a link that is too narrow is shared equally by bandwidth."""


def max_min(demands: Sequence[Demand]) -> list[float]:
    """The rate of each transfer in (0, 1] of its full rate, max-min fair in bandwidth.

    Progressive filling: the bandwidth t of all transfers grows together; a transfer stops at its own bandwidth, or when
    a link of its is full, sum over transfers of shares x rate = 1.
    """
    rates = [1.0] * len(demands)
    room: dict[int, float] = {}
    users: dict[int, dict[int, float]] = {}
    for number, demand in enumerate(demands):
        for link, share in zip(demand.links, demand.shares, strict=True):
            room[link] = 1.0
            claims = users.setdefault(link, {})
            claims[number] = claims.get(number, 0.0) + share / demand.bandwidth
    growing, reached = set(range(len(demands))), 0.0
    while growing:
        levels = [(room[link] / sum(claims.values()), link) for link, claims in users.items() if claims]
        level, narrow = min(levels, default=(float("inf"), -1))
        reached = level = max(level, reached)
        capped = [n for n in growing if demands[n].bandwidth <= level]
        for number in capped or sorted(users[narrow]):
            bandwidth = min(level, demands[number].bandwidth)
            rates[number] = bandwidth / demands[number].bandwidth
            growing.discard(number)
            for link in demands[number].links:
                room[link] -= users[link].pop(number, 0.0) * bandwidth
    return rates


class _Flow:
    """A transfer in flight."""

    __slots__ = ("arrived", "demand", "left_ns", "rate")

    def __init__(self, demand: Demand, arrived: Event) -> None:
        self.demand, self.arrived = demand, arrived
        self.left_ns, self.rate = float(demand.work_ns), 0.0


class Links:
    """All links of one simulation."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.flows: list[_Flow] = []
        self.since_ns = 0
        """When rates last changed or work was last counted."""
        self.timer: Event | None = None
        """Of the next departure; any other timer is out of date."""
        self.changed = False
        """Whether flows came or went in this nanosecond and shares are due at its end."""

    def carry(self, demand: Demand) -> Event:
        """An event that occurs when the rows of `demand`, which start to flow now, have arrived."""
        flow = _Flow(demand, Event(self.env))
        self._count()
        self.flows.append(flow)
        self._change()
        return flow.arrived

    def _count(self) -> None:
        elapsed = int(self.env.now) - self.since_ns
        if elapsed:
            self.since_ns += elapsed
            for flow in self.flows:
                flow.left_ns -= flow.rate * elapsed

    def _change(self) -> None:
        self.timer = None
        if not self.changed:
            self.changed = True
            Last(self.env, self._share)

    def _share(self) -> None:
        self.changed = False
        rates = max_min([flow.demand for flow in self.flows])
        for flow, rate in zip(self.flows, rates, strict=True):
            flow.rate = rate
        if self.flows:
            soonest = min(flow.left_ns / flow.rate for flow in self.flows)
            self.timer = Timeout(self.env, max(0, ceil(soonest - TOLERANCE_NS)))
            self.timer.callbacks.append(self._depart)

    def _depart(self, timer: Event) -> None:
        if timer is not self.timer:
            return
        self._count()
        for flow in self.flows:
            if flow.left_ns <= TOLERANCE_NS:
                flow.arrived.succeed()
        self.flows = [flow for flow in self.flows if flow.left_ns > TOLERANCE_NS]
        self._change()
