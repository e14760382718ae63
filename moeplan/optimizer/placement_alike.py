"""Sets of classes that may change places without any link noticing, so that one order stands for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from moeplan.optimizer.placement_forms import tables
from moeplan.optimizer.slots import Slots
from moeplan.topology.inside import Integers

Side = tuple[int, ...]


def alike_sets(slots: Slots) -> list[list[Side]]:
    """Lists of sets of classes of which any two may change places; no two sets of all lists cut each other.

    A class alone, or all classes that a link tells from the others. Checked link by link: with two sets exchanged,
    every link's load must be that of a link of the same bandwidth before.
    """
    same = _Same(slots)
    found: list[list[Side]] = []
    kept: list[Side] = []
    for side in sorted(_candidates(slots), key=lambda side: (len(side), side)):
        if any(set(side) & set(other) and not set(other) <= set(side) for other in kept):
            continue
        kept.append(side)
        for some in found:
            if same.exchanged(some[0], side):
                some.append(side)
                break
        else:
            found.append([side])
    return [some for some in found if len(some) > 1]


def _candidates(slots: Slots) -> set[Side]:
    """Every class, and the sets of classes from which a link carries, or to which."""
    sides: set[Side] = {(a,) for a in range(slots.width)}
    for table in tables(slots).values():
        for axes in ((0, 1), (0, 2)):
            sides.add(tuple(np.flatnonzero(np.any(table, axis=axes)).tolist()))
    return {side for side in sides if 2 * len(side) <= slots.width}


class _Same:
    """The links of slots as a multiset, to be compared with itself after an exchange of classes."""

    def __init__(self, slots: Slots) -> None:
        around = slots.detours
        speed = slots.bandwidth
        own = [(float(one), 0) for one in speed]
        if around is not None:
            for link in around.links:
                own[link] = (float(speed[link]), 1)
        self._apart = around is not None and np.unique(speed[around.links]).size > 1
        self._tables = [(own[link], table) for link, table in tables(slots).items()]
        self._count = np.bincount(slots.classes, minlength=slots.width)
        self._given = self._multiset(np.arange(slots.width))

    def exchanged(self, one: Side, other: Side) -> bool:
        """Whether the classes of `one` may stand where those of `other` are, and these there.

        With adaptive routing only where all groups are joined alike.
        """
        if self._apart or len(one) != len(other) or set(one) & set(other):
            return False
        a, b = (sorted(side, key=self._form) for side in (one, other))
        to = np.arange(self._count.size)
        to[a], to[b] = b, a
        return bool((self._count[to] == self._count).all()) and self._multiset(to) == self._given

    def _form(self, a: int) -> tuple[object, ...]:
        """What tells classes of a set apart, whatever their number: nodes, and what their links carry."""
        own = sorted((link, float(t[:, a].sum()), float(t[:, :, a].sum())) for link, t in self._tables)
        return int(self._count[a]), own

    def _multiset(self, to: Integers) -> list[tuple[tuple[float, int], bytes]]:
        return sorted((link, np.ascontiguousarray(table[:, to][:, :, to]).tobytes()) for link, table in self._tables)


def first_come_first(sets: Sequence[Side], slots: int) -> Iterator[tuple[int, Side, Side]]:
    """(slot, set, set before): the slot may be on the set only where an earlier slot is on the one before it.

    Of all orders that differ by exchanges of `sets` this leaves one.
    """
    for before, side in pairwise(sets):
        for slot in range(slots):
            yield slot, side, before
