"""The shortest paths inside all nodes, found in all nodes at the same time.

A transfer is split equally over its shortest paths in hops: an edge from u to v carries, of what reaches v, the part
paths(u) / paths(v), where paths(v) is the number of shortest paths from the transfer's source to v.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.intp]
Floats = NDArray[np.float64]


class Crossings(NamedTuple):
    """Every (transfer, edge) such that the transfer crosses the edge, as arrays [crossings]."""

    transfer: Integers
    edge: Integers
    share: Floats
    """The part of the transfer's bytes that crosses the edge, in (0, 1]."""


class Links(NamedTuple):
    """Edges inside nodes, in any order; vertices and edges have the numbers of the whole graph."""

    edge: Integers
    tail: Integers
    head: Integers
    vertices: int
    """Of the whole graph."""


class InsideNodes:
    """Shortest paths from the k-th GPU of every node to all vertices of that node, k being a row.

    Takes memory for (GPUs of a node) x (vertices of the graph) numbers.
    """

    def __init__(self, links: Links, gpu: Integers, row: Integers) -> None:
        """`gpu` is the vertex of each rank [ranks], `row` its number within its node [ranks]."""
        order = np.argsort(links.head, kind="stable")
        self._edge, self._tail, self._head = (part[order] for part in (links.edge, links.tail, links.head))
        self._gpu, self._row, self._vertices = gpu, row, links.vertices
        self._hops, paths = self._count()
        rows, step = np.nonzero(self._hops[:, self._tail] + 1 == self._hops[:, self._head])
        key = rows * self._vertices + self._head[step]  # ascending, since edges are sorted by head
        self._first = np.searchsorted(key, np.arange(self._hops.size + 1))
        self._step = step
        self._part = paths[rows, self._tail[step]] / paths[rows, self._head[step]]

    def reaches(self, source: Integers, target: Integers) -> NDArray[np.bool_]:
        """Whether links inside the node join the ranks `source` and `target`, of one node, by at least one hop."""
        return self._hops[self._row[source], self._gpu[target]] > 0

    def crossings(self, transfer: Integers, source: Integers, target: Integers) -> Crossings:
        """The edges of the transfers numbered `transfer`, last edges first; each must be reached."""
        cells, share = self._row[source] * self._vertices + self._gpu[target], np.ones(transfer.size)
        edges = [(transfer[:0], transfer[:0], share[:0])]
        while transfer.size:
            count = self._first[cells + 1] - self._first[cells]
            came = np.repeat(np.arange(cells.size), count)
            nth = np.arange(came.size) - np.repeat(np.cumsum(count) - count, count)
            at = self._first[cells][came] + nth
            step, transfer, share = self._step[at], transfer[came], share[came] * self._part[at]
            edges.append((transfer, self._edge[step], share))
            cells = cells[came] - self._head[step] + self._tail[step]
            transfer, cells, share = _merged(transfer, cells, share, self._hops.size)
            going = self._hops.ravel()[cells] > 0
            transfer, cells, share = transfer[going], cells[going], share[going]
        return Crossings(*(np.concatenate(part) for part in zip(*edges, strict=True)))

    def _count(self) -> tuple[Integers, Floats]:
        """Hops (-1 where there is no path) and number of shortest paths, by breadth-first search [rows, vertices]."""
        hops = np.full((int(self._row.max(initial=-1)) + 1, self._vertices), -1, dtype=np.intp)
        paths = np.zeros(hops.shape)
        hops[self._row, self._gpu], paths[self._row, self._gpu] = 0, 1.0
        for level in range(self._vertices):
            row, step = np.nonzero((hops[:, self._tail] == level) & (hops[:, self._head] < 0))
            if not row.size:
                break
            np.add.at(paths, (row, self._head[step]), paths[row, self._tail[step]])
            hops[row, self._head[step]] = level + 1
        return hops, paths


def _merged(transfer: Integers, cells: Integers, share: Floats, size: int) -> tuple[Integers, Integers, Floats]:
    """Parts of one transfer that meet in a cell, as one; so that there are never more parts than edges."""
    both, same = np.unique(transfer * size + cells, return_inverse=True)
    return both // size, both % size, np.asarray(np.bincount(same, share), dtype=np.float64)
