"""Routes, loads and latencies of random clusters against a plain search from every GPU over all vertices."""

import itertools
from collections import Counter

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.hostlist import compress
from moeplan.spec.cluster import Bridge, ClusterSpec, Dragonfly, Gpu, Level, Node, Torus, Tree, first_gpus
from moeplan.spec.shipped import load_cluster
from moeplan.topology import between
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Bytes, BytesPerS, Seconds

LINK = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-6}


@st.composite
def clusters(draw):
    """Trees, dragonflies, tori; nodes with a switch, alone or for two, PCIe bridges, or with the links of a line and
    some more; any number of NICs; on the first places, or on any.
    """
    gpus = draw(st.integers(1, 4))
    line = [(i, i + 1) for i in range(gpus - 1)] if draw(st.booleans()) else []
    more = [pair for pair in itertools.combinations(range(gpus), 2) if line and pair not in line]
    pairs = line + (draw(st.lists(st.sampled_from(more), unique=True)) if more else [])
    node = Node(
        gpus=gpus,
        nics=draw(st.integers(1, 6)),
        link_bytes_per_s=BytesPerS(200e9),
        link_latency_s=Seconds(1e-6),
        nic_bytes_per_s=BytesPerS(50e9),
        nic_latency_s=Seconds(2e-6),
        links=tuple((a, b, BytesPerS(30e9)) for a, b in pairs),
        bridge=None
        if line or gpus % 2
        else draw(st.none() | st.just(Bridge(gpus=2, uplink_bytes_per_s=BytesPerS(2e9)))),
    )
    if not line and not node.bridge:
        node = msgspec.structs.replace(node, domain=draw(st.integers(1, 2)))
    level = st.builds(Level, children=st.integers(1, 3), uplink_bytes_per_s=st.just(BytesPerS(3e12)))
    tree = st.builds(
        Tree,
        nodes_per_leaf=st.integers(1, 3),
        uplink_bytes_per_s=st.just(BytesPerS(1e12)),
        hop_latency_s=st.just(Seconds(3e-6)),
        levels=st.lists(level, max_size=2).map(tuple),
    )
    torus = st.builds(
        Torus,
        shape=st.sampled_from([(16,), (4, 3, 2), (2, 2, 4), (3, 1, 7)]),
        link_bytes_per_s=st.just(BytesPerS(20e9)),
        hop_latency_s=st.just(Seconds(5e-6)),
    )
    dragonfly = st.builds(
        Dragonfly,
        nodes_per_switch=st.integers(1, 2),
        switches_per_group=st.integers(2, 3),
        local_link_bytes_per_s=st.just(BytesPerS(20e9)),
        global_link_bytes_per_s=st.just(BytesPerS(10e9)),
        links_per_group_pair=st.just(4),
        hop_latency_s=st.just(Seconds(5e-6)),
    )
    gpu = Gpu(name="gpu", hbm_bytes=Bytes(80e9), hbm_bytes_per_s=BytesPerS(3e12), peak_flop_per_s={})
    nodes, network = draw(st.integers(1, 7)), draw(tree | dragonfly | torus)
    places = draw(st.none() | st.lists(st.integers(0, 15), min_size=nodes, max_size=nodes, unique=True))
    use = "" if places is None else compress(map(str, places))
    return ClusterSpec(name="test", nodes=nodes, gpu=gpu, node=node, network=network, use=use)


@st.composite
def edited(draw):
    """The graph of a cluster, with some edges added anywhere and some removed."""
    graph = build(draw(clusters()))
    vertices, edges = list(graph), list(graph.edges)
    ends = st.sampled_from(vertices)
    for a, b in draw(st.lists(st.tuples(ends, ends), max_size=3)):
        if a != b:
            graph.add_edge(a, b, **LINK)
    removed = draw(st.lists(st.sampled_from(edges), max_size=3, unique=True)) if edges else []
    graph.remove_edges_from(removed)
    return graph


def split(graph, a, b):
    """The part of a transfer on each edge: over all shortest paths of the node, else the first path of all vertices."""
    if a == b:
        return {}
    home = graph.nodes[a]["node"]
    inside = graph.subgraph([v for v, node in graph.nodes(data="node") if node == home])
    if graph.nodes[b]["node"] == home and nx.has_path(inside, a, b):
        paths = list(nx.all_shortest_paths(inside, a, b))
        return {
            edge: count / len(paths)
            for edge, count in Counter(edge for path in paths for edge in itertools.pairwise(path)).items()
        }
    hops = nx.single_source_shortest_path_length(graph, a)
    walked, at = {}, b
    while at != a:
        if at not in hops:
            return None
        edge = next((u, v) for u, v in graph.edges if v == at and hops.get(u) == hops[at] - 1)
        walked[edge], at = 1.0, edge[0]
    return walked


