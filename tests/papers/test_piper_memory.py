"""The memory model and the mesh constraints of Piper (arXiv 2605.05049)."""

from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.papers.piper import Shape
from moeplan.papers.piper_memory import (
    MemoryInputs,
    attention_activation_bytes_paper,
    expert_activation_bytes_paper,
    experts_activation_bytes_paper,
    feasible_meshes_paper,
    layer_state_bytes_paper,
    memory_1f1b_exact,
    memory_1f1b_paper,
    memory_expert_data_parallel_paper,
    memory_gpipe,
    memory_unpartitioned_paper,
    stage_gap_paper,
    state_bytes_exact,
    valid_meshes_paper,
    widest_ep_paper,
)

FAMILY = Shape(hidden=5120, expert_width=20480, layers=32, experts=16, top_k=2, matrices=2)
TRILLION = FAMILY._replace(experts=256)
SMALL = Shape(2048, 1408, 28, 64, 6, matrices=2)
MEDIUM = Shape(5120, 1536, 28, 128, 6, matrices=2)
LARGE = Shape(7168, 2048, 28, 256, 8, matrices=2)
SUPER = Shape(7168, 2560, 61, 256, 8, matrices=2)
FRONTIER = widest_ep_paper(gpus_per_node=8, nodes_per_switch=4)
HBM = 64e9

INPUTS = st.builds(
    lambda hidden, width, layers, log_experts, top_k, heads, seq, batch, microbatches, pp, log_ep, scores: MemoryInputs(
        Shape(hidden, width, layers, 2**log_experts, min(top_k, 2**log_experts)),
        heads,
        seq,
        batch,
        microbatches,
        pp,
        2 ** min(log_ep, log_experts),
        scores,
    ),
    *[st.integers(1, 4096)] * 2,
    st.integers(1, 96),
    st.integers(0, 8),
    st.integers(1, 8),
    st.integers(1, 64),
    st.integers(1, 8192),
    *[st.integers(1, 256)] * 2,
    st.integers(1, 64),
    st.integers(0, 8),
    st.booleans(),
)


def static(shape, pp=1, ep=1):
    return state_bytes_exact(MemoryInputs(shape, heads=1, seq_len=1, batch=0, pp=pp, ep=ep))


def written_out(i, kind, stage=0):
    """The printed formulas once more, term by term and three matrices per expert."""
    d, f, layers, experts, k, _, _ = i.shape
    scores = 4 * i.heads * i.batch * i.seq_len**2 * i.scores
    attention, rows = 12 * i.batch * i.seq_len * d + scores, 2 * i.batch * i.seq_len * k * (3 * f + d)
    if kind == "unpartitioned":
        return layers * (64 * d**2 + 48 * experts * d * f + attention + rows)
    if kind == "expert data parallel":
        return layers * (64 * d**2 + 48 * experts / i.ep * d * f + attention + rows / i.ep)
    kept = attention / i.microbatches + rows / (i.microbatches * i.ep)
    if kind == "gap":
        return layers * (i.pp - 1) / i.pp * kept
    return layers / i.pp * (64 * d**2 + 48 * experts / i.ep * d * f + (i.pp - stage) * kept)


@given(INPUTS, st.integers(0, 63))
def test_memory_is_as_printed(inputs, stage):
    stage = min(stage, inputs.pp - 1)
    found = [memory_unpartitioned_paper(inputs), memory_expert_data_parallel_paper(inputs), stage_gap_paper(inputs)]
    kinds = ["unpartitioned", "expert data parallel", "gap"]
    assert found == pytest.approx([written_out(inputs, kind) for kind in kinds], rel=1e-12)
    assert memory_1f1b_paper(inputs, stage) == pytest.approx(written_out(inputs, "1f1b", stage), rel=1e-12)


@given(INPUTS)
def test_first_and_last_stage_differ_by_the_printed_gap(inputs):
    first, last = memory_1f1b_paper(inputs, 0), memory_1f1b_paper(inputs, inputs.pp - 1)
    assert first - last == pytest.approx(stage_gap_paper(inputs), rel=1e-6, abs=1e-9 * first)


