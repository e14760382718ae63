"""A good order of nodes, fast: from several first orders, slots change places while that makes the links less busy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from moeplan.optimizer.slots import Score, Slots
from moeplan.topology.inside import Floats, Integers

MOST_WORK = 10**8
"""Pairs of slots and crossings looked at in one search, which takes some seconds at most."""
AT_ONCE = 4 * 10**6
"""The same of one array."""
DETOURS = 50
"""How many times as long the loads of an order take with detours."""
LAST, LAST_KICKS = 5, 15
"""Ends of climbs without detours from which the last climbs with them begin, and those from the best of these."""
KICKS, MOST_KICKS = 40, 400
"""For each node, and in all."""
SHARP = 8
"""Power in the mean of link loads that guides a search: high enough that the busiest links count most."""


def search(slots: Slots, starts: Sequence[Integers]) -> tuple[Integers, Score]:
    """The best order of classes found and its score; never worse than the best of `starts`, each [nodes].

    Local search by swaps of two slots, twice from each start: by the busiest link, then the sum of all, and by a power
    mean of all; after that from the best order with some or all slots exchanged at random, the same for equal inputs.
    Ends early where `MOST_WORK` is done. Where routing is adaptive, climbs go by what detours cannot lessen; their ends
    are judged with detours, and the last climbs from the best of them go by these.
    """
    climb = _Climb(slots)
    orders = [*starts, _packed(slots)]
    ends: list[Integers] = [climb.up(order, sharp) for order in orders for sharp in (False, True)]
    ranks = [climb.rank(end) for end in ends]
    best, rank = ends[ranks.index(min(ranks))], min(ranks)
    draw = np.random.default_rng(0)
    for kick in range(min(MOST_KICKS, KICKS * best.size)):
        if climb.done() or (slots.fixed_s and rank[0] <= slots.fixed_s):
            break
        begin = draw.permutation(best) if kick % 2 else climb.up(_kicked(best, draw), sharp=True)
        end = climb.up(begin, sharp=False)
        ends.append(end)
        best, rank = min((best, rank), (end, climb.rank(end)), key=lambda one: one[1])
    final = [best] if slots.detours is None else _with_detours(slots, ends, draw)
    best = _ranked(slots, [*starts, *final])[0]
    return best, slots.score(best)


def _with_detours(slots: Slots, ends: Sequence[Integers], draw: np.random.Generator) -> list[Integers]:
    """Where climbs with detours end that begin at the best of `ends`, and at the best of all with some exchanged."""
    climb = _Climb(slots, detours=True)
    final = [climb.up(end, sharp=False) for end in _ranked(slots, ends)[:LAST]]
    for _ in range(LAST_KICKS):
        if climb.done():
            break
        final = _ranked(slots, final)[:1]
        final.append(climb.up(_kicked(final[0], draw), sharp=False))
    return final


def _ranked(slots: Slots, orders: Sequence[Integers]) -> list[Integers]:
    """`orders` by their scores, each once; of those with equal scores the first comes first."""
    distinct = np.array([*{order.tobytes(): order for order in orders}.values()])
    loads = slots.loads(distinct)
    busiest = np.maximum(slots.fixed_s, loads.max(axis=1, initial=0.0))
    ranks = [Score(*map(float, pair)).rank for pair in zip(busiest, loads.sum(axis=1), strict=True)]
    return [distinct[i] for i in sorted(range(len(ranks)), key=ranks.__getitem__)]


class _Climb:
    """Swaps that lessen the load, and how much was looked at for it."""

    def __init__(self, slots: Slots, *, detours: bool = False) -> None:
        self._slots, self._work, self._detours = slots, 0, detours
        self._pairs = np.triu_indices(slots.classes.size, 1)
        self._each = (slots.source.size + slots.row.size + slots.edges.size + 1) * (DETOURS if detours else 1)

    def rank(self, order: Integers) -> tuple[float, float]:
        """What ends of climbs are sorted by."""
        busiest, total = self._values(order[None], sharp=False)[0]
        return Score(float(busiest), float(total)).rank

    def done(self) -> bool:
        return self._work > MOST_WORK

    def up(self, order: Integers, sharp: bool) -> Integers:
        """`order` after the best swap of all, again and again while there is one that helps."""
        value = self._values(order[None], sharp)[0]
        while not self.done():
            found = [
                (tuple(values[i]), tried[i])
                for tried in self._swaps(order)
                for values in [self._values(tried, sharp)]
                for i in [int(np.lexsort(values.T[::-1])[0])]
            ]
            better, tried = min(found, key=lambda one: one[0], default=(tuple(value), order))
            if not _less(better, tuple(value)):
                break
            order, value = tried, np.array(better)
        return order

    def _swaps(self, order: Integers) -> Iterator[Integers]:
        """`order` with two slots on different classes swapped, all of them, in parts."""
        a, b = self._pairs
        differ = order[a] != order[b]
        a, b = a[differ], b[differ]
        step = max(1, AT_ONCE // self._each)
        for start in range(0, a.size, step):
            if self.done():
                return
            some, other = a[start : start + step], b[start : start + step]
            tried = np.tile(order, (some.size, 1))
            at = np.arange(some.size)
            tried[at, some], tried[at, other] = order[other], order[some]
            yield tried

    def _values(self, orders: Integers, sharp: bool) -> Floats:
        """What is to become less, the first first [orders, 2]."""
        self._work += len(orders) * self._each
        loads = self._slots.loads(orders) if self._detours else self._slots.least(orders)
        busiest = np.maximum(self._slots.fixed_s, loads.max(axis=1, initial=0.0))
        if not sharp:
            return np.stack([busiest, loads.sum(axis=1)], axis=1)
        highest = np.maximum(loads.max(axis=1, initial=0.0), 1e-300)
        mean = highest * ((loads / highest[:, None]) ** SHARP).sum(axis=1) ** (1 / SHARP)
        return np.stack([mean, busiest], axis=1)


def _less(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether `one` comes first by more than rounding."""
    for a, b in zip(one, other, strict=True):
        if abs(a - b) > 1e-9 * max(abs(a), abs(b)):
            return a < b
    return False


def _kicked(order: Integers, draw: np.random.Generator) -> Integers:
    """`order` with three slots or more, up to a third, exchanged."""
    kicked = order.copy()
    some = draw.choice(order.size, size=min(order.size, int(draw.integers(3, 4 + order.size // 3))), replace=False)
    kicked[some] = kicked[draw.permutation(some)]
    return kicked


def _packed(slots: Slots) -> Integers:
    """Classes filled one after another, the largest first, each with the slots that send most to those in it."""
    count = np.bincount(slots.classes)
    traffic = np.zeros((slots.classes.size,) * 2)
    np.add.at(traffic, (slots.source, slots.target), slots.bytes)
    traffic += traffic.T
    order = np.full(slots.classes.size, -1, dtype=np.intp)
    for one in np.argsort(-count, kind="stable"):
        pull = np.zeros(order.size)
        for _ in range(count[one]):
            slot = int(np.argmax(np.where(order < 0, pull - 1e-9 * traffic.sum(axis=1) * (pull > 0), -np.inf)))
            order[slot] = one
            pull += traffic[slot]
    return order
