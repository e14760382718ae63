"""Ranks that may stand for each other, and groups that share no link."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.spec.cluster import Dragonfly, first_gpus
from moeplan.spec.shipped import load_cluster, shipped
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

FRONTIER = load_cluster("frontier")


def small(nodes, nodes_per_switch=2, switches_per_group=2):
    """Frontier with fewer nodes on its switches and fewer switches in its groups."""
    few = {"nodes_per_switch": nodes_per_switch, "switches_per_group": switches_per_group}
    return msgspec.structs.replace(FRONTIER, nodes=nodes, network=msgspec.structs.replace(FRONTIER.network, **few))


SMALL = Fabric(build(small(12)))


def crossed(fabric, group):
    """The edges between all ranks of a group."""
    ends = np.array(list(itertools.product(group, repeat=2))).T
    return set(fabric.crossings(*ends).edge.tolist())


def loads_of(fabric, islands):
    """All loads of all pairs of every group of the island, sorted."""
    ends = np.array([pair for group in islands for pair in itertools.product(group, repeat=2)]).T
    return sorted(fabric.loads(*ends, np.arange(ends.shape[1]) % 5.0).round(9).tolist())


@pytest.mark.parametrize("name", [name for name in shipped("cluster") if name != "frontier"])
def test_the_nodes_of_every_shipped_cluster_are_alike(name):
    assert (Fabric(build(load_cluster(name))).alike is not None) == (load_cluster(name).nodes > 1)


@pytest.mark.parametrize(
    "edge",
    [
        (("gpu", 8), ("gpu", 9)),
        (("gpu", 17), ("nic", 2, 0)),
        (("nic", 3, 1), ("switch", 1)),
        (("switch", 2), ("group", 1)),
        (("group", 2), ("group", 0)),
    ],
)
@pytest.mark.parametrize("name", ["bandwidth_bytes_per_s", "latency_s"])
def test_one_edge_with_another_number_makes_a_cluster_unlike(edge, name):
    graph = build(small(12))
    assert Fabric(graph).alike is not None
    graph.edges[edge][name] *= 2
    assert Fabric(graph).alike is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("gpu", 0), ("gpu", 7)),
        (("switch", 0), ("switch", 1)),
        (("switch", 0), ("group", 2)),
        (("group", 0), ("group", 3)),
    ],
)
def test_one_more_edge_makes_a_cluster_unlike(a, b):
    graph = build(small(12))
    numbers = graph.edges[("switch", 0), ("group", 0)]
    graph.add_edge(a, b, **numbers)
    graph.add_edge(b, a, **numbers)
    assert Fabric(graph).alike is None


groups_of_ranks = st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=5, unique=True), min_size=1, max_size=6)


@given(groups_of_ranks)
def test_groups_on_different_islands_share_no_link(groups):
    item = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    islands = SMALL.alike.islands(np.concatenate(groups), item)
    for a, b in itertools.combinations(range(len(groups)), 2):
        if islands[a] != islands[b]:
            assert not crossed(SMALL, groups[a]) & crossed(SMALL, groups[b])


def test_groups_inside_nodes_switches_and_tops_are_alone_there():
    def islands(*groups):
        item = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        return SMALL.alike.islands(np.concatenate(groups), item).tolist()

    assert len(set(islands([0, 1], [8, 9], [16, 17]))) == 3
    assert len(set(islands([0, 1], [2, 3], [8, 9]))) == 2
    assert len(set(islands([0, 8], [1, 2], [16, 24]))) == 2
    assert len(set(islands([0, 16], [1, 17], [32, 48], [64, 65]))) == 3
    assert len(set(islands([0, 32], [48, 64], [80, 81]))) == 2


@st.composite
def turned_clusters(draw):
    """The node that each of 12 moves to when groups, switches of a group and nodes of a switch change places."""
    nodes = []
    for group in draw(st.permutations(range(3))):
        for switch in draw(st.permutations(range(2))):
            nodes += [group * 4 + switch * 2 + node for node in draw(st.permutations(range(2)))]
    return nodes


@given(groups_of_ranks, turned_clusters())
def test_ranks_that_change_places_with_like_ones_keep_form_and_loads(groups, nodes):
    moved = [[nodes[rank // 8] * 8 + rank % 8 for rank in group] for group in groups]
    item = np.zeros(sum(map(len, groups)), dtype=np.intp)
    forms = [SMALL.alike.forms(np.concatenate(some), item).tolist() for some in (groups, moved)]
    assert forms[0] == forms[1]
    assert loads_of(SMALL, groups) == loads_of(SMALL, moved)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([0, 8, 16], [32, 40, 48], True),
        ([0, 8, 16], [8, 0, 16], True),
        ([0, 8, 16], [1, 8, 16], False),
        ([0, 8, 16], [0, 16, 8], False),
        ([0, 16, 17], [0, 32, 33], False),
        ([0, 32, 64], [64, 0, 32], True),
    ],
)
def test_the_form_tells_what_ranks_share(one, other, same):
    item = np.zeros(3, dtype=np.intp)
    a, b = (SMALL.alike.forms(np.array(ranks), item).tolist() for ranks in (one, other))
    assert (a == b) == same


def test_the_whole_of_frontier_is_alike_up_to_its_half_full_group():
    places = Fabric(build(FRONTIER)).alike
    assert isinstance(FRONTIER.network, Dragonfly)
    sizes = [np.unique(place).size for place in (places.row, places.node, places.switch, places.top)]
    assert sizes == [8, 9408, 9408 // 4, 74]


def test_groups_shifted_by_whole_groups_of_switches_have_one_form():
    fabric = Fabric(build(first_gpus(FRONTIER, 8 * 128 * 3)))
    groups = np.arange(fabric.num_ranks).reshape(-1, 256)
    island = fabric.alike.islands(groups.ravel(), np.repeat(np.arange(len(groups)), 256))
    assert np.unique(island).tolist() == sorted(island[::4].tolist())
    forms = fabric.alike.forms(groups.ravel(), np.repeat(island, 256)).reshape(3, -1)
    assert (forms == forms[0]).all()