@given(INPUTS)
def test_without_a_degree_the_formula_becomes_the_simpler_one(inputs):
    alone = inputs._replace(ep=1)
    assert memory_expert_data_parallel_paper(alone) == memory_unpartitioned_paper(inputs)
    one_stage = inputs._replace(pp=1, microbatches=1)
    assert memory_1f1b_paper(one_stage) == pytest.approx(memory_expert_data_parallel_paper(inputs), rel=1e-12)


@pytest.mark.parametrize("memory", [memory_1f1b_paper, memory_1f1b_exact])
@given(inputs=INPUTS)
def test_later_stages_never_need_more(memory, inputs):
    by_stage = [memory(inputs, stage) for stage in range(inputs.pp)]
    assert by_stage == sorted(by_stage, reverse=True)
    for stage in (-1, inputs.pp):
        with pytest.raises(SpecError, match=rf"stage {stage} of {inputs.pp}; stages are 0 to {inputs.pp - 1}"):
            memory(inputs, stage)


@given(INPUTS)
def test_more_expert_parallelism_lowers_the_expert_terms_alone(inputs):
    """Down to what attention needs, which is whole on every GPU."""
    shape = inputs.shape
    attention = shape.layers * (64 * shape.hidden**2 + attention_activation_bytes_paper(inputs, inputs.batch))
    found = [memory_expert_data_parallel_paper(inputs._replace(ep=ep)) for ep in (1, 2, 4, 2**60)]
    assert found[0] > found[1] > found[2] > found[3]
    assert found[0] - attention == pytest.approx(4 * (found[2] - attention), rel=1e-6)
    assert found[3] == pytest.approx(attention, rel=1e-9)


@given(INPUTS)
def test_gpipe_keeps_all_microbatches_where_1f1b_keeps_the_stages(inputs):
    inputs = inputs._replace(scores=True)
    state = inputs.shape.layers / inputs.pp * layer_state_bytes_paper(inputs)
    gpipe, kept = memory_gpipe(inputs) - state, memory_1f1b_paper(inputs) - state
    assume(gpipe > 1e-3 * state)
    assert kept / gpipe == pytest.approx(inputs.pp / inputs.microbatches, rel=1e-6)


@given(INPUTS)
def test_exact_memory_is_the_printed_one_where_nothing_differs(inputs):
    """One expert rank, layers that divide over the stages, and at least as many micro-batches as stages."""
    shape = inputs.shape._replace(layers=inputs.pp * ceil(inputs.shape.layers / inputs.pp))
    same = inputs._replace(shape=shape, ep=1, microbatches=max(inputs.pp, inputs.microbatches))
    for stage in {0, same.pp - 1}:
        assert memory_1f1b_exact(same, stage) == pytest.approx(memory_1f1b_paper(same, stage), rel=1e-12)


@given(INPUTS)
def test_one_microbatch_is_never_kept_twice(inputs):
    once = inputs._replace(microbatches=1)
    found = memory_1f1b_exact(once)
    assert found == memory_1f1b_exact(once, inputs.pp - 1)
    assert found <= ceil(inputs.shape.layers / inputs.pp) * memory_expert_data_parallel_paper(
        once
    ) / inputs.shape.layers * (1 + 1e-12)


def test_the_printed_batch_counts_attention_of_the_whole_expert_group():
    """1.7T at (32, 32), one sequence of 4,096 tokens per GPU and micro-batch: 257 GB as printed, 8.1 GB in truth."""
    inputs = MemoryInputs(TRILLION, 40, 4096, batch=32 * 128, microbatches=128, pp=32, ep=32, scores=False)
    no_experts = inputs._replace(shape=TRILLION._replace(top_k=0))
    state = static(TRILLION, 32, 32)
    assert (memory_1f1b_paper(no_experts) - state) / 1e9 == pytest.approx(257.7, abs=0.1)
    attention = memory_1f1b_exact(no_experts) - state
    assert attention / 1e9 == pytest.approx(8.1, abs=0.06)
    assert (memory_1f1b_exact(inputs) - state - attention) / 1e9 == pytest.approx(24.2, abs=0.06)
    assert memory_1f1b_exact(inputs) < HBM < memory_1f1b_paper(inputs)


