"""Shortest paths between nodes: one search over few vertices, and the one way of every GPU to them and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.errors import SpecError
from moeplan.topology.inside import Integers, Links

NONE = -1
MOST_ENTRIES = 2**31
"""Pairs of vertices whose route may be known at the same time: 8 GiB."""
AT_ONCE = 2**27
"""Starts times edges that are searched at the same time: 128 MiB, a few times."""
KINDS = {"gpu": 0, "node": 1, "bridge": 1, "nic": 2}
GPU, _, NIC, CORE = range(4)
"""Kinds of vertices; all that are neither GPUs, switches inside nodes, nor NICs are the core."""


class Search:
    """One shortest path in hops between any two vertices of `links`, searched once per start.

    Of equal paths, each vertex is entered by the edge that comes first in `links`. Takes memory for
    (starts asked for) x (vertices that links join) numbers; SpecError where these are more than MOST_ENTRIES.
    """

    def __init__(self, links: Links) -> None:
        joined = np.unique(np.concatenate((links.tail, links.head)))
        self._edge, self._number = links.edge, np.full(links.vertices, NONE, dtype=np.intp)
        self._number[joined] = np.arange(joined.size)
        self._tail, self._head = self._number[links.tail], self._number[links.head]
        self._from = np.append(self._tail, NONE)  # the last one: of a vertex that is not entered
        self._row = np.full(joined.size, NONE, dtype=np.intp)
        self._entry = np.empty((0, joined.size), dtype=np.int32)

    def steps(self, start: Integers, end: Integers) -> tuple[list[tuple[Integers, Integers]], Integers]:
        """The numbers [some] of the pairs `start[i]`, `end[i]` [pairs] still on their way, and the edges they take.

        A list of steps, first edges first; and the numbers of the pairs that no path joins.
        """
        going = np.flatnonzero(start != end)
        begin, at = self._number[start[going]], self._number[end[going]]
        if (lost := going[(begin == NONE) | (at == NONE)]).size:
            return [], lost
        row, steps = self._searched(begin), []
        while going.size:
            entry = self._entry[row, at]
            if (lost := going[entry == NONE]).size:
                return [], lost
            steps.append((going, self._edge[entry]))
            at = self._tail[entry]
            left = at != begin
            going, begin, row, at = going[left], begin[left], row[left], at[left]
        return steps[::-1], going

    def _searched(self, starts: Integers) -> Integers:
        """The row of each of `starts` in the table of entries, which grows by those that are new."""
        new = np.unique(starts[self._row[starts] == NONE])
        rows, vertices = len(self._entry) + new.size, self._row.size
        if rows * vertices > MOST_ENTRIES:
            raise SpecError(
                f"graph: routes from {rows} vertices to {vertices} are too many to search; where each GPU has one NIC,"
                " and all NICs of a node are linked to the same switch, few are needed"
            )
        if new.size:
            self._row[new] = np.arange(len(self._entry), rows)
            parts = np.array_split(new, -(-new.size * self._edge.size // AT_ONCE))
            self._entry = np.concatenate([self._entry, *map(self._search, parts)])
        return self._row[starts]

    def _search(self, starts: Integers) -> NDArray[np.int32]:
        """The edge that enters each vertex [starts, vertices], breadth first, one level of hops per round."""
        entry = np.full((self._row.size, starts.size), NONE, dtype=np.int32)
        seen, reached = np.zeros(entry.shape, dtype=bool), np.zeros(entry.shape, dtype=bool)
        seen[starts, np.arange(starts.size)] = reached[starts, np.arange(starts.size)] = True
        while reached.any():
            edge, column = np.nonzero(reached[self._tail] & ~seen[self._head])
            edge, column = edge[::-1], column[::-1]  # of several writes the last one stays: the edge that comes first
            entry[self._head[edge], column] = edge
            reached[:] = False
            reached[self._head[edge], column] = seen[self._head[edge], column] = True
        return entry.T


class Access(NamedTuple):
    """The one way of every GPU to the core and back."""

    up: tuple[Integers, Integers]
    """The edges from the GPU to its NIC and on to the core, each [ranks]."""
    down: tuple[Integers, Integers]
    """The edges from the core to the NIC and on to the GPU, each [ranks]."""
    core: Integers
    """The vertex of the core that the NIC is linked to [ranks]."""
    nic: Integers
    """[ranks]"""
    core_links: Links
    """The edges of the core."""
    across: Search
    """Paths in the core."""


def access(kind: Integers, links: Links, gpu: Integers, node: Integers, inside: NDArray[np.bool_]) -> Access | None:
    """How GPUs reach the core, where there is only one way; None where there are others.

    There is one where every GPU has one NIC, in both directions, every NIC one vertex of the core, no NIC serves two
    nodes, all NICs of a node have the same vertex of the core, or several alike in all nodes, and edges are of no other
    kind. Then a route to another node is up, across the core and down; with one vertex, any other has more hops.
    `kind` is that of each vertex, `gpu` the vertex and `node` the node of each rank, `inside` whether an edge is inside
    a node.
    """
    edge, tail, head, vertices = links
    a, b = kind[tail], kind[head]
    ways = [(GPU, NIC, tail), (NIC, CORE, tail), (CORE, NIC, head), (NIC, GPU, head)]
    edges = [np.flatnonzero(~inside & (a == one) & (b == other)) for one, other, _ in ways]
    core = np.flatnonzero((a == CORE) & (b == CORE))
    if sum(part.size for part in edges) + core.size + inside.sum() < edge.size:
        return None
    taken = [_only(part, end[part], vertices) for part, (_, _, end) in zip(edges, ways, strict=True)]
    nics = np.flatnonzero(kind == NIC)
    if any((way[used] == NONE).any() for way, used in zip(taken, (gpu, nics, nics, gpu), strict=True)):
        return None
    up, out, back, down = taken
    nic, far = head[up[gpu]], np.full(vertices, NONE, dtype=np.intp)
    far[nics] = head[out[nics]]
    one_way = (nic == tail[down[gpu]]).all() and (far[nics] == tail[back[nics]]).all()
    if not one_way or differs(node, nic) or not _regular(far[nic], node):
        return None
    across = Links(edge[core], tail[core], head[core], vertices)
    return Access(
        (edge[up[gpu]], edge[out[nic]]), (edge[back[nic]], edge[down[gpu]]), far[nic], nic, across, Search(across)
    )


def _only(edges: Integers, ends: Integers, vertices: int) -> Integers:
    """The edge of each vertex, of `edges` that end there [vertices]; NONE where there are several, or none."""
    found = np.full(vertices, NONE, dtype=np.intp)
    found[ends] = edges
    found[np.bincount(ends, minlength=vertices) > 1] = NONE
    return found


def _regular(leaf: Integers, node: Integers) -> bool:
    """Whether GPUs of a node are on one switch or several where those of every other node are."""
    if not differs(leaf, node):
        return True
    count = np.bincount(node)
    if (count != count[0]).any():
        return False
    table = leaf[np.argsort(node, kind="stable")].reshape(count.size, -1)
    met = np.array([np.unique(line, return_inverse=True)[1] for line in np.unique(table, axis=0)])
    return bool((met == met[0]).all())


def differs(value: Integers, owner: Integers) -> bool:
    """Whether the `value` of one `owner` [n] is not the same everywhere."""
    _, first, number = np.unique(owner, return_index=True, return_inverse=True)
    return bool((value[first][number] != value).any())
