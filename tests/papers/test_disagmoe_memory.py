"""Memory of the sides: what fits on an 80 GB GPU and what does not (own counts for DisagMoE, arXiv 2605.11005)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.papers.disagmoe import Layer
from moeplan.papers.disagmoe_memory import (
    attention_activation_bytes,
    attention_parameters,
    attention_state_bytes,
    ffn_activation_bytes,
    ffn_state_bytes,
    fits,
    live_chunks,
)
from moeplan.resources import parameters as count
from moeplan.schedule import Shape
from moeplan.schedules import make
from moeplan.spec.shipped import load_model

QWEN3 = Layer(hidden=4096, query_width=64 * 128, key_width=4 * 128, expert_width=1536, experts=128, top_k=8)
GPT_OSS = Layer(hidden=2880, query_width=64 * 64, key_width=8 * 64, expert_width=2880, experts=128, top_k=4)
DEEPSEEK = Layer(hidden=2048, query_width=2048, key_width=2048, expert_width=1408, experts=64, top_k=4)


@pytest.mark.parametrize(("layers", "shards", "gb"), [(94, 1, 121.5), (94, 32, 43.0), (94 / 4, 8, 12.7)])
def test_all_attention_layers_of_qwen3_do_not_fit_one_gpu_without_sharding(layers, shards, gb):
    """One group, its optimizer whole or over 32 ranks; four groups of 8."""
    state = attention_state_bytes(QWEN3, layers, shards)
    assert state / 1e9 == pytest.approx(gb, rel=0.02)
    assert fits(state, 0, 0, hbm_bytes=80e9, usable=1.0) == (gb < 80)


@pytest.mark.parametrize(
    ("layer", "layers", "ffn_gpus", "gb"),
    [(QWEN3, 94, 32, 127.7), (QWEN3, 94, 64, 63.9), (GPT_OSS, 36, 32, 64.5), (DEEPSEEK, 28, 32, 8.7)],
    ids=["Qwen3 on 32", "Qwen3 on 64", "GPT-OSS on 32", "DeepSeek-MoE on 32"],
)
def test_experts_of_qwen3_need_more_than_32_gpus(layer, layers, ffn_gpus, gb):
    state = ffn_state_bytes(layer, layers, ffn_gpus)
    assert state / 1e9 == pytest.approx(gb, rel=0.02)
    assert fits(state, 0, 0, hbm_bytes=80e9, usable=1.0) == (gb < 80)


def test_parameters_of_both_sides_are_those_that_the_planner_counts():
    model = load_model("qwen3-235b-a22b")
    planned = count.attention_parameters(model) + count.router_parameters(model) + count.norm_parameters(model)
    assert attention_parameters(QWEN3) == planned - 2 * 128  # the norms of q and k
    assert ffn_state_bytes(QWEN3, 1, 1) == 18 * model.experts * count.expert_parameters(model)


@given(st.integers(1, 94), st.integers(1, 64))
def test_sharding_leaves_weights_and_gradients_whole(layers, shards):
    state = attention_state_bytes(QWEN3, layers, shards, vocab=1000)
    parameters = layers * attention_parameters(QWEN3) + 1000 * 4096
    assert 6 * parameters < state <= 18 * parameters
    assert state - 6 * parameters == pytest.approx(12 * parameters / shards)


def test_activations_grow_with_tokens_and_the_send_buffer_with_k():
    kept = attention_activation_bytes(QWEN3, 4096)
    assert kept == 2 * 4096 * (2 * 4096 + 2 * 8192 + 2 * 512)
    assert attention_activation_bytes(QWEN3, 4096, send_buffer=True) - kept == 4096 * 64 * 1024
    assert ffn_activation_bytes(QWEN3, 8 * 4096) == 2 * 8 * 4096 * (2 * 4096 + 3 * 1536)


@pytest.mark.parametrize("pairs", [1, 2, 4])
@pytest.mark.parametrize("virtual", [2, 8])
@pytest.mark.parametrize("depth", [1.0, 1.5, 2.0])
def test_live_chunks_are_those_of_the_order(pairs, virtual, depth):
    group = int(2 * pairs * depth)
    rows = make("af-pipe", Shape(2 * pairs, 2 * pairs * virtual, 4 * group, group, depth))
    for rank, row in enumerate(rows):
        alive = peak = 0
        for ((_, kind, _),) in row:
            alive += 1 if kind == "F" else -1
            peak = max(peak, alive)
        assert peak == live_chunks(rank, pairs, virtual, group, depth)


def test_buffers_and_activations_count_against_the_usable_share():
    assert fits(60e9, 10e9, 2e9, hbm_bytes=80e9, usable=0.9)
    assert not fits(60e9, 10e9, 2.1e9, hbm_bytes=80e9, usable=0.9)
