"""Costs that are worked out once for groups that are alike, against the same costs worked out for all together."""

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.cost.communication import (
    all_gather,
    all_reduce,
    all_to_all,
    crowding,
    many_to_many,
    point_to_point,
    reduce_scatter,
)
from moeplan.errors import SpecError
from moeplan.spec.cluster import Tree, first_gpus
from moeplan.spec.shipped import load_calibration, load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import BytesPerS

FRONTIER, DGX = load_cluster("frontier"), load_cluster("dgx-h100")
MI250X = load_calibration("mi250x")
SIZE = 1e8 / 3


def dragonfly(nodes=12):
    few = {"nodes_per_switch": 2, "switches_per_group": 2}
    return msgspec.structs.replace(FRONTIER, nodes=nodes, network=msgspec.structs.replace(FRONTIER.network, **few))


def tree(nodes=12):
    network = Tree(nodes_per_leaf=2, uplink_bytes_per_s=BytesPerS(12.8e12), hop_latency_s=DGX.network.hop_latency_s)
    return msgspec.structs.replace(DGX, nodes=nodes, network=network)


def rails(nodes=12):
    return msgspec.structs.replace(DGX, nodes=nodes, network=msgspec.structs.replace(DGX.network, nodes_per_unit=2))


GRAPHS = {"dragonfly": build(dragonfly()), "tree": build(tree()), "rails": build(rails())}
SHARED = {name: Fabric(graph) for name, graph in GRAPHS.items()}


def unshared(graph):
    """A fabric on which no two ranks are known to be alike."""
    fabric = Fabric(graph)
    fabric.__dict__["alike"] = None
    return fabric


UNSHARED = {name: unshared(graph) for name, graph in GRAPHS.items()}

PATTERNS = {
    "all_to_all": all_to_all,
    "many_to_many": lambda f, c, g, b: many_to_many(f, c, g, g[1:] + g[:1], b),
    "deduplicated": lambda f, c, g, b: many_to_many(f, c, g, g[1:] + g[:1], b, 4, b / 7),
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "point_to_point": lambda f, c, g, b: point_to_point(f, c, [(r[0], r[-1]) for r in g], b),
}
every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
every_graph = pytest.mark.parametrize("name", GRAPHS)


@st.composite
def partitions(draw):
    """Some of 96 ranks in groups: neighbours, strided, or both, from any rank on; or any ranks at all."""
    if draw(st.booleans()):
        order = draw(st.permutations(range(96)))
        cuts = sorted(draw(st.sets(st.integers(1, 95), max_size=20)))
        return [order[a:b] for a, b in itertools.pairwise([0, *cuts])] or [order]
    size, stride, first = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 3, 8, 16])), draw(st.integers(0, 40))
    block = size * stride
    return [
        list(range(start + j, start + block, stride))
        for start in range(first, 97 - block, block)
        for j in range(stride)
    ] or [[first]]


@every_pattern
@every_graph
@given(groups=partitions())
def test_sharing_changes_no_cost(pattern, name, groups):
    shared, alone = (pattern(fabrics[name], MI250X, groups, SIZE) for fabrics in (SHARED, UNSHARED))
    assert shared.seconds == pytest.approx(alone.seconds, rel=1e-12)
    assert shared.source == alone.source


@every_pattern
@every_graph
@given(groups=partitions(), nodes=st.permutations(range(12)), size=st.floats(1, 1e12))
def test_sharing_changes_no_cost_of_groups_on_other_nodes(pattern, name, groups, nodes, size):
    moved = [[nodes[rank // 8] * 8 + rank % 8 for rank in group] for group in groups]
    pattern(SHARED[name], MI250X, groups, SIZE)
    shared, alone = (pattern(fabrics[name], MI250X, moved, size) for fabrics in (SHARED, UNSHARED))
    assert shared.seconds == pytest.approx(alone.seconds, rel=1e-12)


@every_pattern
def test_costs_of_one_call_do_not_depend_on_the_calls_before(pattern):
    graph = GRAPHS["dragonfly"]
    sets = [[range(i, i + 16) for i in range(0, 96, 16)], [range(i, 96, 16) for i in range(16)], [range(96)]]
    fabric = Fabric(graph)
    forward = [pattern(fabric, MI250X, groups, size) for groups in sets for size in (SIZE, 3.0)]
    fabric = Fabric(graph)
    backward = [pattern(fabric, MI250X, groups, size) for groups in sets[::-1] for size in (3.0, SIZE)]
    assert forward == backward[::-1]


@pytest.mark.parametrize("groups", [[[0, 1], [2, 96]], [[-1, 3]]])
def test_a_rank_outside_the_cluster_is_refused(groups):
    with pytest.raises(SpecError, match="not in the graph; ranks are 0 to 95"):
        all_to_all(SHARED["dragonfly"], MI250X, groups, SIZE)


def test_all_groups_of_the_whole_of_frontier_cost_as_much_as_those_of_one_of_its_groups():
    whole, part = Fabric(build(FRONTIER)), Fabric(build(first_gpus(FRONTIER, 1024)))
    for pattern in (all_to_all, all_reduce):
        one, all_of_them = (
            pattern(f, MI250X, [range(i, i + 32) for i in range(0, f.num_ranks, 32)], SIZE) for f in (part, whole)
        )
        assert one == all_of_them


def test_256_ranks_in_a_group_of_switches_are_bound_by_their_nics():
    fabric = Fabric(build(first_gpus(FRONTIER, 1024)))
    got = all_to_all(fabric, MI250X, [range(i, i + 256) for i in range(0, 1024, 256)], SIZE).seconds
    ways, network = 2 * (256 - 8), MI250X.network
    busiest = ways * (SIZE / 256 + network.half_message_bytes) / (25e9 * network.efficiency)
    busiest *= crowding(network, ways)
    source, target = np.array([0]), np.array([255])
    latency = fabric.latency_s[fabric.crossings(source, target).edge].sum()
    moving = busiest + 2 * math.sqrt(network.fill_s * busiest)
    assert got == pytest.approx(network.latency_s + latency + moving, rel=1e-12)
