"""Seconds of communication patterns against closed forms, and what they must and must not depend on."""

import time
from math import sqrt

import msgspec
import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moeplan.cost import Cost
from moeplan.cost.communication import (
    all_gather,
    all_reduce,
    all_to_all,
    dispatch,
    many_to_many,
    point_to_point,
    reduce_scatter,
)
from moeplan.errors import SpecError
from moeplan.spec.calibration import Attention, Calibration, Grouped, Surface, Tier
from moeplan.spec.cluster import ClusterSpec, Gpu, Node, Tree, num_ranks
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Bytes, BytesPerS, Seconds

LINK, NIC, UPLINK, SIZE = 200e9, 50e9, 400e9, 1e9


def cluster(nodes=1, gpus=8, nics=8, nodes_per_leaf=8, link=LINK, nic=NIC, uplink=UPLINK, latency=0.0):
    return ClusterSpec(
        name="test",
        nodes=nodes,
        gpu=Gpu(name="gpu", hbm_bytes=Bytes(80e9), hbm_bytes_per_s=BytesPerS(3e12), peak_flop_per_s={}),
        node=Node(
            gpus=gpus,
            nics=nics,
            link_bytes_per_s=BytesPerS(link),
            link_latency_s=Seconds(latency),
            nic_bytes_per_s=BytesPerS(nic),
            nic_latency_s=Seconds(2 * latency),
        ),
        network=Tree(
            nodes_per_leaf=nodes_per_leaf, uplink_bytes_per_s=BytesPerS(uplink), hop_latency_s=Seconds(3 * latency)
        ),
    )


def tier(efficiency=1.0, half=0.0, latency=0.0, source="assumed"):
    return Tier(
        efficiency=efficiency,
        half_message_bytes=Bytes(half),
        latency_s=Seconds(latency),
        source=source,
        note="",
    )


def calibration(node, network):
    return Calibration(
        name="test",
        gemm={"bf16": Surface(m=(1.0,), share=(1.0,), source="assumed", note="")},
        grouped=Grouped(half_rows=0.0, source="assumed", note=""),
        attention=Attention(forward=1.0, backward=1.0, half_sequence=0.0, source="assumed", note=""),
        hbm=1.0,
        node=node,
        network=network,
        kernel_s=Seconds(0.0),
    )


IDEAL = calibration(tier(), tier())
REAL = calibration(tier(0.8, 1e5, 5e-6, "measured"), tier(0.9, 1e6, 2e-5, "assumed"))


def fabric(**numbers):
    return Fabric(build(cluster(**numbers)))


def seconds(expected):
    return pytest.approx(expected, rel=1e-12)


PATTERNS = {
    "all_to_all": lambda f, c, g, b: all_to_all(f, c, g, b),
    "many_to_many": lambda f, c, g, b: many_to_many(f, c, g, g[::-1], b),
    "deduplicated": lambda f, c, g, b: many_to_many(f, c, g, g[::-1], b, 4),
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "point_to_point": lambda f, c, g, b: point_to_point(f, c, [(r[0], r[-1]) for r in g], b),
    "deepep": lambda f, c, g, b: dispatch(f, c, g, b, 4, "deepep"),
    "hybridep": lambda f, c, g, b: dispatch(f, c, g, b, 4, "hybridep", 1),
}
every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())