def test_experts_share_a_layers_rows_evenly():
    inputs = MemoryInputs(FAMILY, 40, 4096, 1)
    each = expert_activation_bytes_paper(inputs, 3)
    assert 16 * each == experts_activation_bytes_paper(inputs, 3) == 3 * 2 * 4096 * 2 * (2 * 20480 + 5120)


def test_flash_attention_removes_the_scores():
    inputs = MemoryInputs(FAMILY, 40, 4096, 2)
    without = memory_unpartitioned_paper(inputs._replace(scores=False))
    assert memory_unpartitioned_paper(inputs) - without == 32 * 4 * 40 * 2 * 4096**2


TABLE = {
    (SMALL, 8): {(1, 8): 28.2, (2, 4): 24.4, (4, 2): 22.5, (8, 1): 24.7},
    (MEDIUM, 32): {(1, 32): 75.2, (2, 16): 51.7, (4, 8): 39.9, (8, 4): 38.9, (16, 2): 35.6},
    (LARGE, 80): {(5, 16): 64.8, (10, 8): 55.0, (20, 4): 66.7},
    (SUPER, 512): {(16, 32): 31.9, (32, 16): 25.4},
    (FAMILY, 64): {(4, 16): 40.3, (8, 8): 33.6, (16, 4): 30.2, (32, 2): 28.5},
    (FAMILY._replace(experts=128), 512): {(16, 32): 30.2, (32, 16): 28.5},
    (TRILLION, 1024): {(32, 32): 28.5},
}


@pytest.mark.parametrize(("run", "meshes"), TABLE.items(), ids=["10B", "55B", "201B", "545B", "110B", "862B", "1.7T"])
def test_meshes_that_the_constraints_leave_for_the_published_runs(run, meshes):
    """GB of state per GPU at the fullest stage, by hand; the paper does not say which mesh it ran."""
    shape, gpus = run
    found = {mesh: static(shape, *mesh) / 1e9 for mesh in valid_meshes_paper(shape, gpus, FRONTIER)}
    assert found == pytest.approx(meshes, abs=0.06)


def test_expert_groups_on_frontier_are_at_most_32_wide():
    assert FRONTIER == 32
    wider = valid_meshes_paper(TRILLION, 1024, widest_ep=1024)
    assert max(ep for _, ep in wider) == 256
    assert [mesh for mesh in wider if mesh[1] <= FRONTIER] == [(32, 32)] == valid_meshes_paper(TRILLION, 1024, FRONTIER)


def test_only_one_node_per_stage_fits_201_billion_parameters_on_80_gpus():
    fitting = [mesh for mesh in valid_meshes_paper(LARGE, 80, FRONTIER) if static(LARGE, *mesh) <= 60e9]
    assert fitting == [(10, 8)]
    inputs = MemoryInputs(LARGE, 56, 4096, batch=0)
    assert feasible_meshes_paper(inputs, 80, FRONTIER, HBM, state_bytes_exact) == [(10, 8)]


def test_without_a_pipeline_55_billion_parameters_do_not_fit_32_gpus():
    assert static(MEDIUM, pp=1, ep=32) / 1e9 == pytest.approx(75, rel=0.02)
    inputs = MemoryInputs(MEDIUM, 40, 4096, batch=0)
    for memory in (memory_1f1b_paper, memory_1f1b_exact):
        assert min(feasible_meshes_paper(inputs, 32, FRONTIER, HBM, memory)) == (2, 16)


def test_stages_hold_whole_layers():
    """28 layers on 10 stages: 2.8 as printed, 3 in truth."""
    inputs = MemoryInputs(LARGE, 56, 4096, batch=0, pp=10, ep=8)
    assert memory_1f1b_paper(inputs) / memory_1f1b_exact(inputs) == pytest.approx(2.8 / 3)
