"""All-to-all, migration and HALO of Piper (arXiv 2605.05049)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.papers.disagmoe_pipeline import off_node_share
from moeplan.papers.piper_network import (
    COLLECTIVES_PER_LAYER,
    Network,
    Phases,
    all_to_all_bound_exact_s,
    all_to_all_bound_paper_s,
    expert_migration_bytes_paper,
    flat_s,
    gpu_network_bytes_per_s,
    halo_phases,
    halo_pipelined_s,
    halo_s,
    imbalance,
    layer_migration_bytes_paper,
    least_interval_steps,
    migration_overhead,
    migration_s_paper,
    p2p_bytes,
)

KIB = 1024
FRONTIER = Network(
    gpus_per_node=8,
    nics_per_node=4,
    nic_bytes_per_s=25e9,
    node_bytes_per_s=60e9,  # assumed
    message_s=3e-6,  # assumed
    phase_s=3e-6,  # assumed
    half_message_bytes=256 * KIB,  # assumed
)


@pytest.mark.parametrize(
    ("hidden", "top_k", "milliseconds"),
    [(5120, 2, 13.4), (7168, 8, 75.2), (4096, 2, 10.7)],
    ids=["family", "V3", "8x7B"],
)
@pytest.mark.parametrize("ep", [1, 8, 32])
def test_all_to_all_bound_of_one_sequence_per_gpu_on_frontier(hidden, top_k, milliseconds, ep):
    """4,096 tokens per GPU at 12.5 GB/s: 4 NICs of 25 GB/s for 8 GCDs."""
    bandwidth = gpu_network_bytes_per_s(4, 25e9, 8)
    assert bandwidth == 12.5e9
    seconds = all_to_all_bound_paper_s(ep, 4096, top_k, hidden, ep, bandwidth)
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=0.005)
    exact = all_to_all_bound_exact_s(4096, top_k, hidden, off_node_share(ep, 8), bandwidth)
    assert exact == pytest.approx(max(0, 1 - 8 / ep) * seconds)


def test_expert_parallelism_makes_four_all_to_alls_per_layer():
    """Dispatch and combine, forward and backward; the bound holds the two of the forward pass."""
    counts = {collective: count for collective, count in COLLECTIVES_PER_LAYER.values()}
    assert counts == {"all_reduce": 4, "all_gather": 2, "all_to_all": 4}
    rows = 4096 * 2 * 5120 * 2  # fp16 elements of one direction
    assert all_to_all_bound_paper_s(1, 4096, 2, 5120, 1, 1.0) == 2 * rows


def test_between_stages_one_row_per_token_travels():
    assert p2p_bytes(4096, 5120) == 4096 * 5120 * 2


@pytest.mark.parametrize(
    ("model", "experts", "hidden", "width", "size", "unit", "milliseconds"),
    [
        ("Switch-Base", 128, 768, 2048, 1.21, 1e9, 24.2),
        ("Mixtral 8x7B", 8, 4096, 14336, 2.63, 2**30, 52.6),
        ("Mixtral 8x22B", 8, 6144, 16384, 4.50, 2**30, 90.0),
        ("Grok-1", 8, 6144, 32768, 9.00, 2**30, 180.0),
        ("GLaM 1.2T", 64, 8192, 32768, 102.88, 1e9, 2057.6),
        ("DeepSeek-V2", 160, 5120, 1536, 7.04, 2**30, 140.8),
        ("DeepSeek-V3", 256, 7168, 2048, 21.00, 2**30, 420.0),
    ],
)
def test_migration_of_a_whole_layer_as_table_iv_has_it(model, experts, hidden, width, size, unit, milliseconds):
    """Printed as GB: five rows are GiB, two (Switch-Base, GLaM) GB; all are divided by 50 of the same unit per second.

    In decimal units throughout the five rows are 7.4 % above the table.
    """
    found = layer_migration_bytes_paper(hidden, width, experts)
    assert found / unit == pytest.approx(size, rel=0.003)
    assert 1e3 * migration_s_paper(found, 50 * unit) == pytest.approx(milliseconds, rel=0.003)
    assert 1e3 * migration_s_paper(found) == pytest.approx(milliseconds, rel=0.075)


def test_migration_of_one_expert_of_deepseek_v3():
    size = expert_migration_bytes_paper(7168, 2048)
    assert size / 1e6 == pytest.approx(705, abs=0.5)
    assert 1e3 * migration_s_paper(size) == pytest.approx(14.1, abs=0.05)


@given(st.floats(1e-3, 10), st.floats(1e-2, 100), st.floats(0.01, 0.5))
def test_migrations_at_the_least_interval_cost_the_overhead_allowed(migration_s, step_s, overhead):
    interval = least_interval_steps(migration_s, step_s, overhead)
    assert migration_overhead(migration_s, step_s, interval) == pytest.approx(overhead)
    assert least_interval_steps(migration_s, step_s) == pytest.approx(20 * migration_s / step_s)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=64))
def test_imbalance_is_one_only_for_equal_loads(loads):
    assert 1 - 1e-12 <= imbalance(loads) <= len(loads) * (1 + 1e-12)
    assert imbalance([loads[0]] * len(loads)) == pytest.approx(1)
    assert imbalance([1, 1, 4]) == 2


@pytest.mark.parametrize(("pair_kib", "gain"), [(4, 7.2), (64, 3.2), (1024, 1.08), (8192, 0.89)])
@pytest.mark.parametrize("nodes", [16, 512])
def test_halo_gains_by_larger_messages_and_can_lose(nodes, pair_kib, gain):
    """Own estimate for the assumed constants above, good to 3 %: without contention HALO loses at 8 MiB per pair."""
    found = flat_s(FRONTIER, nodes, pair_kib * KIB) / halo_s(halo_phases(FRONTIER, nodes, pair_kib * KIB))
    assert found == pytest.approx(gain, rel=0.03)


NODES, SIZES = st.integers(2, 1024), st.floats(1, 1e8)


@given(NODES, SIZES)
def test_halo_hides_its_phase_inside_the_node(nodes, pair_bytes):
    phases = halo_phases(FRONTIER, nodes, pair_bytes)
    assert halo_s(phases) == phases.between_s + phases.redistribute_s > phases.inside_s
    assert halo_pipelined_s(phases) <= halo_s(phases) + FRONTIER.phase_s


@given(NODES, SIZES)
def test_aggregation_alone_gains_at_most_the_gpus_of_a_node(nodes, pair_bytes):
    """Chunk-pipelined, no contention: messages grow 8 times, so latency falls by at most (P - 1) / (n - 1)."""
    gain = flat_s(FRONTIER, nodes, pair_bytes) / halo_pipelined_s(halo_phases(FRONTIER, nodes, pair_bytes))
    assert gain <= (8 * nodes - 1) / (nodes - 1)


def test_phases_of_halo_by_hand():
    """3 nodes of 2 GPUs with 1 NIC of 10 B/s, 5 B/s inside: a GPU has half of the NIC and sends 2 messages of 20 B."""
    network = Network(2, 1, 10.0, 5.0, message_s=0.5, phase_s=0.25, half_message_bytes=4.0)
    phases = halo_phases(network, 3, 10.0)
    assert phases == pytest.approx((0.25 + 10 / 5, 2 * 0.5 + 2 * 24 / 5, 0.25 + 2 * 10 / 5))
    assert halo_s(phases) == pytest.approx(10.6 + 4.25)
    assert flat_s(network, 3, 10.0) == pytest.approx(5 * 0.5 + 4 * 14 / 5)


@pytest.mark.parametrize(("phases", "plain", "pipelined"), [((3, 4, 2), 6, 5), ((3, 9, 2), 11, 9), ((7, 1, 2), 7, 9)])
def test_the_third_phase_waits_for_the_second_or_shares_the_node_with_the_first(phases, plain, pipelined):
    assert halo_s(Phases(*phases)) == plain
    assert halo_pipelined_s(Phases(*phases)) == pipelined


def test_on_one_node_halo_is_its_first_phase():
    phases = halo_phases(FRONTIER, 1, 1e6)
    assert phases == (FRONTIER.phase_s + 7 * 1e6 / 60e9, 0, 0)
    assert halo_s(phases) == phases.inside_s


@given(NODES, SIZES, st.floats(1, 2))
def test_contention_slows_the_bytes_and_not_the_latency(nodes, pair_bytes, contention):
    latency = (8 * nodes - 1) * FRONTIER.message_s
    slowed = flat_s(FRONTIER, nodes, pair_bytes, contention) - latency
    assert slowed == pytest.approx(contention * (flat_s(FRONTIER, nodes, pair_bytes) - latency))
