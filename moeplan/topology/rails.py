"""Transfers to a NIC on another switch: first inside the node, to a GPU whose NIC is on that switch."""

from __future__ import annotations

import numpy as np

from moeplan.topology.inside import Crossings, InsideNodes, Integers


class Rails:
    """The ranks of every node by the switch of their NIC."""

    def __init__(self, inside: InsideNodes, node: Integers, leaf: Integers, vertices: int) -> None:
        """`node` and `leaf`, a vertex, are those of each rank [ranks]."""
        self._inside, self._node, self._leaf, self._vertices = inside, node, leaf, vertices
        key = node * vertices + leaf
        self._order = np.argsort(key, kind="stable")
        self._keys, self._first, self._count = np.unique(key[self._order], return_index=True, return_counts=True)

    def proxies(self, source: Integers, target: Integers, far: Integers) -> tuple[Integers, Crossings]:
        """The ranks that send in place of `source` in the transfers numbered `far`, and the way there inside nodes.

        A rank that is on the target's switch itself, or whose node has none there, sends itself. Of several, each
        source takes one by its own number.
        """
        a, b = source[far], target[far]
        key = self._node[a] * self._vertices + self._leaf[b]
        at = np.minimum(np.searchsorted(self._keys, key), self._keys.size - 1)
        moves = (self._leaf[a] != self._leaf[b]) & (self._keys[at] == key)
        proxy = self._order[self._first[at] + a % self._count[at]]
        moves[moves] = self._inside.reaches(a[moves], proxy[moves])
        sender = source.copy()
        sender[far[moves]] = proxy[moves]
        return sender, self._inside.crossings(far[moves], a[moves], proxy[moves])
