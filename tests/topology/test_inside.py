"""Transfers inside a node whose GPUs are linked pair by pair, against all shortest paths one by one."""

import itertools
from collections import Counter
from fractions import Fraction

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.spec.cluster import first_gpus
from moeplan.spec.shipped import load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import BytesPerS

FRONTIER = first_gpus(load_cluster("frontier"), 8)


def linked(pairs, gpus, nodes=1, nics=1):
    """Frontier with other links inside its nodes."""
    links = tuple((a, b, BytesPerS(50e9)) for a, b in pairs)
    node = msgspec.structs.replace(FRONTIER.node, gpus=gpus, nics=nics, links=links)
    return msgspec.structs.replace(FRONTIER, nodes=nodes, node=node)


@st.composite
def pairs_of(draw, gpus):
    """A connected graph of `gpus` GPUs: a random tree, and some of the other pairs."""
    tree = {(draw(st.integers(0, b - 1)), b) for b in range(1, gpus)}
    more = [pair for pair in itertools.combinations(range(gpus), 2) if pair not in tree]
    extra = draw(st.lists(st.sampled_from(more), unique=True)) if more else []
    return [*tree, *extra]


@st.composite
def linked_nodes(draw):
    gpus = draw(st.integers(2, 6))
    return linked(draw(pairs_of(gpus)), gpus, nodes=draw(st.integers(1, 2)), nics=draw(st.integers(1, 3)))


def split(graph, a, b):
    """The part of a transfer on each edge: equal over all shortest paths inside the node."""
    inside = graph.subgraph([vertex for vertex in graph if vertex[0] == "gpu"])
    paths = list(nx.all_shortest_paths(inside, ("gpu", a), ("gpu", b)))
    parts = Counter()
    for path in paths:
        parts.update({edge: Fraction(1, len(paths)) for edge in itertools.pairwise(path)})
    return parts


@given(linked_nodes())
def test_a_transfer_is_split_equally_over_all_shortest_paths_inside_its_node(spec):
    graph = build(spec)
    fabric = Fabric(graph)
    for a, b in itertools.permutations(range(spec.node.gpus), 2):
        crossed = fabric.crossings([a], [b])
        got = {fabric.edges[e]: share for e, share in zip(crossed.edge, crossed.share, strict=True)}
        assert len(got) == crossed.edge.size
        assert got == pytest.approx({edge: float(part) for edge, part in split(graph, a, b).items()}, rel=1e-12)


@given(linked_nodes())
def test_many_transfers_at_once_are_the_sum_of_each_alone(spec):
    fabric = Fabric(build(spec))
    a, b = (np.array(ends) for ends in zip(*itertools.product(range(fabric.num_ranks), repeat=2), strict=True))
    amounts = np.arange(a.size) % 7.0
    alone = sum(fabric.loads([s], [t], [n]) for s, t, n in zip(a, b, amounts, strict=True))
    assert fabric.loads(a, b, amounts) == pytest.approx(alone, rel=1e-12)


@given(linked_nodes())
def test_one_route_of_a_split_transfer_is_a_shortest_path_inside_the_node(spec):
    graph = build(spec)
    fabric = Fabric(graph)
    for a, b in itertools.permutations(range(spec.node.gpus), 2):
        walked = [("gpu", a), *(head for _, head in fabric.route(a, b))]
        assert list(itertools.pairwise(walked)) == list(fabric.route(a, b))
        assert walked[-1] == ("gpu", b)
        assert set(fabric.route(a, b)) <= set(split(graph, a, b))


def test_a_long_way_over_links_is_not_cut_short_by_a_shared_nic():
    fabric = Fabric(build(linked([(0, 1), (1, 2), (2, 3)], 4, nics=1)))
    assert len(fabric.route(0, 3)) == 3


def test_frontiers_all_to_all_inside_a_node_runs_at_87_gb_per_s_and_a_half():
    """12.5 GB/s per pair and 87.5 per GPU follow from the node diagram of the OLCF user guide, links used equally."""
    fabric = Fabric(build(FRONTIER))
    a, b = (np.array(ends) for ends in zip(*itertools.permutations(range(8), 2), strict=True))
    seconds = (fabric.loads(a, b, np.ones(a.size)) / fabric.bandwidth_bytes_per_s).max()
    assert 1 / seconds == pytest.approx(12.5e9)
    assert 7 / seconds == pytest.approx(87.5e9)


def test_a_cube_of_links_has_six_paths_between_its_corners():
    pairs = [(a, a | 1 << k) for a in range(8) for k in range(3) if not a & 1 << k]
    fabric = Fabric(build(linked(pairs, 8)))
    shares = sorted(fabric.crossings([0], [7]).share.tolist())
    assert shares == pytest.approx([1 / 6] * 6 + [1 / 3] * 6)


def test_nodes_and_links_inside_them_are_known_without_a_switch():
    fabric = Fabric(build(linked([(0, 1), (1, 2)], 3, nodes=2)))
    assert fabric.node_of(range(6)).tolist() == [0, 0, 0, 1, 1, 1]
    inside = {edge for edge, near in zip(fabric.edges, fabric.inside_node, strict=True) if near}
    assert inside == {
        (("gpu", a), ("gpu", b)) for a, b in [(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3), (4, 5), (5, 4)]
    }


def test_gpus_whose_links_are_cut_take_the_way_between_nodes():
    graph = build(linked([(0, 1)], 2, nics=2))
    graph.remove_edge(("gpu", 0), ("gpu", 1))
    fabric = Fabric(graph)
    assert [head[0] for _, head in fabric.route(0, 1)] == ["nic", "switch", "nic", "gpu"]
    assert [head[0] for _, head in fabric.route(1, 0)] == ["gpu"]


def test_a_gpu_that_is_in_no_node_is_named():
    graph = build(FRONTIER)
    del graph.nodes[("gpu", 3)]["node"]
    with pytest.raises(SpecError, match=r"\('gpu', 3\): no attribute node"):
        Fabric(graph)
