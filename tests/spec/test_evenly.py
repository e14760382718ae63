"""Which nodes of NVLink domains larger than a node a job takes."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.spec.cluster import domain_gpus, domains, first_gpus, homes, pick, places_of
from moeplan.spec.evenly import evenly
from moeplan.spec.shipped import load_cluster

RACKS = load_cluster("gb200-nvl72")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_as_many_of_each_of_the_fewest_domains_or_the_first_nodes(homes, data):
    nodes = data.draw(st.integers(1, len(homes)))
    found = list(evenly(homes, nodes))
    assert len(set(found)) == nodes
    taken = {home: sum(homes[n] == home for n in found) for home in {homes[n] for n in found}}
    filled = len(set(homes[:nodes]))
    counts = [
        count
        for count in range(1, 2 * filled + 1)
        if nodes % count == 0 and sum(homes.count(home) >= nodes // count for home in set(homes)) >= count
    ]
    if counts:
        assert set(taken.values()) == {nodes // counts[0]}
    else:
        assert found == list(range(nodes))
    for home in taken:
        assert [n for n in found if homes[n] == home] == [n for n, of in enumerate(homes) if of == home][: taken[home]]


@pytest.mark.parametrize(
    ("gpus", "racks", "each"),
    [(4, 1, 4), (64, 1, 64), (72, 1, 72), (128, 2, 64), (144, 2, 72), (2048, 32, 64), (80, 2, 40)],
)
def test_a_job_has_as_many_gpus_of_every_rack(gpus, racks, each):
    part = first_gpus(RACKS, gpus)
    assert (domains(part), domain_gpus(part)) == (racks, each)
    assert places_of(part) == tuple(18 * rack + tray for rack in range(racks) for tray in range(each // 4))


def test_what_no_number_of_racks_shares_fills_them_in_order():
    part = first_gpus(RACKS, 4 * 19)
    assert (places_of(part), part.use) == (tuple(range(19)), "")
    assert domain_gpus(part) == 4


def test_a_tray_that_is_out_of_order_is_made_up_for_by_the_next():
    left = pick(RACKS, "[0-4,6-35]")
    assert places_of(first_gpus(left, 128)) == (*range(5), *range(6, 17), *range(18, 34))
    runs = [len(list(run)) for _, run in groupby(homes(first_gpus(left, 128)))]
    assert runs == [16, 16]
