"""Which links a transfer crosses, and how many bytes each link carries when many transfers run at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moeplan.errors import SpecError
from moeplan.topology.alike import Alike, alike
from moeplan.topology.between import CORE, KINDS, NONE, Access, Search, access, differs
from moeplan.topology.detours import Detours
from moeplan.topology.far import Far, units
from moeplan.topology.graph import Edge, Graph
from moeplan.topology.inside import Crossings, Floats, InsideNodes, Integers, Links
from moeplan.topology.rails import Rails

MOST_NICS = 2**20
"""Of a node."""


class Fabric:
    """The routes of a graph, with its edges as arrays [edges]; build a new one after editing the graph.

    Inside a node a transfer is split equally over all its shortest paths in hops. Between nodes it takes one shortest
    path in hops; of equal ones, each vertex is entered by the edge that comes first in `graph.edges`. Two GPUs of a
    node that its own links do not join take the way between nodes. Adaptive and multi-path routing between nodes are
    left out, but for the detours of `spread`: a link may look busier than it would be. Where `between.access` finds one
    way from every GPU to the core, paths are searched in the core alone; on other graphs over all vertices, from every
    GPU that sends. Where a node's NICs are on several switches, a transfer first moves inside its node to a GPU whose
    NIC is on the target's switch, as NCCL's PXN does.
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
        self._home = homes = np.array([home for _, home in graph.nodes(data="node", default=NONE)], dtype=np.intp)
        self._node = homes[self._gpu]
        self.inside_node: NDArray[np.bool_] = (homes[self._tail] == homes[self._head]) & (homes[self._tail] != NONE)
        """Whether the edge is a link of the network inside a node."""
        self.leaves_node = np.array([a[0] == "nic" and b[0] != "gpu" for a, b in self.edges], dtype=np.bool_)
        """Whether the edge leads from a NIC to the network."""
        self.handles = self.leaves_node | np.array(
            [b[0] == "nic" and a[0] != "gpu" for a, b in self.edges], dtype=np.bool_
        )
        """Whether every message over the edge takes time of its own: between a NIC and the network."""
        self._vertices = len(index)
        self._links = Links(np.arange(len(self.edges)), self._tail, self._head, self._vertices)
        self._kind = np.array([KINDS.get(str(vertex[0]), CORE) for vertex in graph], dtype=np.intp)
        self._adaptive = np.array([bool(data.get("detours")) for *_, data in graph.edges(data=True)], dtype=np.bool_)
        numbers = {v: int(v[1]) * MOST_NICS + int(v[2]) for v in graph if v[0] == "nic"}
        first = {a: numbers[b] for a, b in reversed(self.edges) if a[0] == "gpu" and b[0] == "nic"}
        self._nic = np.array([first.get(("gpu", r), NONE) for r in range(len(self._gpu))], dtype=np.intp)
        _check_links(self)
        if (lost := np.flatnonzero(self._node == NONE)).size:
            raise SpecError(f"graph vertex ('gpu', {lost[0]}): no attribute node; give it the number of its node")

    @property
    def adaptive(self) -> bool:
        """Whether some transfers take detours, so that loads are not sums of those of single transfers."""
        return self.detours is not None and self.detours.groups > 2

    @property
    def num_ranks(self) -> int:
        """GPUs of the graph."""
        return len(self._gpu)

    def node_of(self, ranks: ArrayLike) -> Integers:
        """The node of each of `ranks` [n]."""
        return self._node[_ranks(ranks, self.num_ranks)]

    def crossings(self, sources: ArrayLike, targets: ArrayLike) -> Crossings:
        """The edges crossed by the transfers `sources[i]` to `targets[i]` [transfers]; from a rank to itself, none.

        Raises SpecError for a rank that does not exist or cannot be reached, and for a graph too large to search.
        """
        return Crossings(*(np.concatenate(part) for part in zip(*self.parts(sources, targets), strict=True)))

    def parts(self, sources: ArrayLike, targets: ArrayLike) -> Iterator[Crossings]:
        """`crossings` in several parts, one after another, so that many transfers at once need less memory."""
        source, target = _ranks(sources, self.num_ranks), _ranks(targets, self.num_ranks)
        far = source != target
        near = np.flatnonzero(far & (self._node[source] == self._node[target]))
        near = near[self._inside.reaches(source[near], target[near])]
        far[near] = False
        yield self._inside.crossings(near, source[near], target[near])
        yield from self._between(source, target, np.flatnonzero(far))

    def nic_of(self, ranks: ArrayLike) -> Integers:
        """Numbers that sort ranks by their nodes and NICs [n]; -1 for a GPU without a NIC."""
        return self._nic[_ranks(ranks, self.num_ranks)]

    def per_edge(self, crossings: Crossings, amounts: ArrayLike) -> Floats:
        """The sum of `amounts` [transfers], each by its share, over the transfers that cross each edge [edges]."""
        weights = np.asarray(amounts, dtype=np.float64)[crossings.transfer] * crossings.share
        return np.asarray(np.bincount(crossings.edge, weights, minlength=len(self.edges)), dtype=np.float64)

    def loads(self, sources: ArrayLike, targets: ArrayLike, num_bytes: ArrayLike) -> Floats:
        """Bytes that each edge carries [edges] while `num_bytes[i]` go from `sources[i]` to `targets[i]`.

        Raises SpecError as `crossings` does.
        """
        loads = np.zeros(len(self.edges))
        for part in self.parts(sources, targets):
            loads += self.per_edge(part, num_bytes)
        (spread,) = self.spread(loads[None])
        return np.asarray(spread, dtype=np.float64)

    @cached_property
    def units(self) -> Integers | None:
        """A number for each rank [ranks]; between different ones all goes straight from NIC to NIC, as `far` has it.

        None where there are several ways to the core.
        """
        return None if self._access is None else units(self._node, self._access.core)

    @property
    def leaf(self) -> Integers:
        """What the NIC of each rank is linked to [ranks]; SpecError where there are several."""
        if self._access is None:
            raise SpecError("graph: GPUs have several ways to switches")
        return self._access.core

    def far(self, far: Far) -> tuple[Floats, float]:
        """Bytes and messages that each edge carries [2, edges], and the longest latency, of `far` between `units`.

        Raises SpecError as `crossings` does.
        """
        loads, latency = np.zeros((2, len(self.edges))), np.zeros(far.source.size)
        if self._access is None or not far.source.size:
            return loads, 0.0
        ways = ((self._access.up, far.sources, far.source), (self._access.down, far.targets, far.target))
        for edges, ends, bundle in ways:
            at = [edge[ends.ranks] for edge in edges]
            for edge in at:
                loads += [np.bincount(edge, amount, minlength=len(self.edges)) for amount in ends[2:]]
            latency += np.maximum.reduceat(sum(self.latency_s[edge] for edge in at), ends.first)[bundle]
        source, target = (ends.ranks[ends.first][bundle] for _, ends, bundle in ways)
        for part in self._path(self._access.across, self._access.core, source, target, np.arange(source.size)):
            loads += [self.per_edge(part, amount) for amount in (far.share, far.messages)]
            latency[part.transfer] += self.latency_s[part.edge]
        return loads, float(latency.max())

    def spread(self, loads: Floats) -> Floats:
        """`loads` [kinds of loads, edges] with the detours that adaptive routing takes; the first kind is bytes."""
        detours = self.detours
        spread = loads if detours is None else detours.spread(loads, self.bandwidth_bytes_per_s)
        return np.asarray(spread, dtype=np.float64)

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

    @cached_property
    def _access(self) -> Access | None:
        return access(self._kind, self._links, self._gpu, self._node, self.inside_node)

    @cached_property
    def _rails(self) -> Rails | None:
        if self._access is None or not differs(self._access.core, self._node):
            return None
        return Rails(self._inside, self._node, self._access.core, self._vertices)

    @cached_property
    def detours(self) -> Detours | None:
        """The edges between groups, where routing is adaptive."""
        edge = np.flatnonzero(self._adaptive)
        if not edge.size:
            return None
        groups, number = np.unique(np.concatenate((self._tail[edge], self._head[edge])), return_inverse=True)
        return Detours(edge, number[: edge.size], number[edge.size :], groups.size)

    @cached_property
    def alike(self) -> Alike | None:
        """Where ranks are, if nodes, switches and groups are all alike; None where they are not, or not known to be."""
        if self._access is None:
            return None
        numbers = np.stack([self.bandwidth_bytes_per_s, self.latency_s])
        return alike(self._access, self._home, self._gpu, self._links, numbers)

    @cached_property
    def _all(self) -> Search:
        return Search(self._links)

    def _between(self, source: Integers, target: Integers, far: Integers) -> Iterator[Crossings]:
        """The edges of the transfers numbered `far`, one path each, first edges first.

        Up to the core, across and down where that is the only way; else searched over all vertices.
        """
        same = self._node[source[far]] == self._node[target[far]]
        if self._access is None:
            same[:] = True
        yield from self._path(self._all, self._gpu, source, target, far[same])
        if self._access is not None and (far := far[~same]).size:
            if self._rails is not None:
                source, moved = self._rails.proxies(source, target, far)
                yield moved
            yield from (_whole(far, edge[source[far]]) for edge in self._access.up)
            yield from self._path(self._access.across, self._access.core, source, target, far)
            yield from (_whole(far, edge[target[far]]) for edge in self._access.down)

    def _path(
        self, search: Search, at: Integers, source: Integers, target: Integers, far: Integers
    ) -> Iterator[Crossings]:
        """The steps of the transfers numbered `far` from vertex to vertex, `at` being that of each rank."""
        steps, lost = search.steps(at[source[far]], at[target[far]])
        if lost.size:
            a, b = source[far[lost[0]]], target[far[lost[0]]]
            raise SpecError(f"graph: no route from rank {a} to rank {b}; add its edges")
        yield from (_whole(far[going], edge) for going, edge in steps)


def route(graph: Graph, source_rank: int, target_rank: int) -> tuple[Edge, ...]:
    """The edges from one rank to another, in order; SpecError where there is none.

    For many routes keep a `Fabric`, which searches once.
    """
    return Fabric(graph).route(source_rank, target_rank)


def _whole(transfer: Integers, edge: Integers) -> Crossings:
    return Crossings(transfer, edge, np.broadcast_to(1.0, transfer.shape))


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
