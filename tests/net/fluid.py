"""Max-min fair flows over shared links: how long an exchange of messages takes on an ideal network.

Independent of the cost model: it sees ranks that walk through windows of messages, and links with a rate.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Flow(NamedTuple):
    """A message; it begins `lag_s` after both ends are in its window, and they see its end `lag_s` after it."""

    source: int
    target: int
    bytes: float
    links: tuple[str, ...]
    lag_s: float = 0.0
    window: int = 0


def fair(paths: Mapping[int, Sequence[str]], rates: Mapping[str, float]) -> dict[int, float]:
    """Bytes per second of each flow: the fullest link fixes its flows at equal shares, then the next one."""
    left, open_ = dict(rates), dict(paths)
    found = {number: float("inf") for number, links in open_.items() if not links}
    for number in found:
        del open_[number]
    while open_:
        users: dict[str, list[int]] = {}
        for number, links in open_.items():
            for link in links:
                users.setdefault(link, []).append(number)
        tight = min(users, key=lambda link: left[link] / len(users[link]))
        share = left[tight] / len(users[tight])
        for number in users[tight]:
            found[number] = share
            for link in open_.pop(number):
                left[link] -= share
    return found


def finish_s(flows: Sequence[Flow], rates: Mapping[str, float], begin_s: Mapping[int, float]) -> dict[int, float]:
    """Seconds until each rank of `begin_s` has all its messages, having begun at its own time.

    A rank enters a window when all its messages of the windows before are over.
    """
    todo = {rank: {} for rank in begin_s}
    for number, flow in enumerate(flows):
        for rank in {flow.source, flow.target}:
            todo[rank].setdefault(flow.window, set()).add(number)
    here = {}  # rank -> its window; ranks that are not yet there or through are absent
    events = [(at, "enter", rank) for rank, at in begin_s.items()]
    heapq.heapify(events)
    left, finish, now = {}, {}, 0.0
    while events or left:
        speed = fair({n: flows[n].links for n in left}, rates)
        next_end = min((now + left[n] / speed[n] for n in left), default=float("inf"))
        until = min(next_end, events[0][0] if events else float("inf"))
        left = {n: bytes_ - speed[n] * (until - now) if speed[n] < float("inf") else 0.0 for n, bytes_ in left.items()}
        now = until
        for n in [n for n, bytes_ in left.items() if bytes_ < 0.5]:
            del left[n]
            heapq.heappush(events, (now + flows[n].lag_s, "over", n))
        while events and events[0][0] <= now:
            _, kind, what = heapq.heappop(events)
            if kind == "start":
                left[what] = flows[what].bytes
                continue
            ranks = [what] if kind == "enter" else sorted({flows[what].source, flows[what].target})
            for rank in ranks:
                if kind == "over":
                    todo[rank][flows[what].window].discard(what)
                if kind == "enter" or not todo[rank].get(here[rank]):
                    _enter(rank, now, todo, here, finish, flows, events)
    return finish


def _enter(rank, now, todo, here, finish, flows, events):
    """Move `rank` into its next window that has messages; those whose other end is there too begin."""
    windows = sorted(w for w, numbers in todo[rank].items() if numbers)
    if not windows:
        finish[rank] = now
        here[rank] = None
        return
    here[rank] = windows[0]
    for n in todo[rank][windows[0]]:
        other = flows[n].target if flows[n].source == rank else flows[n].source
        if here.get(other) == flows[n].window:
            heapq.heappush(events, (now + flows[n].lag_s, "start", n))
