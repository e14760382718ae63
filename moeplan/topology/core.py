"""The network between nodes alone: its switches, and what each node's NICs put into which of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from moeplan.spec.cluster import hosts_of, nic_of, node_at, places_of
from moeplan.topology.between_nodes import attachments, join
from moeplan.topology.links import Graph, Vertex

if TYPE_CHECKING:
    from moeplan.spec.cluster import ClusterSpec, Node

SOURCE, TARGET = ("half", 0), ("half", 1)


class Core(NamedTuple):
    """Vertices and edges as in `graph.build`, without what is inside nodes and without NICs."""

    graph: Graph
    injected: tuple[Mapping[Vertex, float], ...]
    """For each of the job's nodes the bandwidth of its NICs that serve a GPU, by the switch they are linked to."""


def core(cluster: ClusterSpec) -> Core:
    """The network between the job's nodes, in bytes per second and direction; no edges where one switch joins all."""
    import networkx as nx

    graph: Graph = nx.DiGraph()
    attach, places = attachments(cluster), places_of(cluster)
    usual = _served(cluster.node)
    hosts = hosts_of(cluster) if cluster.kinds or cluster.without_nics else ()
    injected = []
    for n, place in enumerate(places):
        node, nics = (node_at(cluster, hosts[n]), None) if hosts else (cluster.node, usual)
        found: Counter[Vertex] = Counter()
        for j in _served(node) if nics is None else nics:
            found[attach(n, place, j)] += node.nic_bytes_per_s  # type: ignore[assignment]
        graph.add_nodes_from(found)
        injected.append(dict(found))
    join(graph, cluster)
    return Core(graph, tuple(injected))


def _served(node: Node) -> list[int]:
    """The NICs that serve a GPU."""
    return sorted({nic for gpu in range(node.gpus) if (nic := nic_of(node, gpu)) >= 0})


def across(found: Core, half: Sequence[int]) -> float:
    """Bytes per second that the nodes numbered `half` can send to all others at the same time.

    The maximum flow over the switches from NICs on one side to NICs on the other, over all ways at once: no routing can
    carry more.
    """
    import networkx as nx
    from networkx.algorithms.flow import dinitz

    flow: Graph = nx.DiGraph()
    mine = set(half)
    for a, b, data in found.graph.edges(data=True):
        flow.add_edge(a, b, capacity=data["bandwidth_bytes_per_s"])
    flow.add_nodes_from((SOURCE, TARGET))
    for n, injected in enumerate(found.injected):
        for vertex, bytes_per_s in injected.items():
            a, b = (SOURCE, vertex) if n in mine else (vertex, TARGET)
            _add(flow, a, b, bytes_per_s)
    for vertex in found.graph:
        _fold(flow, vertex)
    return float(nx.maximum_flow_value(flow, SOURCE, TARGET, flow_func=dinitz))


def _add(flow: Graph, a: Vertex, b: Vertex, bytes_per_s: float) -> None:
    before = flow.edges[a, b]["capacity"] if flow.has_edge(a, b) else 0.0
    flow.add_edge(a, b, capacity=before + bytes_per_s)


def _fold(flow: Graph, vertex: Vertex) -> None:
    """Let the only way from one side through `vertex` to one other switch, or back, be one edge: the smaller of two."""
    ways = {*flow.pred[vertex], *flow.succ[vertex]} if vertex in flow else set()
    sides = ways & {SOURCE, TARGET}
    if len(ways) != 2 or len(sides) != 1:
        return
    (side,), (switch,) = sides, ways - sides
    a, b = (SOURCE, switch) if side == SOURCE else (switch, TARGET)
    smaller = min(flow.edges[a, vertex]["capacity"], flow.edges[vertex, b]["capacity"])
    flow.remove_node(vertex)
    _add(flow, a, b, smaller)
