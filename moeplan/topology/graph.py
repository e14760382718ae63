"""A cluster as a directed graph: one edge per link and direction, with its bandwidth and latency.

Vertices are ("gpu", rank), ("node", n) for the switch inside node n, ("nic", n, j), ("leaf", l) and ("spine",).
From here on only edges are read: whoever edits `bandwidth_bytes_per_s` or `latency_s` of an edge has another cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from moeplan.errors import SpecError

if TYPE_CHECKING:
    import networkx as nx

    from moeplan.spec.cluster import ClusterSpec

Vertex: TypeAlias = "tuple[str | int, ...]"
Edge: TypeAlias = "tuple[Vertex, Vertex]"
Graph: TypeAlias = "nx.DiGraph[Vertex]"


def build(cluster: ClusterSpec) -> Graph:
    """The links of `cluster`, in both directions, in bytes per second and seconds.

    A GPU reaches its node's switch at `node.link`. Its NIC is reached at the faster of `node.link` and the NIC itself,
    so that the NIC is what limits; PCIe is left out. NICs that serve no GPU (more NICs than GPUs) carry nothing.
    There is a spine only where there is more than one leaf; a leaf switch itself forwards at full rate.

    Raises SpecError where several nodes have no NIC to join them.
    """
    import networkx as nx

    if cluster.nodes > 1 and cluster.node.nics == 0:
        raise SpecError(f"cluster {cluster.name!r}: node.nics is 0 with {cluster.nodes} nodes; at least 1 joins them")
    graph: Graph = nx.DiGraph()
    for n in range(cluster.nodes):
        _add_node(graph, cluster, n)
    if cluster.node.nics:
        _add_tree(graph, cluster)
    return graph


def _add_node(graph: Graph, cluster: ClusterSpec, n: int) -> None:
    """GPUs, switch and NICs of node `n`; the switch first, since a tie between routes goes to the edge added first."""
    node = cluster.node
    graph.add_node(("node", n))
    for i in range(node.gpus):
        gpu = ("gpu", n * node.gpus + i)
        _link(graph, gpu, ("node", n), node.link_bytes_per_s, node.link_latency_s)
        if node.nics:
            nic = ("nic", n, i * node.nics // node.gpus)
            _link(graph, gpu, nic, max(node.link_bytes_per_s, node.nic_bytes_per_s), node.link_latency_s)


def _add_tree(graph: Graph, cluster: ClusterSpec) -> None:
    """NICs to their leaf switch, leaf switches to the spine."""
    node, network = cluster.node, cluster.network
    for n in range(cluster.nodes):
        leaf = ("leaf", n // network.nodes_per_leaf)
        for j in range(node.nics):
            _link(graph, ("nic", n, j), leaf, node.nic_bytes_per_s, node.nic_latency_s)
    leaves = -(-cluster.nodes // network.nodes_per_leaf)
    for leaf_index in range(leaves if leaves > 1 else 0):
        _link(graph, ("leaf", leaf_index), ("spine",), network.uplink_bytes_per_s, network.hop_latency_s)


def _link(graph: Graph, a: Vertex, b: Vertex, bytes_per_s: float, latency_s: float) -> None:
    graph.add_edge(a, b, bandwidth_bytes_per_s=float(bytes_per_s), latency_s=float(latency_s))
    graph.add_edge(b, a, bandwidth_bytes_per_s=float(bytes_per_s), latency_s=float(latency_s))
