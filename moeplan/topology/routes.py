"""Which links a transfer crosses, and how many bytes each link carries when many transfers run at the same time."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moeplan.errors import SpecError
from moeplan.topology.graph import Edge, Graph
from moeplan.topology.inside import Crossings, Floats, InsideNodes, Integers, Links

_NONE = -1


class Fabric:
    """The routes of a graph, with its edges as arrays [edges]; build a new one after editing the graph.

    Inside a node a transfer is split equally over all its shortest paths in hops. Between nodes it takes one shortest
    path in hops; of equal ones, each vertex is entered by the edge that comes first in `graph.edges`. Two GPUs of a
    node that its own links do not join take the way between nodes. Adaptive and multi-path routing between nodes are
    left out: a link may look busier than it would be.
    """

    def __init__(self, graph: Graph) -> None:
        """Read the edges; SpecError names an edge without usable numbers, or a GPU without the number of its node."""
        index = {vertex: i for i, vertex in enumerate(graph)}
        self.edges: tuple[Edge, ...] = tuple(graph.edges)
        self.bandwidth_bytes_per_s = _attribute(graph, "bandwidth_bytes_per_s")
        self.latency_s = _attribute(graph, "latency_s")
        self._tail = np.array([index[a] for a, _ in self.edges], dtype=np.intp)
        self._head = np.array([index[b] for _, b in self.edges], dtype=np.intp)
        self._gpu = np.array([index["gpu", r] for r in range(sum(v[0] == "gpu" for v in graph))], dtype=np.intp)
        homes = np.array([home for _, home in graph.nodes(data="node", default=_NONE)], dtype=np.intp)
        self._node = homes[self._gpu]
        self.inside_node: NDArray[np.bool_] = (homes[self._tail] == homes[self._head]) & (homes[self._tail] != _NONE)
        """Whether the edge is a link of the network inside a node."""
        self._vertices = len(index)
        self._entries: dict[int, Integers] = {}
        _check_links(self)
        if (lost := np.flatnonzero(self._node == _NONE)).size:
            raise SpecError(f"graph vertex ('gpu', {lost[0]}): no attribute node; give it the number of its node")

    @property
    def num_ranks(self) -> int:
        """GPUs of the graph."""
        return len(self._gpu)

    def node_of(self, ranks: ArrayLike) -> Integers:
        """The node of each of `ranks` [n]."""
        return self._node[_ranks(ranks, self.num_ranks)]

    def crossings(self, sources: ArrayLike, targets: ArrayLike) -> Crossings:
        """The edges crossed by the transfers `sources[i]` to `targets[i]` [transfers]; from a rank to itself, none.

        Raises SpecError for a rank that does not exist or cannot be reached.
        """
        source, target = _ranks(sources, self.num_ranks), _ranks(targets, self.num_ranks)
        near = np.flatnonzero((source != target) & (self._node[source] == self._node[target]))
        near = near[self._inside.reaches(source[near], target[near])]
        far = source != target
        far[near] = False
        parts = [
            self._inside.crossings(near, source[near], target[near]),
            self._between(source, target, np.flatnonzero(far)),
        ]
        return Crossings(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def per_edge(self, crossings: Crossings, amounts: ArrayLike) -> Floats:
        """The sum of `amounts` [transfers], each by its share, over the transfers that cross each edge [edges]."""
        weights = np.asarray(amounts, dtype=np.float64)[crossings.transfer] * crossings.share
        return np.asarray(np.bincount(crossings.edge, weights, minlength=len(self.edges)), dtype=np.float64)

    def loads(self, sources: ArrayLike, targets: ArrayLike, num_bytes: ArrayLike) -> Floats:
        """Bytes that each edge carries [edges] while `num_bytes[i]` go from `sources[i]` to `targets[i]`.

        Raises SpecError as `crossings` does.
        """
        return self.per_edge(self.crossings(sources, targets), num_bytes)

    def route(self, source_rank: int, target_rank: int) -> tuple[Edge, ...]:
        """The edges from one rank to another, in order; of several paths the one whose edges come first.

        Raises SpecError as `crossings` does.
        """
        crossed = self.crossings([source_rank], [target_rank]).edge
        leaving = {self.edges[e][0]: self.edges[e] for e in sorted(crossed.tolist(), reverse=True)}
        path: list[Edge] = []
        while (edge := leaving.get(path[-1][1] if path else ("gpu", source_rank))) is not None:
            path.append(edge)
        return tuple(path)

    @cached_property
    def _inside(self) -> InsideNodes:
        edge = np.flatnonzero(self.inside_node)
        order = np.argsort(self._node, kind="stable")
        _, first, gpus = np.unique(self._node[order], return_index=True, return_counts=True)
        row = np.empty(self.num_ranks, dtype=np.intp)
        row[order] = np.arange(self.num_ranks) - np.repeat(first, gpus)
        return InsideNodes(Links(edge, self._tail[edge], self._head[edge], self._vertices), self._gpu, row)

    def _between(self, source: Integers, target: Integers, moving: Integers) -> Crossings:
        """The edges of the transfers numbered `moving`, one path each, first edges first."""
        starts, row = np.unique(source[moving], return_inverse=True)
        entry, where = self._entering(starts), np.zeros(source.size, dtype=np.intp)
        where[moving] = row
        at, steps = self._gpu[target], [(moving[:0], moving[:0])]
        while moving.size:
            edge = entry[where[moving], at[moving]]
            if (lost := moving[edge == _NONE]).size:
                raise SpecError(f"graph: no route from rank {source[lost[0]]} to rank {target[lost[0]]}; add its edges")
            steps.append((moving, edge))
            at[moving] = self._tail[edge]
            moving = moving[at[moving] != self._gpu[source[moving]]]
        transfer, edges = (np.concatenate(part) for part in zip(*steps[::-1], strict=True))
        return Crossings(transfer, edges, np.ones(transfer.size))

    def _entering(self, ranks: Integers) -> Integers:
        """The edge by which the route from each of `ranks` enters each vertex [ranks, vertices], searched once."""
        if new := [int(r) for r in ranks if int(r) not in self._entries]:
            self._entries.update(zip(new, self._search(self._gpu[new]), strict=True))
        return np.array([self._entries[int(r)] for r in ranks], dtype=np.intp).reshape(len(ranks), self._vertices)

    def _search(self, starts: Integers) -> Integers:
        """Breadth-first search from all `starts` at once, one level of hops per round [starts, vertices]."""
        entry = np.full((self._vertices, len(starts)), _NONE, dtype=np.intp)
        seen, reached = np.zeros(entry.shape, dtype=bool), np.zeros(entry.shape, dtype=bool)
        seen[starts, np.arange(len(starts))] = reached[starts, np.arange(len(starts))] = True
        while reached.any():
            edge, column = np.nonzero(reached[self._tail] & ~seen[self._head])
            edge, column = edge[::-1], column[::-1]  # of several writes the last one stays: the edge that comes first
            entry[self._head[edge], column] = edge
            reached[:] = False
            reached[self._head[edge], column] = seen[self._head[edge], column] = True
        return entry.T


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
