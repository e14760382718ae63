"""Routes and link loads against networkx, edge by edge."""

import itertools
import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.spec.cluster import ClusterSpec, Gpu, Node, Tree, num_ranks
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric, route
from moeplan.units import Bytes, BytesPerS, Seconds


def cluster(nodes=1, gpus=8, nics=8, nodes_per_leaf=4):
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
        ),
        network=Tree(nodes_per_leaf=nodes_per_leaf, uplink_bytes_per_s=BytesPerS(1e12), hop_latency_s=Seconds(3e-6)),
    )


clusters = st.builds(
    cluster,
    nodes=st.integers(1, 5),
    gpus=st.integers(1, 4),
    nics=st.integers(1, 4),
    nodes_per_leaf=st.integers(1, 3),
)


def kinds(edges):
    return [edges[0][0][0], *(head[0] for _, head in edges)]


def all_pairs(ranks):
    return (np.array(ends) for ends in zip(*itertools.product(range(ranks), repeat=2), strict=True))


@pytest.mark.parametrize("nics", [0, 1, 4, 8])
def test_a_route_inside_a_node_takes_the_switch(nics):
    assert route(build(cluster(nics=nics)), 0, 1) == ((("gpu", 0), ("node", 0)), (("node", 0), ("gpu", 1)))


def test_a_route_to_another_node_takes_the_own_nics():
    graph = build(cluster(nodes=8, nics=4))
    assert kinds(route(graph, 0, 9)) == ["gpu", "nic", "leaf", "nic", "gpu"]
    assert kinds(route(graph, 7, 62)) == ["gpu", "nic", "leaf", "spine", "leaf", "nic", "gpu"]
    assert route(graph, 7, 62)[0][1] == ("nic", 0, 3)
    assert route(graph, 7, 62)[-1][0] == ("nic", 7, 3)


def test_of_two_spines_the_route_takes_the_one_whose_edges_come_first():
    graph = build(cluster(nodes=8))
    for leaf in range(2):
        for a, b in [(("leaf", leaf), ("spine", 1)), (("spine", 1), ("leaf", leaf))]:
            graph.add_edge(a, b, **graph.edges[("leaf", leaf), ("spine",)])
    assert route(graph, 0, 63)[3] == (("spine",), ("leaf", 1))


def test_a_rank_reaches_itself_over_no_edge():
    assert route(build(cluster()), 3, 3) == ()


@given(clusters)
def test_routes_are_shortest_paths(spec):
    graph = build(spec)
    fabric = Fabric(graph)
    for a, b in itertools.product(range(num_ranks(spec)), repeat=2):
        edges = fabric.route(a, b)
        assert len(edges) == nx.shortest_path_length(graph, ("gpu", a), ("gpu", b))
        walked = [("gpu", a), *(head for _, head in edges)]
        assert walked[-1] == ("gpu", b)
        assert list(itertools.pairwise(walked)) == list(edges)


@given(clusters.filter(lambda c: c.node.nics >= c.node.gpus), st.randoms(use_true_random=False))
def test_loads_equal_those_of_shortest_paths_one_by_one(spec, random):
    graph = build(spec)
    ranks = range(num_ranks(spec))
    sources, targets = random.choices(ranks, k=40), random.choices(ranks, k=40)
    amounts = [random.randrange(1000) for _ in range(40)]
    expected = dict.fromkeys(graph.edges, 0.0)
    for a, b, amount in zip(sources, targets, amounts, strict=True):
        for edge in itertools.pairwise(nx.shortest_path(graph, ("gpu", a), ("gpu", b))):
            expected[edge] += amount
    fabric = Fabric(graph)
    assert dict(zip(fabric.edges, fabric.loads(sources, targets, amounts).tolist(), strict=True)) == expected


@given(clusters, st.integers(0, 2**32 - 1))
def test_what_leaves_by_nics_arrives_by_nics(spec, seed):
    fabric = Fabric(build(spec))
    sources, targets = all_pairs(num_ranks(spec))
    amounts = np.random.default_rng(seed).integers(0, 1000, len(sources))
    loads = dict(zip(fabric.edges, fabric.loads(sources, targets, amounts), strict=True))
    out = sum(load for (a, b), load in loads.items() if (a[0], b[0]) == ("nic", "leaf"))
    back = sum(load for (a, b), load in loads.items() if (a[0], b[0]) == ("leaf", "nic"))
    remote = amounts[fabric.node_of(sources) != fabric.node_of(targets)].sum()
    assert out == back == remote


def test_nodes_are_read_from_the_edges():
    assert Fabric(build(cluster(nodes=3, gpus=2))).node_of(range(6)).tolist() == [0, 0, 1, 1, 2, 2]


def test_no_transfers_load_nothing():
    assert not Fabric(build(cluster())).loads([], [], []).any()


def test_all_pairs_of_128_ranks_are_loaded_within_100_ms():
    fabric = Fabric(build(cluster(nodes=16)))
    sources, targets = all_pairs(128)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        fabric.loads(sources, targets, np.ones(len(sources)))
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.1


def test_a_cut_graph_names_the_ranks_that_lost_each_other():
    graph = build(cluster(nodes=2, gpus=1))
    graph.remove_edge(("leaf", 0), ("nic", 1, 0))
    assert route(graph, 1, 0)
    with pytest.raises(SpecError, match="no route from rank 0 to rank 1"):
        route(graph, 0, 1)


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_cluster_is_refused(rank):
    with pytest.raises(SpecError, match=f"rank {rank}: not in the graph; ranks are 0 to 7"):
        route(build(cluster()), 0, rank)


@pytest.mark.parametrize(
    ("name", "value"), [("bandwidth_bytes_per_s", 0.0), ("bandwidth_bytes_per_s", None), ("latency_s", -1e-6)]
)
def test_an_edge_without_a_usable_number_is_named(name, value):
    graph = build(cluster())
    graph.edges[("gpu", 2), ("node", 0)][name] = value
    with pytest.raises(SpecError, match=rf"\('gpu', 2\) to \('node', 0\): {name} is .*it must be"):
        Fabric(graph)