class TestClosedForms:
    def test_all_to_all_inside_a_node_is_bound_by_the_gpu_link(self):
        assert all_to_all(fabric(), IDEAL, [range(8)], SIZE).seconds == seconds(SIZE * 7 / 8 / LINK)

    def test_all_to_all_over_two_nodes_is_bound_by_the_nics(self):
        got = all_to_all(fabric(nodes=2), IDEAL, [range(16)], SIZE)
        assert got.seconds == seconds(SIZE * (16 - 8) / 16 / NIC)

    def test_gpus_that_share_a_nic_share_its_bandwidth(self):
        got = all_to_all(fabric(nodes=2, nics=4), IDEAL, [range(16)], SIZE)
        assert got.seconds == seconds(2 * SIZE * (16 - 8) / 16 / NIC)

    def test_groups_at_the_same_time_share_a_nic(self):
        f = fabric(nodes=2, nics=1)
        one = all_to_all(f, IDEAL, [(0, 8)], SIZE).seconds
        assert one == seconds(SIZE / 2 / NIC)
        assert all_to_all(f, IDEAL, [(r, r + 8) for r in range(8)], SIZE).seconds == seconds(8 * one)

    def test_all_to_all_over_leaves_is_bound_by_a_thin_uplink(self):
        f = fabric(nodes=2, nodes_per_leaf=1, uplink=100e9)
        assert all_to_all(f, IDEAL, [range(16)], SIZE).seconds == seconds(8 * SIZE / 2 / 100e9)

    def test_many_to_many_sends_everything(self):
        got = many_to_many(fabric(nodes=3), IDEAL, [range(8)], [range(8, 24)], SIZE)
        assert got.seconds == seconds(SIZE / NIC)

    def test_many_to_many_is_bound_by_few_targets(self):
        got = many_to_many(fabric(nodes=2), IDEAL, [range(8)], [range(8, 10)], SIZE)
        assert got.seconds == seconds(8 * SIZE / 2 / NIC)

    @pytest.mark.parametrize(
        ("k", "nodes", "factor"),
        [(8, 2, 0.249), (8, 8, 0.656), (4, 2, 0.469), (4, 8, 0.828), (1, 8, 1.0), (8, 1, 0.125)],
    )
    def test_deduplication_by_node(self, k, nodes, factor):
        f = fabric(nodes=2 * nodes, nodes_per_leaf=16, link=1e30)
        half = 8 * nodes
        ends = [range(half)], [range(half, 2 * half)]
        assert many_to_many(f, IDEAL, *ends, SIZE).seconds == seconds(SIZE / NIC)
        got = many_to_many(f, IDEAL, *ends, SIZE, k).seconds * NIC / SIZE
        assert got == pytest.approx(factor, abs=1e-3)
        assert got == seconds(nodes * (1 - (1 - 1 / nodes) ** k) / k)

    def test_deduplicated_copies_are_fanned_out_inside_the_node(self):
        f = fabric(nodes=2, nic=1e30)
        got = many_to_many(f, IDEAL, [range(8)], [range(8, 16)], SIZE, 8)
        assert got.seconds == seconds(SIZE * 7 / 8 / LINK)

    def test_deduplication_changes_nothing_inside_a_node(self):
        ends = [range(4)], [range(4, 8)]
        assert many_to_many(fabric(), REAL, *ends, SIZE, 8) == many_to_many(fabric(), REAL, *ends, SIZE)

    def test_rings_load_each_link_with_their_share(self):
        f, g = fabric(), [range(8)]
        assert all_gather(f, IDEAL, g, SIZE).seconds == seconds(SIZE * 7 / 8 / LINK)
        assert reduce_scatter(f, IDEAL, g, SIZE) == all_gather(f, IDEAL, g, SIZE)
        assert all_reduce(f, IDEAL, g, SIZE).seconds == seconds(2 * SIZE * 7 / 8 / LINK)

    def test_rings_of_equal_local_ranks_use_one_nic_each(self):
        groups = [range(r, 32, 8) for r in range(8)]
        assert all_gather(fabric(nodes=4), IDEAL, groups, SIZE).seconds == seconds(SIZE * 3 / 4 / NIC)

    def test_point_to_point_shares_only_what_it_must(self):
        f = fabric(nodes=2, nics=4)
        assert point_to_point(f, IDEAL, [(0, 8), (2, 10)], SIZE).seconds == seconds(SIZE / NIC)
        assert point_to_point(f, IDEAL, [(0, 8), (1, 9)], SIZE).seconds == seconds(2 * SIZE / NIC)
        assert point_to_point(f, IDEAL, [(0, 8), (9, 1)], SIZE).seconds == seconds(SIZE / NIC)