def check(graph):
    fabric = Fabric(graph)
    ranks = range(fabric.num_ranks)
    expected = {(a, b): split(graph, ("gpu", a), ("gpu", b)) for a, b in itertools.product(ranks, ranks)}
    pairs = [pair for pair, parts in expected.items() if parts is not None]
    amounts = [1.0 + 7 * i % 5 for i in range(len(pairs))]
    loads, latencies = Counter(), []
    for (a, b), amount in zip(pairs, amounts, strict=True):
        parts = expected[a, b]
        assert set(fabric.route(a, b)) <= set(parts)
        latencies.append(sum(part * graph.edges[edge]["latency_s"] for edge, part in parts.items()))
        loads.update({edge: amount * part for edge, part in parts.items()})
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    got = fabric.loads(sources, targets, amounts)
    assert got == pytest.approx([loads[edge] for edge in fabric.edges], rel=1e-12)
    crossed = fabric.crossings(sources, targets)
    seconds = np.bincount(crossed.transfer, fabric.latency_s[crossed.edge] * crossed.share, minlength=len(pairs))
    assert seconds == pytest.approx(latencies, rel=1e-12)
    assert fabric.per_edge(crossed, amounts) == pytest.approx(got, rel=1e-12)
    for a, b in [pair for pair, parts in expected.items() if parts is None]:
        with pytest.raises(SpecError, match=f"no route from rank {a} to rank {b}"):
            fabric.route(a, b)


@given(clusters())
def test_a_cluster_has_the_routes_of_a_search_over_all_vertices(spec):
    check(build(spec))


@given(edited())
def test_an_edited_graph_has_the_routes_of_a_search_over_all_vertices(graph):
    check(graph)


@given(clusters(), st.data())
def test_of_many_ways_across_the_core_the_first_edges_are_taken(spec, data):
    graph = build(spec)
    core = [v for v in graph if v[0] not in ("gpu", "node", "bridge", "nic")] + [("spine", i) for i in range(2)]
    for a, b in data.draw(st.lists(st.tuples(st.sampled_from(core), st.sampled_from(core)), max_size=8)):
        if a != b:
            graph.add_edge(a, b, **LINK)
            graph.add_edge(b, a, **LINK)
    check(graph)


SHAPES = {
    "a GPU with two NICs": (("gpu", 0), ("nic", 0, 3)),
    "a NIC of two nodes": (("gpu", 0), ("nic", 1, 0)),
    "a NIC on two switches": (("nic", 0, 0), ("switch", 1)),
    "a link between GPUs of two nodes": (("gpu", 1), ("gpu", 9)),
    "a link between NICs": (("nic", 0, 1), ("nic", 5, 1)),
    "a GPU on a switch": (("gpu", 3), ("switch", 1)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shorter_way_beside_the_nics_is_taken(shape):
    graph = build(first_gpus(load_cluster("frontier"), 48))
    a, b = SHAPES[shape]
    graph.add_edge(a, b, **LINK)
    graph.add_edge(b, a, **LINK)
    check(graph)


def test_nics_of_a_node_on_two_switches_let_a_gpu_leave_by_its_neighbours():
    spec = first_gpus(load_cluster("frontier"), 40)
    graph = build(msgspec.structs.replace(spec, node=msgspec.structs.replace(spec.node, nics=8)))
    for a, b in ((("nic", 0, 1), ("switch", 0)), (("switch", 0), ("nic", 0, 1))):
        graph.remove_edge(a, b)
    for a, b in ((("nic", 0, 1), ("switch", 1)), (("switch", 1), ("nic", 0, 1))):
        graph.add_edge(a, b, **LINK)
    assert Fabric(graph).route(0, 39)[:2] == ((("gpu", 0), ("gpu", 1)), (("gpu", 1), ("nic", 0, 1)))
    check(graph)


def test_one_nic_of_frontier_carries_what_its_two_gpus_send_to_other_nodes():
    fabric = Fabric(build(first_gpus(load_cluster("frontier"), 1024)))
    groups = np.arange(1024).reshape(-1, 32)
    loads = fabric.loads(np.repeat(groups, 32, axis=1).ravel(), np.tile(groups, (1, 32)).ravel(), np.ones(32 * 1024))
    out = {load for (a, b), load in zip(fabric.edges, loads, strict=True) if (a[0], b[0]) == ("nic", "switch")}
    assert out == {2 * (32 - 8)}


def test_many_starts_are_searched_part_by_part_to_the_same_routes(monkeypatch):
    graph = build(first_gpus(load_cluster("frontier"), 48))
    graph.add_edge(("gpu", 1), ("gpu", 9), **LINK)
    monkeypatch.setattr(between, "AT_ONCE", 3 * graph.number_of_edges() - 1)
    check(graph)


def test_a_graph_too_large_for_a_search_from_every_gpu_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(between, "MOST_ENTRIES", 1000)
    graph = build(first_gpus(load_cluster("frontier"), 48))
    Fabric(graph).loads(range(40), range(8, 48), [1.0] * 40)
    graph.add_edge(("gpu", 1), ("gpu", 9), **LINK)
    with pytest.raises(SpecError, match="graph: routes from 40 vertices to 75 are too many to search; where each GPU"):
        Fabric(graph).loads(range(40), range(8, 48), [1.0] * 40)
