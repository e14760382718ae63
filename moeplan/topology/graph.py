"""A cluster as a directed graph: one edge per link and direction, with its bandwidth and latency.

Vertices: ("gpu", rank), ("node", n) for the switch inside node n where there is one, and ("nic", n, j); of a tree
("leaf", l) and ("spine",), of a dragonfly ("switch", s) and ("group", g). GPUs and ("node", n) have the attribute
`node`, the number of the node that they are in.
From here on only edges are read: whoever edits `bandwidth_bytes_per_s` or `latency_s` of an edge has another cluster.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from moeplan.errors import SpecError
from moeplan.spec.cluster import Dragonfly, Tree, single_hop_nodes

if TYPE_CHECKING:
    import networkx as nx

    from moeplan.spec.cluster import ClusterSpec

Vertex: TypeAlias = "tuple[str | int, ...]"
Edge: TypeAlias = "tuple[Vertex, Vertex]"
Graph: TypeAlias = "nx.DiGraph[Vertex]"


def build(cluster: ClusterSpec) -> Graph:
    """The links of `cluster`, in both directions, in bytes per second and seconds.

    A GPU reaches its node's switch at `node.link`, or the GPUs that `node.links` join it to. Its NIC is reached at the
    faster of `node.link` and the NIC itself, so that the NIC is what limits; PCIe is left out. NICs that serve no GPU
    (more NICs than GPUs) carry nothing. Switches themselves forward at full rate. Only the leaves, switches and groups
    that the nodes reach are there, and a level above them only where it joins several.

    In a dragonfly a switch reaches its group over all its local links together, (switches_per_group - 1) *
    links_per_switch_pair * local_link, and two groups reach each other over links_per_group_pair * global_link: minimal
    routing with the local links evenly used. Detours over other groups are left out, so that a job on few groups looks
    slower than adaptive routing makes it; and two switches of a group are two hops apart, not one.

    Raises SpecError where several nodes have no NIC to join them.
    """
    import networkx as nx

    if cluster.nodes > 1 and cluster.node.nics == 0:
        raise SpecError(f"cluster {cluster.name!r}: node.nics is 0 with {cluster.nodes} nodes; at least 1 joins them")
    graph: Graph = nx.DiGraph()
    for n in range(cluster.nodes):
        _add_node(graph, cluster, n)
    if cluster.node.nics:
        match cluster.network:
            case Tree() as tree:
                _add_tree(graph, tree, _add_nics(graph, cluster, "leaf"))
            case Dragonfly() as dragonfly:
                _add_dragonfly(graph, dragonfly, _add_nics(graph, cluster, "switch"))
    return graph


def _add_node(graph: Graph, cluster: ClusterSpec, n: int) -> None:
    """GPUs of node `n`, the switch or the links that join them, and the way to their NICs."""
    node, gpus = cluster.node, [("gpu", n * cluster.node.gpus + i) for i in range(cluster.node.gpus)]
    graph.add_nodes_from(gpus, node=n)
    for a, b, bytes_per_s in node.links:
        _link(graph, gpus[a], gpus[b], bytes_per_s, node.link_latency_s)
    if not node.links:
        graph.add_node(("node", n), node=n)
    for i, gpu in enumerate(gpus):
        if not node.links:
            _link(graph, gpu, ("node", n), node.link_bytes_per_s, node.link_latency_s)
        if node.nics:
            nic = ("nic", n, i * node.nics // node.gpus)
            _link(graph, gpu, nic, max(node.link_bytes_per_s, node.nic_bytes_per_s), node.link_latency_s)


def _add_nics(graph: Graph, cluster: ClusterSpec, switch: str) -> int:
    """All NICs of a node to the `switch` of its single-hop group; returns how many switches there are."""
    node, together = cluster.node, single_hop_nodes(cluster)
    for n in range(cluster.nodes):
        for j in range(node.nics):
            _link(graph, ("nic", n, j), (switch, n // together), node.nic_bytes_per_s, node.nic_latency_s)
    return -(-cluster.nodes // together)


def _add_tree(graph: Graph, tree: Tree, leaves: int) -> None:
    """Leaf switches to the spine."""
    for leaf in range(leaves if leaves > 1 else 0):
        _link(graph, ("leaf", leaf), ("spine",), tree.uplink_bytes_per_s, tree.hop_latency_s)


def _add_dragonfly(graph: Graph, dragonfly: Dragonfly, switches: int) -> None:
    """Switches to their group, groups to each other."""
    per_group, hop_s = dragonfly.switches_per_group, dragonfly.hop_latency_s
    local = (per_group - 1) * dragonfly.links_per_switch_pair * dragonfly.local_link_bytes_per_s
    for switch in range(switches if switches > 1 else 0):
        _link(graph, ("switch", switch), ("group", switch // per_group), local, hop_s)
    between = dragonfly.links_per_group_pair * dragonfly.global_link_bytes_per_s
    for a, b in combinations(range(-(-switches // per_group)), 2):
        _link(graph, ("group", a), ("group", b), between, hop_s)


def _link(graph: Graph, a: Vertex, b: Vertex, bytes_per_s: float, latency_s: float) -> None:
    graph.add_edge(a, b, bandwidth_bytes_per_s=float(bytes_per_s), latency_s=float(latency_s))
    graph.add_edge(b, a, bandwidth_bytes_per_s=float(bytes_per_s), latency_s=float(latency_s))