class TestCalibration:
    def test_inside_a_node_the_node_tier_counts(self):
        m = SIZE / 8
        expected = 5e-6 + 2 * 1e-6 + SIZE * 7 / 8 / (LINK * 0.8 * m / (m + 1e5))
        assert all_to_all(fabric(latency=1e-6), REAL, [range(8)], SIZE) == Cost(seconds(expected), "measured")

    def test_between_nodes_the_network_tier_counts(self):
        m = SIZE / 16
        expected = 2e-5 + 2 * (1e-6 + 2e-6) + SIZE / 2 / (NIC * 0.9 * m / (m + 1e6))
        assert all_to_all(fabric(nodes=2, latency=1e-6), REAL, [range(16)], SIZE) == Cost(seconds(expected), "assumed")

    def test_links_of_the_node_keep_their_efficiency_in_a_collective_over_nodes(self):
        m = SIZE / 16
        expected = 2e-5 + SIZE * 7 / 16 / (1e9 * 0.8 * m / (m + 1e5))
        assert all_to_all(fabric(nodes=2, link=1e9), REAL, [range(16)], SIZE).seconds == seconds(expected)

    def test_a_ring_pays_its_route_once_per_step(self):
        f, m = fabric(nodes=2, latency=1e-6), SIZE / 2
        expected = 2e-5 + 2 * 6e-6 + 2 * SIZE / 2 / (NIC * 0.9 * m / (m + 1e6))
        assert all_reduce(f, REAL, [(0, 8)], SIZE).seconds == seconds(expected)

    def test_an_all_reduce_is_as_crowded_as_its_two_halves(self):
        """Rings of eight groups over one NIC per node."""
        crowded = structs.replace(IDEAL, network=structs.replace(IDEAL.network, contention=3.0, few_flows=1.0))
        f, groups = fabric(nodes=2, nics=1), [(i, 8 + i) for i in range(8)]
        gathered = all_gather(f, crowded, groups, SIZE).seconds
        assert gathered > 2 * all_gather(f, IDEAL, groups, SIZE).seconds
        assert all_reduce(f, crowded, groups, SIZE).seconds == seconds(2 * gathered)

    def test_two_phases_of_different_sources_are_a_roofline(self):
        got = many_to_many(fabric(nodes=2), REAL, [range(8)], [range(8, 16)], SIZE, 2)
        assert got.source == "roofline"


@every_pattern
class TestEveryPattern:
    def test_nothing_to_send_costs_nothing(self, pattern):
        assert pattern(fabric(nodes=2), REAL, [range(8), range(8, 16)], 0).seconds == 0
        assert pattern(fabric(nodes=2), REAL, [], SIZE).seconds == 0

    def test_a_rank_alone_costs_nothing(self, pattern):
        assert pattern(fabric(nodes=2), REAL, [[5]], SIZE).seconds == 0

    @given(st.lists(st.floats(1, 1e12), min_size=2, max_size=2).map(sorted))
    def test_more_bytes_never_take_less_time(self, pattern, sizes):
        groups = [range(0, 16, 2), range(1, 16, 2)]
        less, more = (pattern(FIXED, REAL, groups, size).seconds for size in sizes)
        assert less <= more * (1 + 1e-12)

    @given(st.data())
    def test_only_edges_are_read(self, pattern, data):
        bandwidth = st.floats(1e9, 1e12)
        shape = data.draw(st.fixed_dictionaries({"nodes": st.integers(2, 4), "gpus": st.integers(1, 3)}))
        numbers = st.fixed_dictionaries({"link": bandwidth, "nic": bandwidth, "uplink": bandwidth})
        first, second = (cluster(nics=2, nodes_per_leaf=2, **shape, **data.draw(numbers)) for _ in range(2))
        ranks = range(num_ranks(first))
        groups = [ranks[::2], ranks[1::2]]

        graph = build(first)
        before = pattern(Fabric(graph), REAL, groups, SIZE)
        for name in ("link_bytes_per_s", "nic_bytes_per_s"):
            msgspec.structs.force_setattr(first.node, name, BytesPerS(1.0))
        assert pattern(Fabric(graph), REAL, groups, SIZE) == before

        nx.set_edge_attributes(graph, {(a, b): numbers for a, b, numbers in build(second).edges(data=True)})
        assert pattern(Fabric(graph), REAL, groups, SIZE) == pattern(Fabric(build(second)), REAL, groups, SIZE)


FIXED = fabric(nodes=2)

CLASSES = {"link": {"gpu", "node"}, "nic": {"nic", "leaf"}, "uplink": {"leaf", "spine"}}
QUERIES = {
    "inside nodes": ({"link"}, [range(8), range(8, 16), range(16, 24), range(24, 32)]),
    "inside leaves": ({"nic"}, [range(0, 16, 8), range(16, 32, 8)]),
    "over the spine": ({"uplink"}, [range(32)]),
}


@pytest.mark.parametrize("slow", CLASSES)
@pytest.mark.parametrize("query", QUERIES)
def test_halving_a_class_of_links_changes_only_what_it_bounds(slow, query):
    graph = build(cluster(nodes=4, nodes_per_leaf=2, uplink=100e9))
    bound_by, groups = QUERIES[query]
    before = all_to_all(Fabric(graph), IDEAL, groups, SIZE).seconds
    for a, b, numbers in graph.edges(data=True):
        if {a[0], b[0]} == CLASSES[slow]:
            numbers["bandwidth_bytes_per_s"] /= 2
    after = all_to_all(Fabric(graph), IDEAL, groups, SIZE).seconds
    assert after == seconds(before * (2 if slow in bound_by else 1))


