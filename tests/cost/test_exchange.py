"""All-to-alls by nodes: every phase against a count of rows by brute force, and what is fastest where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moeplan.cost.communication import all_to_all, crowding
from moeplan.cost.exchange import ALGORITHMS, exchange, fastest, halo_phases, places, two_level_phases
from moeplan.spec.cluster import Kind, check_cluster, first_gpus
from moeplan.spec.shipped import load_calibration, load_cluster
from moeplan.tiers import aligned, tiers_of
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Seconds

HOMES = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(np.array)
MI250X = load_calibration("mi250x")


def nodes_of(home):
    return {node: tuple(np.flatnonzero(home == node).tolist()) for node in home.tolist()}


def sent(phase, n):
    """Rows of one per pair, times n, from each rank to each other [n, n]."""
    table = np.zeros((n, n))
    np.add.at(table, (phase.source, phase.target), phase.share * n)
    return table


@given(HOMES)
def test_halo_moves_every_row_along_its_three_phases(home):
    """The row from i to j stays in the node, or goes to j's node by i's rail and from there to j."""
    n, nodes = home.size, nodes_of(home)
    first, second, third = (np.zeros((n, n)) for _ in range(3))
    for i in range(n):
        for j in range(n):
            if home[i] == home[j]:
                first[i, j] += i != j
                continue
            there = aligned(nodes[int(home[i])].index(i), nodes[int(home[j])])
            second[i, there] += 1
            third[there, j] += there != j
    for phase, expected in zip(halo_phases(np.arange(n), home), (first, second, third), strict=True):
        assert sent(phase, n) == pytest.approx(expected)
        assert (phase.messages == 1).all()


@given(HOMES)
def test_the_two_level_algorithm_moves_every_row_along_its_two_phases(home):
    """The row from i to j goes to the mate at j's place, if j is elsewhere, and from there to j."""
    n, nodes = home.size, nodes_of(home)
    inside, across = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if home[i] == home[j]:
                inside[i, j] += i != j
                continue
            mate = aligned(nodes[int(home[j])].index(j), nodes[int(home[i])])
            inside[i, mate] += i != mate
            across[mate, j] += 1
    for phase, expected in zip(two_level_phases(np.arange(n), home), (inside, across), strict=True):
        assert sent(phase, n) == pytest.approx(expected)


def test_places_count_the_ranks_of_each_node():
    place, local = places(np.array([5, 2, 5, 5, 2]))
    assert place.tolist() == [0, 0, 1, 2, 1]
    assert local.tolist() == [3, 2, 3, 3, 2]


