"""A dragonfly's graph and the routes between any two of its ranks."""

import itertools

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.spec.cluster import ClusterSpec, Dragonfly, Gpu, Node, num_ranks
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Bytes, BytesPerS, Seconds


def cluster(nodes=8, gpus=2, nics=2, nodes_per_switch=1, switches_per_group=2, links=()):
    return ClusterSpec(
        name="test",
        nodes=nodes,
        gpu=Gpu(name="gpu", hbm_bytes=Bytes(80e9), hbm_bytes_per_s=BytesPerS(3e12), peak_flop_per_s={}),
        node=Node(
            gpus=gpus,
            nics=nics,
            link_bytes_per_s=BytesPerS(200e9),
            link_latency_s=Seconds(1e-6),
            nic_bytes_per_s=BytesPerS(50e9),
            nic_latency_s=Seconds(2e-6),
            links=links,
        ),
        network=Dragonfly(
            nodes_per_switch=nodes_per_switch,
            switches_per_group=switches_per_group,
            local_link_bytes_per_s=BytesPerS(20e9),
            links_per_switch_pair=3,
            global_link_bytes_per_s=BytesPerS(10e9),
            links_per_group_pair=4,
            hop_latency_s=Seconds(3e-6),
        ),
    )


dragonflies = st.builds(
    cluster,
    nodes=st.integers(1, 9),
    gpus=st.integers(1, 3),
    nics=st.integers(1, 4),
    nodes_per_switch=st.integers(1, 3),
    switches_per_group=st.integers(2, 3),
)

HOPS = {
    "self": [],
    "node": ["gpu", "node", "gpu"],
    "switch": ["gpu", "nic", "switch", "nic", "gpu"],
    "group": ["gpu", "nic", "switch", "group", "switch", "nic", "gpu"],
    "machine": ["gpu", "nic", "switch", "group", "group", "switch", "nic", "gpu"],
}


def shared(spec, a, b):
    """What two ranks have in common, by the numbers of the spec."""
    gpus, network = spec.node.gpus, spec.network
    sizes = [1, gpus, gpus * network.nodes_per_switch]
    sizes.append(sizes[-1] * network.switches_per_group)
    names = ("self", "node", "switch", "group")
    return next((name for name, size in zip(names, sizes, strict=True) if a // size == b // size), "machine")


@given(dragonflies)
def test_the_hops_between_two_ranks_follow_from_what_they_share(spec):
    fabric = Fabric(build(spec))
    for a, b in itertools.product(range(num_ranks(spec)), repeat=2):
        edges = fabric.route(a, b)
        walked = [("gpu", a), *(head for _, head in edges)]
        assert list(itertools.pairwise(walked)) == list(edges)
        assert [vertex[0] for vertex in walked if edges] == HOPS[shared(spec, a, b)]
        assert walked[-1] == ("gpu", b)


@given(dragonflies)
def test_the_shortest_route_to_another_node_is_the_only_one(spec):
    graph = build(spec)
    fabric = Fabric(graph)
    for a, b in itertools.combinations(range(num_ranks(spec)), 2):
        if shared(spec, a, b) != "node":
            path = nx.all_shortest_paths(graph, ("gpu", a), ("gpu", b))
            assert [list(itertools.pairwise(p)) for p in path] == [list(fabric.route(a, b))]


@given(dragonflies)
def test_only_what_the_nodes_reach_is_built(spec):
    graph = build(spec)
    switches = -(-spec.nodes // spec.network.nodes_per_switch)
    groups = -(-switches // spec.network.switches_per_group) if switches > 1 else 0
    assert {vertex for vertex in graph if vertex[0] == "switch"} == {("switch", s) for s in range(switches)}
    assert {vertex for vertex in graph if vertex[0] == "group"} == {("group", g) for g in range(groups)}
    assert nx.is_strongly_connected(graph)


def test_edges_carry_the_links_of_the_spec_together():
    graph = build(cluster(nodes=13, nodes_per_switch=2, switches_per_group=3))
    assert graph.edges[("nic", 12, 1), ("switch", 6)] == {"bandwidth_bytes_per_s": 50e9, "latency_s": 2e-6}
    assert graph.edges[("switch", 5), ("group", 1)] == {"bandwidth_bytes_per_s": 2 * 3 * 20e9, "latency_s": 3e-6}
    for a, b in itertools.permutations(range(3), 2):
        assert graph.edges[("group", a), ("group", b)] == {"bandwidth_bytes_per_s": 4 * 10e9, "latency_s": 3e-6}


@pytest.mark.parametrize("nodes", [1, 8])
def test_linked_gpus_have_no_switch_and_the_same_way_out(nodes):
    graph = build(cluster(nodes=nodes, links=((0, 1, BytesPerS(7e9)),)))
    assert not any(vertex[0] == "node" for vertex in graph)
    assert graph.edges[("gpu", 0), ("gpu", 1)] == {"bandwidth_bytes_per_s": 7e9, "latency_s": 1e-6}
    assert graph.edges[("gpu", 0), ("nic", 0, 0)] == {"bandwidth_bytes_per_s": 200e9, "latency_s": 1e-6}
