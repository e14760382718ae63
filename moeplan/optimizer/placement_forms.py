"""What each link's load depends on, coarsely: on which slots are on one side of it, or on their blocks of classes.

A program over blocks needs far fewer products than one over classes: of a dragonfly, a switch's local links ask only
which slots are on the switch, those between groups only in which groups slots are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.optimizer.slots import Slots
from moeplan.topology.inside import Floats, Integers

EXACT = 12
"""Digits to which shares are alike."""


class Cut(NamedTuple):
    """A link that carries all that leaves some classes, or all that comes to them."""

    link: int
    side: tuple[int, ...]
    """The classes on the smaller side, ascending."""
    leaving: bool
    """Whether it carries what leaves `side`."""
    share: Floats
    """Of what crosses, by shape [shapes]."""


class Forms(NamedTuple):
    """All links that depend on the order: cuts, and the others by blocks of classes."""

    cuts: tuple[Cut, ...]
    block: Integers
    """The block of each class [classes]; one for all where every link is a cut."""
    cells: dict[int, Floats]
    """Of the other links, what they carry of a pair of slots [shapes, blocks, blocks]."""


def forms_of(slots: Slots) -> Forms:
    """The forms of the links of `slots`."""
    count = np.bincount(slots.classes, minlength=slots.width)
    cuts, cells = [], {}
    for link, table in tables(slots).items():
        found = _cut(link, table, count)
        if found is None:
            cells[link] = table
        else:
            cuts.append(found)
    alike = [np.concatenate([table.transpose(1, 0, 2), table.transpose(2, 0, 1)], axis=1) for table in cells.values()]
    keys = [tuple(one[a].tobytes() for one in alike) for a in range(slots.width)]
    met: dict[object, int] = {}
    block = np.array([met.setdefault(key, len(met)) for key in keys], dtype=np.intp)
    first = np.array([keys.index(key) for key in met], dtype=np.intp)  # type: ignore[arg-type]
    return Forms(tuple(cuts), block, {link: table[:, first][:, :, first] for link, table in cells.items()})


def tables(slots: Slots) -> dict[int, Floats]:
    """Of each link the part of what slots on two classes send that it carries [shapes, classes, classes].

    From a class to itself, where it holds two slots, as to itself: nothing crosses a link that depends on the order.
    """
    found: dict[int, Floats] = {}
    width = slots.width
    shape, a, b = slots.row // width**2, slots.row // width % width, slots.row % width
    for at in np.argsort(slots.link, kind="stable"):
        table = found.setdefault(int(slots.link[at]), np.zeros((slots.shapes, width, width)))
        table[shape[at], a[at], b[at]] += round(float(slots.share[at]), EXACT)
    return found


def _cut(link: int, table: Floats, count: Integers) -> Cut | None:
    """`link` as a cut, if it is one."""
    crossed: NDArray[np.bool_] = np.any(table, axis=0)
    share = table.max(axis=(1, 2))
    side: NDArray[np.bool_] = np.any(crossed, axis=1)
    if not (crossed == np.outer(side, ~side)).all() or (table != share[:, None, None] * crossed).any():
        return None
    small = 2 * int(count[side].sum()) <= int(count.sum())
    return Cut(link, _numbers(side if small else ~side), small, share)


def _numbers(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())