@pytest.fixture(scope="module")
def frontier():
    return {nodes: Fabric(build(first_gpus(load_cluster("frontier"), 8 * nodes))) for nodes in (1, 4, 32)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_inside_a_node_all_algorithms_are_the_flat_one(frontier, algorithm):
    assert exchange(frontier[1], MI250X, [range(8)], 1e6, algorithm) == all_to_all(frontier[1], MI250X, [range(8)], 1e6)
    assert fastest(frontier[1], MI250X, [range(8)], 1e6)[0] == "flat"


def test_halo_sends_one_message_per_node_where_flat_sends_one_per_rank(frontier):
    """248 ranks on 31 other nodes: of small rows the messages decide, of large ones the bytes, which are the same.

    At 3 us per message of a NIC of 25 GB/s, 496 messages in place of 62.
    """
    fabric, ranks = frontier[32], [range(256)]
    calm = structs.replace(MI250X, network=structs.replace(MI250X.network, contention=1.0, fill_s=Seconds(0)))
    small, large = (
        {name: exchange(fabric, calm, ranks, size * 256, name).seconds for name in ALGORITHMS}
        for size in (2**10, 2**26)
    )
    assert small["flat"] - small["halo"] == pytest.approx((496 - 62) * 3e-6 / calm.network.efficiency, rel=0.1)
    assert [crosses for crosses in (2**16, 2**17) if _flat_s(fabric, crosses) > 1.01 * _flat_s(fabric, 2**10)] == [
        2**17
    ]
    assert fastest(fabric, calm, ranks, 2**10 * 256)[0] in ("halo", "halo_chunked", "two_level")
    assert large["halo"] > large["flat"] > 0.5 * large["halo"]
    assert fastest(fabric, calm, ranks, 2**26 * 256, among=("flat", "halo", "two_level"))[0] == "flat"


def test_what_a_message_takes_at_least_is_the_nic_s_not_the_switches():
    """256 nodes are two groups: links between them pass 2^20 small messages, each NIC handles 2 x 2040 at 3 us."""
    fabric, ranks = Fabric(build(first_gpus(load_cluster("frontier"), 2048))), [range(2048)]
    calm = structs.replace(MI250X, network=structs.replace(MI250X.network, contention=1.0, fill_s=Seconds(0)))
    found = exchange(fabric, calm, ranks, 2048, "flat").seconds
    assert found - calm.network.latency_s == pytest.approx(2 * 2040 * 3e-6 / calm.network.efficiency, rel=0.01)


def test_chunks_hide_what_is_handed_out(frontier):
    costs = {name: exchange(frontier[32], MI250X, [range(256)], 2**28, name).seconds for name in ALGORITHMS}
    assert costs["halo_chunked"] < costs["halo"]


def test_every_window_that_is_handed_out_is_started(frontier):
    """31 other nodes in 8 windows; of small rows, HALO's one start of phase III is less than 8 of them."""
    slow = structs.replace(MI250X, node=structs.replace(MI250X.node, latency_s=Seconds(1e-3)))
    slow = structs.replace(slow, network=structs.replace(slow.network, latency_s=Seconds(0)))
    costs = {name: exchange(frontier[32], slow, [range(256)], 2**8, name).seconds for name in ALGORITHMS}
    assert costs["halo"] == pytest.approx(1e-3, rel=0.5)
    assert 9e-3 < costs["halo_chunked"] < 10e-3
    assert fastest(frontier[32], slow, [range(256)], 2**8, ("halo_chunked", "halo"))[0] == "halo"


def test_groups_on_other_nodes_share_nothing_and_on_the_same_ones_nics(frontier):
    """Two groups of 16 on four nodes: alone, on their own nodes, or with every second rank of all four."""
    fabric = frontier[4]
    alone = exchange(fabric, MI250X, [range(16)], 1e7, "halo").seconds
    apart = exchange(fabric, MI250X, [range(16), range(16, 32)], 1e7, "halo").seconds
    mixed = exchange(fabric, MI250X, [range(0, 32, 2), range(1, 32, 2)], 1e7, "halo").seconds
    assert apart == pytest.approx(alone)
    assert mixed > alone


def test_contention_is_by_messages_under_way_whatever_sends_them(frontier):
    """A NIC of two GPUs sends 2 x 248 messages at once of a flat all-to-all, and 2 x 4 of HALO's."""
    crowded = structs.replace(
        MI250X,
        network=structs.replace(MI250X.network, contention=1.5, few_flows=32.0, fill_s=type(MI250X.network.fill_s)(0)),
    )
    plain = structs.replace(crowded, network=structs.replace(crowded.network, contention=1.0))
    fabric, ranks = frontier[32], [range(256)]
    size = 2**30
    flat, same = (exchange(fabric, one, ranks, size, "flat").seconds for one in (crowded, plain))
    assert flat / same == pytest.approx(crowding(crowded.network, 496), rel=0.01)
    assert crowding(crowded.network, 496) == pytest.approx(1 + 0.5 * (1 - 32 / 496))
    halo, calm = (exchange(fabric, one, ranks, size, "halo").seconds for one in (crowded, plain))
    assert halo == calm
    assert crowding(crowded.network, 32) == crowding(crowded.network, 0) == 1


def test_small_messages_go_by_nodes_at_many_gpus_and_straight_at_few():
    """16 GPUs with 1 MiB per peer: flat; 256 and more with little per peer: by nodes (Tutel, arXiv 2206.03382)."""
    h100, dgx = load_calibration("h100"), load_cluster("dgx-h100")
    fabrics = {gpus: Fabric(build(first_gpus(dgx, gpus))) for gpus in (16, 256, 2048)}
    assert fastest(fabrics[16], h100, [range(16)], 16 * 2**20, among=("flat", "two_level"))[0] == "flat"
    for gpus in (256, 2048):
        assert fastest(fabrics[gpus], h100, [range(gpus)], gpus * 2**10)[0] != "flat"


def _flat_s(fabric, pair_bytes):
    return exchange(fabric, MI250X, [range(256)], 256 * pair_bytes, "flat").seconds


def test_rails_are_by_nics_where_nodes_differ_in_them():
    """Of nodes whose GPUs have their NICs in opposite order, the ones on the same rail exchange; tiers say the same."""
    dgx = load_cluster("dgx-h100")
    other = structs.replace(dgx.node, nic_of_gpu=tuple(range(7, -1, -1)))
    job = check_cluster(structs.replace(dgx, nodes=2, kinds=(Kind(nodes="1", node=other),)))
    fabric = Fabric(build(job))
    ranks = np.arange(16)
    _, second, _ = halo_phases(ranks, fabric.node_of(ranks), fabric.nic_of(ranks))
    assert dict(zip(second.source[:8].tolist(), second.target[:8].tolist(), strict=True)) == {
        r: 15 - r for r in range(8)
    }
    first, last = tiers_of(job, range(16)).nodes
    assert [a + b for a, b in zip(first, last, strict=True)] == [15] * 8
    moved = fabric.crossings(second.source, second.target)
    assert not any("spine" in str(fabric.edges[e]) for e in moved.edge)