def test_many_to_many_refuses_groups_that_do_not_match():
    with pytest.raises(SpecError, match="2 groups of sources for 1 of targets"):
        many_to_many(fabric(), IDEAL, [[0], [1]], [[2]], SIZE)
    with pytest.raises(SpecError, match="no target ranks"):
        many_to_many(fabric(), IDEAL, [[0]], [[]], SIZE)
    with pytest.raises(SpecError, match="deduplicated is 0"):
        many_to_many(fabric(), IDEAL, [[0]], [[1]], SIZE, 0)


def test_a_query_over_128_ranks_takes_less_than_50_ms():
    f, spent = fabric(nodes=16), []
    for _ in range(4):
        start = time.perf_counter()
        all_to_all(f, REAL, [range(128)], SIZE)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.05


def fast(**changes):
    return msgspec.structs.replace(tier(), **changes)


class TestTiers:
    def test_a_pipeline_costs_twice_the_root_of_its_chunks_start_and_the_rest(self):
        c, moving = calibration(fast(fill_s=Seconds(2e-6)), tier()), SIZE * 7 / 8 / LINK
        got = all_to_all(fabric(), c, [range(8)], SIZE).seconds
        assert got == seconds(moving + 2 * sqrt(2e-6 * moving))

    def test_that_is_the_best_number_of_chunks(self):
        """c chunks over a start s each: (c + 1) (moving / c + s), least at c = root of moving / s, less one start."""
        moving, start = SIZE / LINK, 1e-5
        best = min((c + 1) * (moving / c + start) for c in range(1, 200)) - start
        got = point_to_point(fabric(), calibration(fast(fill_s=Seconds(start)), tier()), [(0, 1)], SIZE).seconds
        assert got == pytest.approx(best, rel=1e-3)

    def test_a_kernel_copies_the_ranks_own_share_too(self):
        c = calibration(fast(kernel_bytes_per_s=BytesPerS(100e9)), tier())
        assert all_to_all(fabric(), c, [range(2)], SIZE).seconds == seconds(SIZE / 100e9)
        assert all_gather(fabric(), c, [range(8)], SIZE).seconds == seconds(SIZE / 100e9)

    def test_a_pattern_has_its_own_share_and_start(self):
        c = calibration(fast(shares={"all_gather": 0.5}, starts_s={"all_gather": Seconds(1e-3)}), tier())
        assert all_gather(fabric(), c, [range(8)], SIZE).seconds == seconds(1e-3 + 2 * SIZE * 7 / 8 / LINK)
        assert reduce_scatter(fabric(), c, [range(8)], SIZE).seconds == seconds(SIZE * 7 / 8 / LINK)

    @pytest.mark.parametrize(("ranks", "sent"), [(2, 1.0), (4, 5 / 4), (8, 9 / 8)])
    def test_a_switch_that_adds_up_is_sent_the_buffer_once(self, ranks, sent):
        """1 + 1 / n; two ranks exchange halves twice."""
        c = calibration(fast(reduces=True), tier())
        assert all_reduce(fabric(), c, [range(ranks)], SIZE).seconds == seconds(sent * SIZE / LINK)

    def test_between_nodes_a_switch_that_adds_up_leaves_rings_over_the_cards(self):
        c = calibration(fast(reduces=True), tier())
        slow, fast_cards = fabric(nodes=2), fabric(nodes=2, nic=1e12)
        assert all_reduce(slow, c, [range(16)], SIZE).seconds == seconds(
            max(2 * 15 / 16 / 8 / NIC, 9 / 8 / LINK) * SIZE
        )
        assert all_reduce(fast_cards, c, [range(16)], SIZE).seconds == seconds(9 / 8 * SIZE / LINK)

    def test_a_ring_over_nodes_waits_for_its_slow_routes_once_per_node(self):
        """Of 16 routes 2 leave a node, at 6 us, and 14 stay, at 2 us; a message passes 15 of them."""
        f = fabric(nodes=2, latency=1e-6)
        got = all_gather(f, IDEAL, [range(16)], 1e-3).seconds
        assert got == pytest.approx(15 / 16 * (2 * 6e-6 + 14 * 2e-6), rel=1e-6)


