"""Which links a transfer crosses, and how many bytes each link carries when many transfers run at the same time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moeplan.errors import SpecError
from moeplan.topology.graph import Edge, Graph

Integers = NDArray[np.intp]
Floats = NDArray[np.float64]

_NONE = -1


class Crossings(NamedTuple):
    """Every (transfer, edge) such that the transfer crosses the edge, as two index arrays [crossings]."""

    transfer: Integers
    edge: Integers


class Fabric:
    """The routes of a graph, with its edges as arrays [edges]; build a new one after editing the graph.

    A route is a shortest path in hops; of equal ones, each vertex is entered by the edge that comes first in
    `graph.edges`. Adaptive and multi-path routing are left out: a link may look busier than it would be.
    """

    def __init__(self, graph: Graph) -> None:
        """Read the edges; SpecError names the edge whose bandwidth is not positive or whose latency is negative."""
        index = {vertex: i for i, vertex in enumerate(graph)}
        self.edges: tuple[Edge, ...] = tuple(graph.edges)
        self.bandwidth_bytes_per_s = _attribute(graph, "bandwidth_bytes_per_s")
        self.latency_s = _attribute(graph, "latency_s")
        self.inside_node = np.array([{a[0], b[0]} <= {"gpu", "node"} for a, b in self.edges], dtype=bool)
        """Whether the edge is a link of the network inside a node."""
        self._tail = np.array([index[a] for a, _ in self.edges], dtype=np.intp)
        self._head = np.array([index[b] for _, b in self.edges], dtype=np.intp)
        self._gpu = np.array([index["gpu", r] for r in range(sum(v[0] == "gpu" for v in graph))], dtype=np.intp)
        self._node = {a[1]: b[1] for a, b in self.edges if a[0] == "gpu" and b[0] == "node"}
        self._vertices = len(index)
        self._entries: dict[int, Integers] = {}
        _check_links(self)

    @property
    def num_ranks(self) -> int:
        """GPUs of the graph."""
        return len(self._gpu)

    def node_of(self, ranks: ArrayLike) -> Integers:
        """The node of each of `ranks` [n]: the switch that its GPU is linked to."""
        return np.array([self._node[int(r)] for r in _ranks(ranks, self.num_ranks)], dtype=np.intp)

    def crossings(self, sources: ArrayLike, targets: ArrayLike) -> Crossings:
        """The edges crossed by the transfers `sources[i]` to `targets[i]` [transfers]; from a rank to itself, none.

        Raises SpecError for a rank that does not exist or cannot be reached.
        """
        source, target = _ranks(sources, self.num_ranks), _ranks(targets, self.num_ranks)
        starts, row = np.unique(source, return_inverse=True)
        entry = self._entering(starts)
        at, moving = self._gpu[target], np.flatnonzero(source != target)
        steps = [Crossings(moving[:0], moving[:0])]
        while moving.size:
            edge = entry[row[moving], at[moving]]
            if (lost := moving[edge == _NONE]).size:
                raise SpecError(f"graph: no route from rank {source[lost[0]]} to rank {target[lost[0]]}; add its edges")
            steps.append(Crossings(moving, edge))
            at[moving] = self._tail[edge]
            moving = moving[at[moving] != self._gpu[source[moving]]]
        return Crossings(*(np.concatenate(part) for part in zip(*steps[::-1], strict=True)))

    def per_edge(self, crossings: Crossings, amounts: ArrayLike) -> Floats:
        """The sum of `amounts` [transfers] over the transfers that cross each edge [edges]."""
        weights = np.asarray(amounts, dtype=np.float64)[crossings.transfer]
        return np.asarray(np.bincount(crossings.edge, weights, minlength=len(self.edges)), dtype=np.float64)

    def loads(self, sources: ArrayLike, targets: ArrayLike, num_bytes: ArrayLike) -> Floats:
        """Bytes that each edge carries [edges] while `num_bytes[i]` go from `sources[i]` to `targets[i]`.

        Raises SpecError as `crossings` does.
        """
        return self.per_edge(self.crossings(sources, targets), num_bytes)

    def route(self, source_rank: int, target_rank: int) -> tuple[Edge, ...]:
        """The edges from one rank to another, in order; SpecError as `crossings`."""
        return tuple(self.edges[e] for e in self.crossings([source_rank], [target_rank]).edge)

    def _entering(self, ranks: Integers) -> Integers:
        """The edge by which the route from each of `ranks` enters each vertex [ranks, vertices], searched once."""
        if new := [int(r) for r in ranks if int(r) not in self._entries]:
            self._entries.update(zip(new, self._search(self._gpu[new]), strict=True))
        return np.array([self._entries[int(r)] for r in ranks], dtype=np.intp).reshape(len(ranks), self._vertices)

    def _search(self, starts: Integers) -> Integers:
        """Breadth-first search from all `starts` at once, one level of hops per round [starts, vertices]."""
        entry = np.full((len(starts), self._vertices), _NONE, dtype=np.intp)
        hops = np.full(entry.shape, _NONE, dtype=np.int32)
        hops[np.arange(len(starts)), starts] = 0
        for level in range(self._vertices):
            row, edge = np.nonzero((hops[:, self._tail] == level) & (hops[:, self._head] == _NONE))
            if not row.size:
                break
            row, edge = row[::-1], edge[::-1]  # of several writes the last one stays: the edge that comes first
            entry[row, self._head[edge]] = edge
            hops[row, self._head[edge]] = level + 1
        return entry


def route(graph: Graph, source_rank: int, target_rank: int) -> tuple[Edge, ...]:
    """The edges from one rank to another, in order; SpecError where there is none.

    For many routes keep a `Fabric`, which searches once per source.
    """
    return Fabric(graph).route(source_rank, target_rank)


def _ranks(ranks: ArrayLike, num_ranks: int) -> Integers:
    found = np.asarray(ranks, dtype=np.intp)
    if (wrong := found[(found < 0) | (found >= num_ranks)]).size:
        raise SpecError(f"rank {wrong[0]}: not in the graph; ranks are 0 to {num_ranks - 1}")
    return found


def _attribute(graph: Graph, name: str) -> Floats:
    values = [data.get(name, np.nan) for _, _, data in graph.edges(data=True)]
    return np.array(values, dtype=np.float64)


def _check_links(fabric: Fabric) -> None:
    right = {"bandwidth_bytes_per_s": fabric.bandwidth_bytes_per_s > 0, "latency_s": fabric.latency_s >= 0}
    for name, good in right.items():
        for e in np.flatnonzero(~good)[:1]:
            a, b = fabric.edges[e]
            least = "more than 0" if name == "bandwidth_bytes_per_s" else "0 or more"
            raise SpecError(f"graph edge {a} to {b}: {name} is {getattr(fabric, name)[e]}; it must be {least}")
