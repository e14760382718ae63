"""A cluster as a directed graph: one edge per link and direction, with its bandwidth and latency.

Vertices inside nodes: ("gpu", rank), ("node", d) for the switch of node or NVLink domain d where there is one,
("bridge", n, b) for PCIe switches; ("nic", n, j). Between nodes: of a tree ("leaf", l), ("level", k, s) and ("spine",),
of rails ("rail", unit, j) and ("spine",), of a dragonfly ("switch", s) and ("group", g), of a torus ("router", place),
of other networks ("switch", name). GPUs and switches inside nodes have the attribute `node`, the number of the node or
NVLink domain that they are in. From here on only edges are read: whoever edits `bandwidth_bytes_per_s` or `latency_s`
of an edge has another cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeplan.errors import SpecError
from moeplan.spec.cluster import homes, hosts_of, nic_of, node_at, places_of
from moeplan.topology.between_nodes import attachments, join, routers
from moeplan.topology.links import Edge as Edge
from moeplan.topology.links import Graph as Graph
from moeplan.topology.links import Vertex as Vertex
from moeplan.topology.links import link

if TYPE_CHECKING:
    from moeplan.spec.cluster import ClusterSpec, Node


def build(cluster: ClusterSpec) -> Graph:
    """The links of `cluster` that a job on its nodes can use, in both directions, in bytes per second and seconds.

    A GPU reaches its node's switch at `node.link`, the GPUs that `node.links` join it to, or its PCIe switch at
    `node.link` and through it the others. Its NIC is reached at the faster of `node.link` and the NIC itself, so that
    the NIC is what limits. NICs that serve no GPU carry nothing. Switches themselves forward at full rate. Only the
    leaves, switches and groups that the nodes reach are there, and a level above them only where it joins several; of a
    dragonfly with adaptive routing also the groups whose links detours use, of a torus all routers.

    Raises SpecError where several nodes have no NIC to join them.
    """
    import networkx as nx

    graph: Graph = nx.DiGraph()
    places, kinds = places_of(cluster), _Kinds(cluster)
    for n, home in enumerate(homes(cluster)):
        _add_node(graph, kinds.at(n), n, home)
    if len(places) > 1 and not cluster.node.nics:
        raise SpecError(f"cluster {cluster.name!r}: node.nics is 0 with {len(places)} nodes; at least 1 joins them")
    graph.add_nodes_from(routers(cluster))
    attach = attachments(cluster)
    for n, place in enumerate(places):
        node = kinds.at(n)
        for j in kinds.nics(n):
            link(graph, ("nic", n, j), attach(n, place, j), node.nic_bytes_per_s, node.nic_latency_s)
    join(graph, cluster)
    return graph


class _Kinds:
    """The node at each number of the job; one look where all are alike."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self._cluster, self._hosts = cluster, hosts_of(cluster) if cluster.kinds or cluster.without_nics else ()
        self._lost = set(cluster.without_nics)
        self._found: dict[int, Node] = {}

    def at(self, n: int) -> Node:
        if not self._hosts:
            return self._cluster.node
        if n not in self._found:
            self._found[n] = node_at(self._cluster, self._hosts[n])
        return self._found[n]

    def nics(self, n: int) -> list[int]:
        """The NICs of node `n` that work."""
        name = self._hosts[n] if self._hosts else ""
        return [j for j in range(self.at(n).nics) if (name, j) not in self._lost]


def _add_node(graph: Graph, node: Node, n: int, home: int) -> None:
    """GPUs of node `n`, in domain `home`, the switch or the links that join them, and the way to their NICs."""
    gpus = [("gpu", n * node.gpus + i) for i in range(node.gpus)]
    graph.add_nodes_from(gpus, node=home)
    for a, b, bytes_per_s in node.links:
        link(graph, gpus[a], gpus[b], bytes_per_s, node.link_latency_s)
    if not node.links:
        graph.add_node(("node", home), node=home)
    bridge = node.bridge
    if bridge:
        for b in range(node.gpus // bridge.gpus):
            graph.add_node(("bridge", n, b), node=home)
            link(graph, ("bridge", n, b), ("node", home), bridge.uplink_bytes_per_s, node.link_latency_s)
    for i, gpu in enumerate(gpus):
        if not node.links:
            switch = ("bridge", n, i // bridge.gpus) if bridge else ("node", home)
            link(graph, gpu, switch, node.link_bytes_per_s, node.link_latency_s)
        if (nic := nic_of(node, i)) >= 0:
            reached = max(node.link_bytes_per_s, node.nic_bytes_per_s)
            link(graph, gpu, ("nic", n, nic), reached, node.link_latency_s)