class TestDispatch:
    def test_all_copies_are_an_all_to_all(self):
        got = dispatch(fabric(nodes=2), REAL, [range(16)], SIZE, 8, "all_to_all")
        assert got == all_to_all(fabric(nodes=2), REAL, [range(16)], SIZE)

    def test_gathered_tokens_go_to_all_ranks_once(self):
        got = dispatch(fabric(), IDEAL, [range(8)], SIZE, 4, "all_gather")
        assert got.seconds == seconds(7 * SIZE / 4 / LINK)

    @pytest.mark.parametrize("library", ["deepep", "hybridep"])
    def test_inside_a_node_a_token_goes_once_to_every_rank(self, library):
        got = dispatch(fabric(), IDEAL, [range(8)], SIZE, 8, library)
        assert got.seconds == seconds(7 * (1 - (7 / 8) ** 8) * SIZE / 8 / LINK)

    @pytest.mark.parametrize(("nodes", "k"), [(2, 8), (4, 8), (4, 2), (3, 6)])
    def test_a_token_leaves_once_for_every_other_node(self, nodes, k):
        got = dispatch(fabric(nodes=nodes, link=1e30), IDEAL, [range(8 * nodes)], SIZE, k, "deepep")
        assert got.seconds == seconds((nodes - 1) * (1 - (1 - 1 / nodes) ** k) * SIZE / k / NIC)

    def test_a_limit_of_nodes_is_what_a_token_reaches(self):
        """Each of 8 nodes is one of the 4 chosen with chance 1 / 2, and then has one of k experts in four."""
        f = fabric(nodes=8, link=1e30)
        got = dispatch(f, IDEAL, [range(64)], SIZE, 8, "deepep", groups_limit=4)
        assert got.seconds == seconds(7 / 8 * 4 * (1 - (3 / 4) ** 8) * SIZE / 8 / NIC)
        free = dispatch(f, IDEAL, [range(64)], SIZE, 8, "deepep")
        assert dispatch(f, IDEAL, [range(64)], SIZE, 8, "deepep", groups_limit=8) == free
        assert got.seconds < free.seconds

    def test_what_is_fanned_out_inside_a_node_passes_at_the_same_time(self):
        """Each rank passes on what 2 nodes' ranks in its place sent, to 7 others, once for each that needs it."""
        f = fabric(nodes=2, nic=1e30)
        got = dispatch(f, IDEAL, [range(16)], SIZE, 8, "deepep")
        assert got.seconds == seconds(2 * 7 * (1 - (15 / 16) ** 8) * SIZE / 8 / LINK)

    @pytest.mark.parametrize("library", ["deepep", "hybridep"])
    @given(st.integers(1, 16), st.integers(1, 16))
    def test_more_copies_of_a_token_never_cost_more_than_all_copies_sent(self, library, k, more):
        groups, token = [range(16)], SIZE / 16
        few = dispatch(FIXED, IDEAL, groups, k * token, k, library).seconds
        assert few <= dispatch(FIXED, IDEAL, groups, (k + more) * token, k + more, library).seconds * (1 + 1e-12)
        assert few <= all_to_all(FIXED, IDEAL, groups, k * token).seconds * (1 + 1e-12)

    def test_what_makes_no_sense_is_refused(self):
        with pytest.raises(SpecError, match="top_k 0 and groups_limit 0"):
            dispatch(fabric(), IDEAL, [range(8)], SIZE, 0, "deepep")
        assert dispatch(fabric(), IDEAL, [range(8)], 0, 8, "hybridep").seconds == 0


@pytest.mark.parametrize("limit", [0.0, 3.6, 8.0, 20.0])
def test_a_token_whose_experts_are_in_some_groups_crosses_to_fewer_nodes(limit):
    """8 target nodes, 8 copies: 8 (1 - (7/8)^8) = 5.25 rows cross, or 3.6 (1 - (1 - 1/3.6)^8) where it reaches 3.6."""
    f = fabric(nodes=16, nodes_per_leaf=16, link=1e30)
    got = many_to_many(f, IDEAL, [range(64)], [range(64, 128)], SIZE, 8, 0.0, limit)
    nodes = min(limit or 8, 8)
    assert got.seconds == seconds(SIZE / NIC * nodes * (1 - (1 - 1 / nodes) ** 8) / 8)
