"""The graph of a cluster: its vertices, its edges, and what is refused."""

import networkx as nx
import pytest

from moeplan.errors import SpecError
from moeplan.spec.cluster import ClusterSpec, Gpu, Node, Tree
from moeplan.topology.graph import build
from moeplan.units import Bytes, BytesPerS, Seconds

LINK, NIC, UPLINK = 200e9, 50e9, 1e12


def cluster(nodes=1, gpus=8, nics=8, nodes_per_leaf=4, link=LINK, nic=NIC):
    return ClusterSpec(
        name="test",
        nodes=nodes,
        gpu=Gpu(name="gpu", hbm_bytes=Bytes(80e9), hbm_bytes_per_s=BytesPerS(3e12), peak_flop_per_s={}),
        node=Node(
            gpus=gpus,
            nics=nics,
            link_bytes_per_s=BytesPerS(link),
            link_latency_s=Seconds(1e-6),
            nic_bytes_per_s=BytesPerS(nic),
            nic_latency_s=Seconds(2e-6),
        ),
        network=Tree(nodes_per_leaf=nodes_per_leaf, uplink_bytes_per_s=BytesPerS(UPLINK), hop_latency_s=Seconds(3e-6)),
    )


def of_kind(graph, kind):
    return {vertex for vertex in graph if vertex[0] == kind}


def test_one_node_without_nics_is_a_star():
    graph = build(cluster(nics=0))
    assert of_kind(graph, "gpu") | {("node", 0)} == set(graph)
    assert graph.number_of_edges() == 16
    assert graph.edges[("gpu", 3), ("node", 0)] == {"bandwidth_bytes_per_s": LINK, "latency_s": 1e-6}


@pytest.mark.parametrize(("nodes", "leaves", "spines"), [(1, 1, 0), (4, 1, 0), (5, 2, 1), (8, 2, 1), (9, 3, 1)])
def test_a_spine_stands_only_over_several_leaves(nodes, leaves, spines):
    graph = build(cluster(nodes=nodes))
    assert len(of_kind(graph, "leaf")) == leaves
    assert len(of_kind(graph, "spine")) == spines
    assert nx.is_strongly_connected(graph)


def test_edges_between_nodes_carry_the_numbers_of_the_spec():
    graph = build(cluster(nodes=8))
    assert graph.edges[("nic", 5, 2), ("leaf", 1)] == {"bandwidth_bytes_per_s": NIC, "latency_s": 2e-6}
    assert graph.edges[("leaf", 1), ("spine",)] == {"bandwidth_bytes_per_s": UPLINK, "latency_s": 3e-6}


@pytest.mark.parametrize("nics", [1, 2, 3, 4, 8])
def test_each_gpu_has_the_nic_of_its_share(nics):
    graph = build(cluster(nodes=2, nics=nics))
    for rank in range(16):
        own = [vertex for vertex in graph.successors(("gpu", rank)) if vertex[0] == "nic"]
        assert own == [("nic", rank // 8, rank % 8 * nics // 8)]


@pytest.mark.parametrize(("link", "nic"), [(200e9, 50e9), (25e9, 50e9)])
def test_the_way_to_the_nic_is_never_slower_than_the_nic(link, nic):
    graph = build(cluster(nodes=2, link=link, nic=nic))
    assert graph.edges[("gpu", 0), ("nic", 0, 0)]["bandwidth_bytes_per_s"] == max(link, nic)


def test_every_link_has_both_directions_with_equal_numbers():
    graph = build(cluster(nodes=6, nics=4))
    assert all(graph.edges[b, a] == data for a, b, data in graph.edges(data=True))


def test_several_nodes_without_nics_are_refused():
    with pytest.raises(SpecError, match=r"'test': node\.nics is 0 with 2 nodes"):
        build(cluster(nodes=2, nics=0))
