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
DETOURS = 1000
"""How many times as long the loads of an order take with detours."""
KICKS, MOST_KICKS = 40, 400
"""For each node, and in all."""
SHARP = 8
"""Power in the mean of link loads that guides a search: high enough that the busiest links count most."""


def search(slots: Slots, starts: Sequence[Integers]) -> tuple[Integers, Score]:
    """The best order of classes found and its score; never worse than the best of `starts`, each [nodes].

    Local search by swaps of two slots, twice from each start: by the busiest link, then the sum of all, and by a power
    mean of all; after that from the best order with some or all slots exchanged at random, the same for equal inputs.
    Ends early where `MOST_WORK` is done. Where routing is adaptive, detours are left out until the last climb.
    """

    def rank(order: Integers) -> tuple[float, float]:
        return slots.score(order).rank

    climb = _Climb(slots)
    orders = [*starts, _packed(slots)]
    best = min((climb.up(order, sharp) for order in orders for sharp in (False, True)), key=rank)
    draw = np.random.default_rng(0)
    for kick in range(min(MOST_KICKS, KICKS * best.size)):
        if climb.done() or (slots.fixed_s and slots.score(best).busiest_s <= slots.fixed_s):
            break
        begin = draw.permutation(best) if kick % 2 else climb.up(_kicked(best, draw), sharp=True)
        order = climb.up(begin, sharp=False)
        best = min(best, order, key=rank)
    if slots.fabric.adaptive:
        best = _Climb(slots, detours=True).up(best, sharp=False)
    best = min([*starts, best], key=rank)
    return best, slots.score(best)


class _Climb:
    """Swaps that lessen the load, and how much was looked at for it."""

    def __init__(self, slots: Slots, *, detours: bool = False) -> None:
        self._slots, self._work, self._detours = slots, 0, detours
        self._pairs = np.triu_indices(slots.classes.size, 1)
        self._each = (slots.source.size + slots.row.size + slots.edges.size + 1) * (DETOURS if detours else 1)

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
        loads = self._slots.loads(orders, detours=self._detours)
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
