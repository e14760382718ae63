"""Which ranks of a cluster of equal nodes, switches and groups may stand for each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.topology.between import NONE, Access
from moeplan.topology.inside import Floats, Integers, Links


class Alike(NamedTuple):
    """Where each rank is, on a cluster whose nodes, switches and groups are all alike; five arrays [ranks].

    Two lists of ranks are alike where they have the same numbers within nodes, and share nodes, switches and tops in
    the same way: then the routes among the ranks of the one list cross links like those of the other.
    """

    row: Integers
    """The number of the GPU within its node."""
    node: Integers
    switch: Integers
    """The leaf or switch that the GPU's NIC is linked to."""
    unit: Integers
    """The switches that the NICs of the GPU's node are linked to; no two units share one."""
    top: Integers
    """The spine or group that the switch is linked to, from where all others are reached alike."""

    def islands(self, ranks: Integers, item: Integers) -> Integers:
        """A number for each item such that items with different numbers share no link [items].

        Item `item[i]` sends among its `ranks[i]` [n], and each item has at least one. Items inside one node are
        alone with those that touch the node, and so on for switches and tops; those that span tops are together.
        """
        first = np.empty(int(item.max(initial=-1)) + 1, dtype=np.intp)
        first[item[::-1]] = ranks[::-1]
        found, offset = np.zeros(first.size, dtype=np.intp), 1
        for place in (self.top, self.unit, self.switch, self.node):
            spans = np.zeros(first.size, dtype=bool)
            spans[item[place[ranks] != place[first][item]]] = True
            joined = np.zeros(int(place.max()) + 1, dtype=bool)
            joined[place[ranks][spans[item]]] = True
            found = np.where(joined[place[first]], found, offset + place[first])
            offset += joined.size
        return found

    def forms(self, ranks: Integers, island: Integers) -> NDArray[np.int32]:
        """Five numbers per rank, the same for two islands whose ranks are alike [n, 5]; `island` [n] ascends."""
        columns = [self.row[ranks]]
        for place in (self.node, self.switch, self.unit, self.top):
            _, first, number = np.unique(island * (int(place.max()) + 1) + place[ranks], True, True)
            order = np.argsort(first)
            met = np.empty(order.size, dtype=np.intp)
            met[order] = np.arange(order.size)
            columns.append(met[number])
        start = np.searchsorted(island, island)
        return np.stack([columns[0], *(met - met[start] for met in columns[1:])], axis=1).astype(np.int32)


def alike(ways: Access, home: Integers, gpu: Integers, links: Links, numbers: Floats) -> Alike | None:
    """The places of ranks where everything is alike, else None.

    `home` is the node of each vertex inside one, `gpu` the vertex of each rank, `numbers` are those of each edge
    [kinds of numbers, edges]. Nodes are alike if their edges are, one by one; switches if each has one edge to and one
    from a top, all the same; tops if every two are linked, all the same.
    """
    owner = home.copy()
    owner[ways.nic] = home[gpu]
    local = _numbered(owner)
    top = _tops(ways.core, ways.core_links, numbers)
    if top is None or not _equal_nodes(owner, local, links, numbers):
        return None
    places = home[gpu], ways.core, top[ways.core]
    node, switch, top = (np.unique(place, return_inverse=True)[1] for place in places)
    unit = _units(node, local[gpu], switch)
    return None if unit is None else Alike(local[gpu], node, switch, unit, top)


def _units(node: Integers, row: Integers, switch: Integers) -> Integers | None:
    """A number for the switches of each rank's node [ranks]; None where two nodes share some of theirs and not all.

    A node's GPUs are on the same switch where those of every other node are.
    """
    order = np.lexsort((row, node))
    table = switch[order].reshape(int(node.max()) + 1, -1)
    shape = np.array([np.unique(line, return_inverse=True)[1] for line in np.unique(table, axis=0)])
    lines, number = np.unique(table, axis=0, return_inverse=True)
    held = [set(line.tolist()) for line in lines]
    if not _same(shape) or sum(map(len, held)) > len(set().union(*held)):
        return None
    return np.asarray(number.reshape(-1)[node], dtype=np.intp)


def _numbered(owner: Integers) -> Integers:
    """Each vertex's number among those of the same owner [vertices]."""
    order = np.argsort(owner, kind="stable")
    number = np.empty(owner.size, dtype=np.intp)
    number[order] = np.arange(owner.size) - np.searchsorted(owner[order], owner[order])
    return number


def _equal_nodes(owner: Integers, local: Integers, links: Links, numbers: Floats) -> bool:
    """Whether the edges of all nodes have the same ends and numbers; edges that no owner holds are left out."""
    node = np.maximum(owner[links.tail], owner[links.head])
    edge = np.flatnonzero(node != NONE)
    a, b = (np.where(owner[end] == NONE, NONE, local[end])[edge] for end in (links.tail, links.head))
    order = np.lexsort((b, a, node[edge]))
    _, count = np.unique(node[edge], return_counts=True)
    if not _same(count):
        return False
    told = (a[order], b[order], *numbers[:, edge[order]])
    return all(bool((part == part[0]).all()) for part in (column.reshape(count.size, -1) for column in told))


def _tops(switches: Integers, core: Links, numbers: Floats) -> Integers | None:
    """The top of each switch [vertices], itself where it is the only one; None where switches or tops differ."""
    lower = np.zeros(core.vertices, dtype=bool)
    lower[switches] = True
    top = np.full(core.vertices, NONE, dtype=np.intp)
    if not core.edge.size and lower.sum() == 1:
        top[switches] = switches
        return top
    a, b, many = lower[core.tail], lower[core.head], int(lower.sum())
    up, down, across = (np.flatnonzero(part) for part in (a & ~b, b & ~a, ~a & ~b))
    top[core.tail[up]] = core.head[up]
    tops = np.unique(np.concatenate((core.head[up], core.tail[across], core.head[across]))).size  # detours use more
    right = not (a & b).any() and up.size == down.size == many and across.size == tops * (tops - 1)
    right = right and bool((top[lower] != NONE).all()) and bool((top[core.head[down]] == core.tail[down]).all())
    if (
        right
        and np.unique(core.head[down]).size == many
        and all(_same(n[core.edge[part]]) for n in numbers for part in (up, down, across))
    ):
        return top
    return None


def _same(values: Integers | Floats) -> bool:
    return bool((values == values[:1]).all())
