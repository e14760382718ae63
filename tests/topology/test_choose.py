"""The nodes chosen of a fragmented free list are in as few racks and groups as brute force finds."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import InfeasibleError, SpecError
from moeplan.topology.choose import choose
from moeplan.topology.units import Unit


def machine(*groups):
    """Hosts by rack: each group is a list of racks with so many free nodes."""
    units = {}
    for g, racks in enumerate(groups):
        for r, nodes in enumerate(racks):
            units |= {f"g{g}r{r}n{n}": Unit(f"g{g}r{r}", f"g{g}") for n in range(nodes)}
    return units


def brute(units, nodes, together=1):
    """The least (racks, groups, nodes left over) of all sets of racks."""
    racks = {}
    for unit in units.values():
        racks[unit] = racks.get(unit, 0) + 1
    for k in range(1, len(racks) + 1):
        found = [
            (k, len({unit.group for unit in some}), sum(racks[unit] for unit in some) - nodes)
            for some in combinations(racks, k)
            if sum(racks[unit] // together for unit in some) * together >= nodes
        ]
        if found:
            return min(found)
    return None


def told(chosen):
    return len(chosen.racks), len(chosen.groups), chosen.left_over


FREE = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@given(FREE, st.integers(1, 40), st.sampled_from([1, 1, 2, 3]), st.randoms(use_true_random=False))
def test_no_set_of_racks_is_better(groups, nodes, together, draw):
    units, nodes = machine(*groups), nodes * together
    free = [*units]
    draw.shuffle(free)
    expected = brute(units, nodes, together)
    if expected is None:
        with pytest.raises(InfeasibleError, match="are free"):
            choose(free, units, nodes, together)
        return
    chosen = choose(free, units, nodes, together)
    assert told(chosen) == expected
    assert len(set(chosen.hosts)) == nodes
    assert set(chosen.hosts) <= set(free)
    per_rack = [sum(units[host].rack == rack for host in chosen.hosts) for rack in chosen.racks]
    assert all(per_rack)
    assert all(count % together == 0 for count in per_rack)


def test_a_rack_that_fits_exactly_is_taken_before_larger_ones():
    assert choose([*machine([8, 5, 8])], machine([8, 5, 8]), 5).racks == ("g0r1",)


def test_two_racks_of_one_group_are_taken_before_larger_ones_of_two():
    units = machine([8, 3], [7, 6], [8, 2])
    chosen = choose([*units], units, 13)
    assert (chosen.racks, chosen.groups, chosen.left_over) == (("g1r0", "g1r1"), ("g1",), 0)


def test_groups_of_eight_nodes_take_whole_eights_of_unequal_blocks():
    units = machine([8, 9, 16, 18])
    chosen = choose([*units], units, 48, together=8)
    assert told(chosen) == (4, 1, 3)
    blocks = [units[host].rack for host in chosen.hosts]
    assert all(len(set(blocks[i : i + 8])) == 1 for i in range(0, 48, 8))
    with pytest.raises(InfeasibleError, match="56 nodes asked for, 48 are free in racks of whole 8"):
        choose([*units], units, 56, together=8)


def test_a_machine_of_thousands_of_racks_is_chosen_from():
    draw = random.Random(3)
    units = machine(*([draw.randint(1, 4) for _ in range(32)] for _ in range(74)))
    chosen = choose([*units], units, 2048)
    assert len(chosen.hosts) == 2048
    assert len(chosen.racks) == 2048 // 4 + (2048 % 4 > 0)


def test_what_cannot_be_chosen_is_named():
    units = machine([4, 4])
    with pytest.raises(SpecError, match="'x9' is free, and not in the topology of 8 nodes"):
        choose(["x9"], units, 1)
    with pytest.raises(SpecError, match="named twice"):
        choose(["g0r0n0", "g0r0n0"], units, 1)
    with pytest.raises(SpecError, match="5 nodes, 2 together"):
        choose([*units], units, 5, 2)
    with pytest.raises(InfeasibleError, match="9 nodes asked for, 8 are free"):
        choose([*units], units, 9)
