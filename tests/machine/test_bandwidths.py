"""Bandwidths of clusters against closed forms, published values and maximum flows over the whole graph."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import moeplan as mp
from moeplan.machine.halves import bisection_bytes_per_s, halves
from moeplan.machine.levels import levels_of
from moeplan.optimizer.uniform import best_uniform, shortest_uniform
from moeplan.spec.cluster import Torus, node_of
from moeplan.topology.core import across, core
from moeplan.topology.graph import build
from moeplan.topology.links import link
from moeplan.units import BytesPerS, Seconds


@pytest.fixture(scope="module")
def frontier():
    return mp.cluster_summary("frontier").facts


def test_a_gcd_sends_half_as_much_again_over_all_paths_as_over_the_shortest(frontier):
    """Piper (arXiv 2605.05049), the Infinity Fabric of 8 GCDs: 87.5 GB/s on shortest paths, 131 GB/s at best."""
    assert frontier["all_to_all_shortest_paths_gb_per_s"] == pytest.approx(87.5)
    assert frontier["all_to_all_all_paths_gb_per_s"] == pytest.approx(131, rel=0.01)


def test_a_full_group_of_frontier_injects_more_than_leaves_it(frontier):
    """73 other groups, 100 GB/s each; 128 nodes of 100 GB/s (OLCF Frontier user guide)."""
    assert frontier["group_injection_gb_per_s"] == pytest.approx(12_800)
    assert frontier["out_of_group_gb_per_s"] == pytest.approx(7300)
    assert frontier["blocking"] == pytest.approx(1.753, abs=5e-4)
    assert frontier["taper"] == pytest.approx(0.570, abs=5e-4)
    assert frontier["bisection_gb_per_s"] == pytest.approx(37 * 37 * 100)
    assert frontier["injection_per_node_gb_per_s"] == 100


def test_bisection_is_the_maximum_flow_of_the_whole_graph(cluster):
    found = core(cluster)
    for half in halves(cluster):
        graph = nx.DiGraph()
        for a, b, data in build(cluster).edges(data=True):
            graph.add_edge(a, b, capacity=data["bandwidth_bytes_per_s"])
        for rank in range(cluster.nodes * cluster.node.gpus):
            edge = ("s", ("gpu", rank)) if node_of(cluster, rank) in half else (("gpu", rank), "t")
            graph.add_edge(*edge)
        assert across(found, half) == pytest.approx(nx.maximum_flow_value(graph, "s", "t"))


@pytest.mark.parametrize(
    ("network", "gb_per_s"),
    [
        ("tree", 2 * 500),  # two of four leaves
        ("pods", 300),  # one of two
        ("fat-tree", 8 * 50),  # 24 ports down, 8 up: leaves of 3, 3 and 2 nodes, of which the first
        ("rail", 2 * 8 * 20),  # two of four units, 8 leaves each
        ("dragonfly", 2 * 2 * 50),  # two of four groups, each to two others
        ("torus", 2 * 2 * 25),  # across the side of 4: two rings, cut twice
        ("switches", 700),  # 5 of 8 nodes: less goes up than the NICs of the other 3 take
    ],
)
def test_bisections_in_closed_form(small, network, gb_per_s):
    cluster = small(network)
    assert bisection_bytes_per_s(cluster, core(cluster)) / 1e9 == pytest.approx(gb_per_s)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_of_a_torus_the_longest_side_is_cut(shape):
    nodes = 1
    for side in shape:
        nodes *= side
    usual = mp.load_cluster("h800-16x8")
    network = Torus(shape=tuple(shape), link_bytes_per_s=BytesPerS(1e9), hop_latency_s=Seconds(1e-6))
    cluster = structs.replace(usual, nodes=nodes, network=network)
    cuts = [nodes // side * (2 if side > 2 else 1) * 1e9 for side in shape if side > 1]
    assert bisection_bytes_per_s(cluster, core(cluster)) == pytest.approx(min(cuts, default=0))


def test_halves_are_the_jobs_and_whole_parts(cluster):
    for half in halves(cluster):
        assert 0 < len(half) <= cluster.nodes - 1
        assert len(set(half)) == len(half)


def test_levels_from_below(small):
    leaf, spine = levels_of(small("tree"), core(small("tree")))
    assert (leaf.name, leaf.switches, leaf.from_below_bytes_per_s, leaf.up_bytes_per_s) == ("leaf", 4, 8e11, 5e11)
    assert leaf.ratio == pytest.approx(1.6)
    assert (spine.name, spine.switches, spine.from_below_bytes_per_s, spine.ratio) == ("spine", 1, 4 * 5e11, 0)
    names = [level.name for level in levels_of(small("pods"), core(small("pods")))]
    assert names == ["leaf", "level 1", "spine"]


def ring(gpus, bytes_per_s):
    graph = nx.DiGraph()
    graph.add_nodes_from((("gpu", i) for i in range(gpus)), node=0)
    for i in range(gpus):
        link(graph, ("gpu", i), ("gpu", (i + 1) % gpus), bytes_per_s, 1e-6)
    return graph


@pytest.mark.parametrize("gpus", [3, 4, 5, 8])
def test_on_a_ring_shortest_paths_are_best(gpus):
    """Every GPU's bytes take (mean hops) of the 2 G directed links: rate = 2 B / mean hops."""
    hops = sum(min(d, gpus - d) for d in range(1, gpus)) / (gpus - 1)
    assert shortest_uniform(ring(gpus, 1e9)) == pytest.approx(2e9 / hops)
    assert best_uniform(ring(gpus, 1e9)) == pytest.approx(2e9 / hops)


@given(st.data())
def test_the_best_is_between_shortest_paths_and_what_leaves_a_gpu(data):
    gpus = data.draw(st.integers(2, 5))
    graph = ring(gpus, data.draw(st.integers(1, 5)) * 1e9)
    for a in range(gpus):
        for b in range(a):
            if data.draw(st.booleans()):
                link(graph, ("gpu", a), ("gpu", b), data.draw(st.integers(1, 5)) * 1e9, 1e-6)
    leaves = min(graph.out_degree(v, weight="bandwidth_bytes_per_s") for v in graph)
    best = best_uniform(graph)
    assert shortest_uniform(graph) <= best * (1 + 1e-6)
    assert best <= leaves * (1 + 1e-6)


def test_one_gpu_sends_nothing():
    graph = nx.DiGraph()
    graph.add_node(("gpu", 0), node=0)
    assert best_uniform(graph) == 0
