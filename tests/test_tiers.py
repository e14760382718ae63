"""Tiers of a group of ranks: what is refused, and rounds of messages that both ends count alike."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.tiers import Tiers, aligned, check_tiers, group_sizes, members, places, round_of

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def of_sizes(sizes):
    """One rank per node, `sizes` nodes per group."""
    nodes = tuple((i,) for i in range(sum(sizes)))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return Tiers(nodes=nodes, groups=tuple(tuple(range(a, a + n)) for a, n in zip(starts, sizes, strict=True)))


def rounds(tiers):
    """{(source node, target node): round}."""
    found = places(tiers)
    sizes, nodes = group_sizes(found), range(len(tiers.nodes))
    return {(a, b): round_of(found[a], found[b], sizes) for a in nodes for b in nodes if a != b}


@given(SIZES)
def test_in_a_round_a_node_sends_to_one_and_receives_from_one_at_most(sizes):
    when = rounds(of_sizes(sizes))
    assert max(Counter((r, a) for (a, _), r in when.items()).values(), default=1) == 1
    assert max(Counter((r, b) for (_, b), r in when.items()).values(), default=1) == 1
    assert min(when.values(), default=0) == 0


@given(SIZES)
def test_partners_of_the_same_group_come_first(sizes):
    tiers = of_sizes(sizes)
    group = [g for g, _ in places(tiers)]
    near = [r for (a, b), r in rounds(tiers).items() if group[a] == group[b]]
    far = [r for (a, b), r in rounds(tiers).items() if group[a] != group[b]]
    assert max(near, default=-1) < min(far, default=len(group))


@given(st.integers(1, 6), st.integers(2, 6))
def test_equal_groups_need_as_many_rounds_as_a_node_has_partners(nodes, groups):
    when = rounds(of_sizes([nodes] * groups))
    assert set(when.values()) == set(range(nodes * groups - 1))


def test_nodes_of_a_group_turn_to_different_groups_in_the_same_round():
    tiers = of_sizes([4] * 5)
    group = [g for g, _ in places(tiers)]
    loads = Counter((r, group[a], group[b]) for (a, b), r in rounds(tiers).items() if group[a] != group[b])
    assert set(loads.values()) == {1}


def test_without_groups_all_nodes_are_one():
    nodes = ((5, 1), (0, 7), (2,))
    assert places(Tiers(nodes=nodes)) == ((0, 0), (0, 1), (0, 2))
    assert places(Tiers(nodes=nodes, groups=((2, 0, 7), (1, 5)))) == ((1, 0), (0, 0), (0, 1))
    assert members(Tiers(nodes=nodes)) == (0, 1, 2, 5, 7)


def test_ranks_at_the_same_place_meet_and_the_rest_wrap_around():
    assert [aligned(place, (4, 9, 2)) for place in range(5)] == [4, 9, 2, 4, 9]


@pytest.mark.parametrize(
    ("nodes", "groups", "message"),
    [
        ((), (), "a node without ranks"),
        (((0,), ()), (), "a node without ranks"),
        (((0, 1), (1,)), (), r"nodes \(\(0, 1\), \(1,\)\) do not hold ranks once each"),
        (((0, -1),), (), r"nodes \(\(0, -1\),\) do not hold ranks once each"),
        (((0, 1), (2,)), ((0, 1),), r"groups \(\(0, 1\),\) do not hold the ranks of the nodes once each"),
        (((0,),), ((0,), (0,)), "do not hold the ranks of the nodes once each"),
        (((0, 1), (2, 3)), ((0, 2), (1, 3)), r"the node of ranks \(0, 1\) is in several groups"),
    ],
)
def test_tiers_that_do_not_hold_each_rank_once_are_refused(nodes, groups, message):
    with pytest.raises(SpecError, match=f"^tiers: .*{message}"):
        check_tiers(Tiers(nodes=nodes, groups=groups))
