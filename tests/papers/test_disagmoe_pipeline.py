"""Bubbles, periods and bytes of DisagMoE (arXiv 2605.11005), section 4.2."""

from functools import cache
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.layout import Disaggregated, Piper
from moeplan.layouts import stages
from moeplan.papers.disagmoe_pipeline import (
    Times,
    all_to_all_bytes,
    bubble_af_paper_s,
    bubble_baseline_paper_s,
    copies_share,
    copies_share_exact,
    fill_and_drain_af_s,
    fill_and_drain_baseline_s,
    m2n_s,
    network_bound_af_s,
    network_bound_aggregated_s,
    off_node_share,
    p2p_saving,
    period_af_s,
    period_baseline_s,
    step_af_s,
    warmup_af_s,
    warmup_baseline_s,
)
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import Load
from moeplan.schedule import Shape, dependencies
from moeplan.schedules import make

SECONDS = st.floats(1e-4, 10)


@given(SECONDS, SECONDS, st.integers(2, 64), st.integers(1, 16))
def test_the_printed_af_bubble_is_a_quarter_and_the_absolute_one_half(compute_s, transfer_s, stages, virtual):
    """With one layer per chunk, equal T_a and T_f, equal transfers, no P2P, and PP = 2 p groups of equal size."""
    times = Times(compute_s, compute_s, transfer_s)
    printed = bubble_af_paper_s(times, stages, virtual) / bubble_baseline_paper_s(times, stages, virtual)
    assert printed == pytest.approx(0.25, rel=1e-12)
    assert warmup_af_s(times, stages) / warmup_baseline_s(times, 2 * stages) == pytest.approx(0.5, rel=1e-12)


@given(SECONDS, SECONDS, st.floats(0.01, 1), st.integers(2, 16))
def test_p2p_or_uneven_sides_change_the_ratio_of_a_quarter(attention_s, ffn_s, p2p_s, stages):
    times = Times(attention_s, ffn_s, 1.0, p2p_s)
    ratio = bubble_af_paper_s(times, stages, 1) / bubble_baseline_paper_s(times, stages, 1)
    longer = max(attention_s, ffn_s)
    assert ratio == pytest.approx((longer + 1) / (2 * (attention_s + ffn_s + 2 + p2p_s)))


def simulated(name, shape, times, layers=1):
    """(first start at the last position, end of the step): each action waits for its position and its inputs.

    Transfers are delays without contention: T_M2N between positions of AF-Pipe; two all-to-alls per layer inside a
    stage of the baseline, and T_p2p between stages.
    """
    steps = make(name, shape)
    before = {a: row[i - 1][0] for row in steps for i, (a,) in enumerate(row) if i}
    af = name == "af-pipe"
    delay = times.transfer_s if af else times.p2p_s

    def seconds(action):
        if af:
            forward = times.ffn_s if action.stage % 2 else times.attention_s
        else:
            forward = layers * (times.attention_s + times.ffn_s)
        inside = 0 if af else 2 * layers * times.transfer_s
        return forward * (times.backward if action.kind == "B" else 1) + inside

    @cache
    def end(action):
        ready = [end(before[action])] if action in before else [0.0]
        for wanted in dependencies(action, shape.stages):
            source = next(a for a in wanted if a.kind in "FB")
            ready.append(end(source) + (delay if source.stage != action.stage else 0))
        return max(ready) + seconds(action)

    for _, action in sorted((place, step[0]) for row in steps for place, step in enumerate(row)):
        end(action)  # in order, so that recursion stays shallow
    last = steps[-1][0][0]
    return end(last) - seconds(last), max(end(row[-1][0]) for row in steps)


@pytest.mark.parametrize("pairs", [1, 2, 3])
@pytest.mark.parametrize("times", [Times(1, 1, 0.5), Times(1.5, 1, 0.25), Times(0.5, 1, 1)], ids=str)
def test_warmup_of_af_pipe_is_that_of_its_order(pairs, times):
    shape = Shape(2 * pairs, 4 * pairs, ceil(4 * pairs), depth=2)
    assert simulated("af-pipe", shape, times)[0] == pytest.approx(warmup_af_s(times, pairs), rel=1e-12)


@pytest.mark.parametrize("pairs", [1, 2, 3])
@pytest.mark.parametrize("virtual", [1, 2, 4])
@pytest.mark.parametrize("transfer_s", [0.0, 0.25, 0.5, 1.0])
def test_step_of_af_pipe_is_periods_and_fill_and_drain(pairs, virtual, transfer_s):
    """Within 5 % of fill and drain, for T_a = T_f and transfers up to T."""
    times, depth = Times(1, 1, transfer_s), 1 + transfer_s
    microbatches = 4 * ceil(2 * pairs * depth)
    _, end = simulated("af-pipe", Shape(2 * pairs, 2 * pairs * virtual, microbatches, depth=depth), times)
    busy = microbatches * virtual * period_af_s(times)
    assert end - busy == pytest.approx(fill_and_drain_af_s(times, pairs), rel=0.05)
    assert step_af_s(times, pairs, virtual, microbatches, tail_s=2) == busy + fill_and_drain_af_s(times, pairs) + 2


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("virtual", [1, 2, 3])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("p2p_s", [0.0, 0.01])
def test_step_of_the_baseline_is_periods_and_fill_and_drain(stages, virtual, layers, p2p_s):
    """Exact without P2P or without virtual stages; else P2P shows in the steady state too."""
    times = Times(1.0, 0.5, 0.25, p2p_s)
    shape = Shape(stages, stages * virtual, 4 * stages)
    start, end = simulated("interleaved", shape, times, layers)
    busy = shape.microbatches * virtual * layers * period_baseline_s(times)
    assert start == pytest.approx(warmup_baseline_s(times, stages, layers))
    fill_and_drain = fill_and_drain_baseline_s(times, stages, layers)
    hidden = p2p_s == 0 or virtual == 1
    assert fill_and_drain * (1 - 1e-9) <= end - busy <= fill_and_drain * (1 + (1e-9 if hidden else 0.02))


