"""Groups as arrays, and the rings among them, against plain lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeplan.cost.patterns import Side, blocks, by_node, ring, side
from moeplan.spec.cluster import first_gpus
from moeplan.spec.shipped import load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

FABRIC = Fabric(build(first_gpus(load_cluster("dgx-h100"), 64)))
ranks = st.lists(st.integers(0, 63), max_size=12, unique=True)


def listed(groups: Side) -> list[list[int]]:
    return [part.tolist() for part in np.split(groups.ranks, groups.start[1:])[: groups.sizes.size]]


@given(st.lists(ranks, max_size=5))
def test_groups_keep_their_ranks_in_order(groups):
    assert listed(side(groups)) == groups
    assert listed(side(side(groups))) == groups


@given(st.lists(ranks, max_size=5), st.integers(1, 5))
def test_blocks_are_slices(groups, size):
    assert listed(blocks(groups, size)) == [g[i : i + size] for g in groups for i in range(0, len(g), size)]


def rings_of(group):
    """As the docstring says, with lists: node by node, every ring starts a node at another rank."""
    by_home = [[r for r in group if r // 8 == node] for node in sorted({r // 8 for r in group})]
    turns = range(min(map(len, by_home))) if len(by_home) > 1 else range(1)
    return [[r for block in by_home for r in block[c:] + block[:c]] for c in turns]


@given(st.lists(ranks.filter(len), min_size=1, max_size=5))
def test_rings_visit_node_by_node_and_enter_each_at_another_rank(groups):
    expected = []
    for group in groups:
        rings = rings_of(group)
        for order in rings:
            sent = (len(group) - 1) / len(group) / len(rings)
            expected += [(a, b, sent) for a, b in zip(order, order[1:] + order[:1], strict=True)]
    got = ring(FABRIC, by_node(FABRIC, side(groups)))
    assert sorted((a, b, round(s, 12)) for a, b, s in zip(got.source, got.target, got.share, strict=True)) == sorted(
        (a, b, round(s, 12)) for a, b, s in expected
    )
    assert sorted(got.messages) == sorted(len(g) - 1 for g in groups for _ in range(len(g) * len(rings_of(g))))
