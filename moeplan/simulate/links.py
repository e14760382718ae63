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

    __slots__ = ("arrived", "demand", "left_ns", "number", "rate", "since_ns", "timer")

    def __init__(self, number: int, demand: Demand, arrived: Event, now_ns: int) -> None:
        self.number, self.demand, self.arrived = number, demand, arrived
        self.left_ns, self.rate, self.since_ns = float(demand.work_ns), 0.0, now_ns
        self.timer: Event | None = None
        """Of its departure at the present rate; any other timer is out of date."""


class Links:
    """All links of one simulation. A change is felt only by transfers that are joined to it through shared links."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.users: dict[int, dict[int, _Flow]] = {}
        """Transfers in flight by link and number."""
        self.changed: dict[int, None] = {}
        """Links that a transfer has entered or left in this nanosecond."""
        self.count = 0
        self.rates: dict[tuple[tuple[object, ...], ...], list[float]] = {}
        """Shares found before, by what the transfers ask: a pipeline repeats itself."""

    def carry(self, demand: Demand) -> Event:
        """An event that occurs when the rows of `demand`, which start to flow now, have arrived."""
        flow = _Flow(self.count, demand, Event(self.env), int(self.env.now))
        self.count += 1
        alone = not any(self.users.get(link) for link in demand.links)
        for link in demand.links:
            self.users.setdefault(link, {})[flow.number] = flow
        if alone:
            self._flow_at(flow, max_min([demand])[0])
        else:
            self._change(demand.links)
        return flow.arrived

    def _change(self, links: Sequence[int]) -> None:
        if not self.changed:
            Last(self.env, self._share)
        self.changed.update(dict.fromkeys(links))

    def _share(self) -> None:
        flows = self._joined(list(self.changed))
        self.changed = {}
        asked = tuple(flow.demand[2:] for flow in flows)
        if asked not in self.rates:
            self.rates[asked] = max_min([flow.demand for flow in flows])
        for flow, rate in zip(flows, self.rates[asked], strict=True):
            if flow.timer is None or rate != flow.rate:
                self._flow_at(flow, rate)

    def _joined(self, links: list[int]) -> list[_Flow]:
        """Transfers on `links` and on the links of those, and so on, in the order of arrival."""
        found: dict[int, _Flow] = {}
        for link in links:
            for number, flow in self.users.get(link, {}).items():
                if number not in found:
                    found[number] = flow
                    links.extend(flow.demand.links)
        return [found[number] for number in sorted(found)]

    def _flow_at(self, flow: _Flow, rate: float) -> None:
        now = int(self.env.now)
        flow.left_ns -= flow.rate * (now - flow.since_ns)
        flow.rate, flow.since_ns = rate, now
        flow.timer = Timeout(self.env, max(0, ceil(flow.left_ns / rate - TOLERANCE_NS)))
        flow.timer.callbacks.append(lambda timer: self._depart(flow, timer))

    def _depart(self, flow: _Flow, timer: Event) -> None:
        if timer is not flow.timer:
            return
        for link in flow.demand.links:
            self.users[link].pop(flow.number, None)
        flow.arrived.succeed()
        if any(self.users[link] for link in flow.demand.links):
            self._change(flow.demand.links)
