"""Parameters, FLOP, MFU and step time of Piper (arXiv 2605.05049)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.papers.piper import (
    PARAMETER_BYTES,
    Shape,
    active_parameters,
    attention_parameters_paper,
    attention_state_bytes_paper,
    bubble,
    expert_parameters_paper,
    expert_state_bytes_paper,
    gemm_intensity,
    layer_s,
    mfu_paper,
    narrow_gemm_efficiency,
    score_flop_per_token,
    step_s,
    tokens_per_expert,
    total_parameters,
    training_flop_paper,
)

# Fig. 14: d 5120, f 20480, 32 layers, top 2, two matrices per expert; two experts per node.
FAMILY = Shape(hidden=5120, expert_width=20480, layers=32, experts=16, top_k=2, matrices=2)
# X-MoE (arXiv 2508.13337), whose sizes count two matrices per expert and 2^30 parameters as one "B".
X_MOE = {
    "small": Shape(2048, 1408, 28, 64, 6, matrices=2),
    "medium": Shape(5120, 1536, 28, 128, 6, matrices=2),
    "large": Shape(7168, 2048, 28, 256, 8, matrices=2),
    "super": Shape(7168, 2560, 61, 256, 8, matrices=2),
}
SIZE = st.integers(1, 10**4)


@given(SIZE, SIZE, SIZE)
def test_state_is_sixteen_bytes_per_parameter(hidden, width, experts):
    shape = Shape(hidden, width, 1, experts, 1)
    assert attention_state_bytes_paper(hidden) == 64 * hidden**2 == PARAMETER_BYTES * attention_parameters_paper(hidden)
    assert expert_state_bytes_paper(shape, experts) == 48 * experts * hidden * width
    assert expert_state_bytes_paper(shape._replace(matrices=2), experts) == 32 * experts * hidden * width
    assert PARAMETER_BYTES * total_parameters(shape) == 64 * hidden**2 + 48 * experts * hidden * width


@pytest.mark.parametrize(("experts", "billions"), [(16, 110.7), (128, 862.3), (256, 1721.3)])
def test_sizes_of_the_weak_scaling_family(experts, billions):
    """Printed as 110B, 862B and 1.7T; three matrices would give half as much again."""
    assert total_parameters(FAMILY._replace(experts=experts)) / 1e9 == pytest.approx(billions, rel=1e-3)
    assert total_parameters(FAMILY._replace(experts=experts, matrices=3)) / 1e9 > 1.45 * billions


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("small", 10.06, 1.34), ("medium", 55.23, 5.20), ("large", 201.36, 11.48), ("super", 545.43, 28.36)],
)
def test_sizes_of_the_x_moe_models_are_in_binary_billions(name, total, active):
    """10.1, 55.2, 201.4 and 545.4 in the paper; its active 28.7 of the largest stands 1.2 % above the formula."""
    assert total_parameters(X_MOE[name]) / 2**30 == pytest.approx(total, rel=1e-3)
    assert active_parameters(X_MOE[name]) / 2**30 == pytest.approx(active, rel=5e-3)


def test_every_token_meets_its_own_and_the_shared_experts():
    shape = Shape(8, 4, 3, 16, top_k=2, shared_experts=1)
    assert active_parameters(shape) == 3 * (4 * 64 + 3 * 3 * 32)
    assert total_parameters(shape) - active_parameters(shape) == 3 * expert_parameters_paper(shape, 14)


def test_flop_of_a_token_of_the_family():
    """100.7 GFLOP of 16.78 B active parameters; causal scores at 4,096 tokens add 4 % to that."""
    flop = training_flop_paper(active_parameters(FAMILY), 4) / 4
    assert flop / 1e9 == pytest.approx(100.7, abs=0.05)
    assert score_flop_per_token(FAMILY, 4096) / 1e9 == pytest.approx(4.0, abs=0.05)
    assert score_flop_per_token(FAMILY, 4096, causal=False) == 2 * score_flop_per_token(FAMILY, 4096)


@pytest.mark.parametrize(("tflop_per_s", "percent"), [(102.8, 53.8), (74.2, 38.8), (37.8, 19.8), (33.04, 17.3)])
def test_mfu_of_the_printed_throughputs(tflop_per_s, percent):
    """Fig. 12, and Fig. 14 at 1.7T."""
    assert 100 * mfu_paper(tflop_per_s * 1e12 * 64 * 7.0, step_s=7.0, gpus=64) == pytest.approx(percent, abs=0.05)


def test_bubble_of_32_stages_with_128_microbatches():
    assert 100 * bubble(32, 128) == pytest.approx(19.5, abs=0.01)
    assert bubble(1, 7) == 0


@given(st.integers(1, 64), st.integers(1, 512), st.floats(1e-3, 10))
def test_the_bubble_is_what_a_step_takes_beyond_its_microbatches(pp, microbatches, slowest_s):
    whole = step_s(slowest_s, microbatches, pp)
    assert whole * (1 - bubble(pp, microbatches)) == pytest.approx(microbatches * slowest_s)


def test_recomputation_adds_a_third_of_the_gemms_and_half_of_the_transfers():
    assert layer_s(2.0, 1.5) == 9.0
    assert layer_s(2.0, 1.5, recompute=True) == 12.5


@pytest.mark.parametrize(("ep", "rows"), [(1, 512), (8, 4096), (16, 8192)])
def test_tokens_per_expert_grow_with_the_expert_group(ep, rows):
    assert tokens_per_expert(4096, 2, ep, 16) == rows


def test_below_119_flop_per_byte_the_memory_of_an_mi250x_binds():
    """191 TFLOP/s over 1.6 TB/s; the first term of the surrogate is what the intensity leaves of the peak."""
    shape = Shape(10**6, 10**6, 1, 1, 1)
    few, many = (narrow_gemm_efficiency(rows, shape, most=1.0, half_rows=0) for rows in (60, 240))
    assert few == pytest.approx(60 / (191 / 1.6), rel=1e-3)
    assert many == 1


@given(st.floats(1, 1e5), st.floats(1.01, 10), st.integers(128, 10**4), st.integers(128, 10**4))
def test_narrow_gemms_gain_with_rows_and_with_width(rows, factor, hidden, width):
    shape = Shape(hidden, width, 1, 1, 1)
    here = narrow_gemm_efficiency(rows, shape, most=0.65, half_rows=256)
    assert 0 < here < 0.65
    assert narrow_gemm_efficiency(rows * factor, shape, 0.65, 256) > here
    assert narrow_gemm_efficiency(rows, shape._replace(expert_width=2 * width), 0.65, 256) >= here
    assert gemm_intensity(rows, shape) < min(rows, hidden, width)