@pytest.mark.parametrize(("times", "period"), [((2, 1, 1), 6), ((1, 2, 1), 6), ((1, 1, 2), 4), ((1, 1, 1, 0, 1), 2)])
def test_the_slowest_of_attention_experts_and_two_transfers_sets_the_period(times, period):
    assert period_af_s(Times(*times)) == period


@given(SECONDS, SECONDS, SECONDS, st.floats(0, 100))
def test_overlap_never_beats_the_larger_of_compute_and_communication(attention_s, ffn_s, transfer_s, overlap_s):
    times = Times(attention_s, ffn_s, transfer_s)
    found = period_baseline_s(times, overlap_s)
    assert max(3 * (attention_s + ffn_s), 4 * transfer_s) <= found <= period_baseline_s(times)
    assert period_baseline_s(times) == pytest.approx(3 * (attention_s + ffn_s) + 4 * transfer_s)


@pytest.mark.parametrize(("ep", "share"), [(4, 0), (8, 0), (16, 0.5), (32, 0.75), (64, 0.875)])
def test_disaggregation_creates_no_bandwidth(ep, share):
    """On the same NICs node-pure pools lose what stays inside the node with colocated EP."""
    assert off_node_share(ep, 8) == share
    pure, aggregated = network_bound_af_s(6e9, 32, 50e9), network_bound_aggregated_s(6e9, 32, 50e9, share)
    assert pure == pytest.approx(2 * m2n_s(6e9, 16, 16, 50e9))
    assert aggregated == share * pure


@given(st.integers(1, 63), st.floats(0.1, 1), st.floats(0, 1))
def test_m2n_is_fastest_with_equal_nics(attention_nics, efficiency, latency_s):
    even = m2n_s(1e9, 32, 32, 50e9, efficiency, latency_s)
    assert even <= m2n_s(1e9, attention_nics, 64 - attention_nics, 50e9, efficiency, latency_s)
    assert even - latency_s == pytest.approx(m2n_s(1e9, 32, 32, 50e9) / efficiency)


@pytest.mark.parametrize(("nodes", "top_k", "left"), [(2, 8, 0.25), (8, 8, 0.66), (2, 4, 0.47), (8, 4, 0.83)])
def test_copies_that_are_left_after_deduplication(nodes, top_k, left):
    assert copies_share(nodes, top_k) == pytest.approx(left, abs=0.005)


@pytest.mark.parametrize(("nodes", "redundant"), [(2, 75.1), (4, 54.8)])
def test_redundancy_of_dispatch_as_x_moe_reports_it(nodes, redundant):
    """256 experts, 8 per token, EP 16 and 32 on nodes of 8 (X-MoE, arXiv 2508.13337)."""
    assert 100 * (1 - copies_share_exact(nodes, 8, 256)) == pytest.approx(redundant, abs=0.1)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 8))
def test_independent_draws_leave_fewer_copies_than_different_experts(nodes, top_k):
    exact = copies_share_exact(nodes, top_k, 128)
    assert copies_share(nodes, top_k) <= exact + 1e-12
    assert 1 / top_k - 1e-12 <= exact <= 1 + 1e-12


def test_one_rank_sends_four_all_to_alls_per_layer():
    assert all_to_all_bytes(4096, 8, 4096, ep=16) == 4 * 4096 * 65536 * 15 / 16
    assert all_to_all_bytes(4096, 8, 4096, ep=1) == 0


@pytest.mark.parametrize(("top_k", "percent"), [(4, 25.0), (8, 12.5)])
def test_the_p2p_that_is_saved_is_one_kth_of_combine(make_case, top_k, percent):
    """By the planner's bytes: colocated combine and send between stages, disaggregated N2M alone."""
    assert 100 * p2p_saving(top_k).of_combine == percent
    case = make_case(4, top_k=top_k, num_layers=2)
    load = Load(tokens=64.0, rows=64.0 * top_k)

    def rows(layout):
        """Bytes of rows by kind of edge: of the backward pass, which carries no routing."""
        graph = stages(case, layout)
        return {
            edge.kind: edge_bytes(case.model, graph, i, "B", load, dtype="bf16") for i, edge in enumerate(graph.edges)
        }

    together, apart = rows(Piper(pp=2, ep=2)), rows(Disaggregated(attention_gpus=2, ffn_gpus=2))
    assert together["send"] / together["combine"] == p2p_saving(top_k).of_combine
    assert together["send"] / (together["send"] + together["combine"]) == p2p_saving(top_k).of_combine_and_p2p
    assert "send" not in apart
    assert apart["n2m"] == together["combine"]


@given(st.integers(1, 64))
def test_the_three_readings_of_the_saving_by_counting_rows(top_k):
    found = p2p_saving(top_k)
    rows = {"of_combine": top_k, "of_combine_and_p2p": top_k + 1, "of_all": 2 * top_k + 1}
    assert all(getattr(found, name) * count == pytest.approx(1) for name, count in rows.items())
