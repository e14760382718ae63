"""FLOP of one token: published figures to the last digit, components against closed forms, and what never counts."""

import pytest
from msgspec import structs

from moeplan.resources import flop, mixer
from moeplan.resources import parameters as count
from moeplan.resources.mtp import module_share
from moeplan.resources.work import Load, forward, model_flop_per_token
from moeplan.spec.model import window_of
from moeplan.spec.shipped import load_model, shipped

HYBRIDS = ("nemotron-3-nano", "nemotron-3-super", "nemotron-h-56b", "qwen3-next-80b-a3b")


def test_six_per_parameter_to_the_last_digit():
    """6 x 3,041,867,776 + 6 x 48 x 32 x 256 x 8192: parameters beyond the embedding, and all pairs of scores."""
    model = load_model("qwen3-30b-a3b")
    full = flop.by_parameters(model, 8192, pairs="full")
    assert full == 37_578_559_488 == 6 * 3_041_867_776 + 6 * 48 * 32 * 256 * 8192
    assert flop.by_parameters(model, 8192) == full - 3 * 48 * 32 * 256 * 8192
    assert flop.by_parameters(model, 8192) == pytest.approx(27.915e9, rel=1e-5)
    assert flop.by_parameters(model, 4096) == pytest.approx(23.083e9, rel=1e-5)


def test_idle_experts_never_count():
    """6 per parameter of all experts, the embedding's included, would be five times as many."""
    model = load_model("qwen3-30b-a3b")
    for found in (flop.by_parameters(model, 8192, pairs="full"), 3 * flop.forward_flop(model, 8192, pairs="full")):
        assert found < 37.6e9
    everything = 6 * count.total_parameters(model) + 3 * 48 * 32 * 256 * 8192
    assert everything == 192_856_412_160 == pytest.approx(5.13 * 37_578_559_488, rel=0.001)


def test_windows_of_gpt_oss():
    """18 full and 18 windowed layers; without its windows 5 % more (pytorch/torchtitan PR 4300)."""
    model = load_model("gpt-oss-120b")
    assert flop.by_parameters(model, 4096) == pytest.approx(32.722e9, rel=1e-4)
    assert flop.by_parameters(model, 4096, pairs="full") == pytest.approx(34.534e9, rel=1e-4)
    blind = structs.replace(model, attention=structs.replace(model.attention, window=0))
    assert flop.by_parameters(blind, 4096) == pytest.approx(34.421e9, rel=1e-4)


def test_a_windowed_layer_costs_the_same_at_any_length():
    model = load_model("gpt-oss-120b")
    short, long = (
        [flop.layer_flop(model, layer, s)["core"] for layer in range(model.num_layers)] for s in (4096, 131_072)
    )
    assert sum(bool(window_of(model, layer)) for layer in range(model.num_layers)) == 18
    for layer, (a, b) in enumerate(zip(short, long, strict=True)):
        assert b / a == (pytest.approx(1.0, rel=0.016) if window_of(model, layer) else 32.0)


@pytest.mark.parametrize("name", shipped("model"))
def test_components_of_all_layers_and_the_head_are_the_whole(name):
    model = load_model(name)
    layers = sum(sum(flop.layer_flop(model, layer, 4096).values()) for layer in range(model.num_layers))
    assert layers + flop.head_flop(model) == pytest.approx(flop.forward_flop(model, 4096))
    assert model_flop_per_token(model, 4096) == flop.STEP * flop.forward_flop(model, 4096)


@pytest.mark.parametrize("name", shipped("model"))
def test_six_per_parameter_counts_norms_and_biases_more(name):
    model = load_model(name)
    ratio = flop.by_parameters(model, 4096) / model_flop_per_token(model, 4096)
    assert 1 < ratio < 1.0006 or name == "gpt-3-175b"


@pytest.mark.parametrize("name", HYBRIDS)
def test_kernels_of_hybrids_have_the_flop_of_their_layers(name):
    """Matrices, states and logits once each; elementwise passes have none."""
    model, tokens = load_model(name), 512.0
    load = Load(tokens, tokens * model.top_k, local_experts=float(max(model.experts, 1)))
    for layer in range(4):
        told = flop.layer_flop(model, layer, 512)
        kinds = ["attention"] + ["experts" if "experts" in told else "dense"] * (len(told) > 3 or "dense" in told)
        work = [
            kernel
            for kind in kinds
            for kernel in forward(
                model,
                kind,
                load,
                seq_len=512,
                dtype="bf16",
                moe="experts" in told,
                window=window_of(model, layer) if kind == "attention" else 0,
            )
        ]
        assert sum(kernel.flop for kernel in work) == pytest.approx(tokens * sum(told.values()))


def test_mamba_by_hand():
    """Nemotron-3-Nano: 64 heads of 64, 8 groups, state 128; in and out projections, convolution of 4, scan."""
    model = load_model("nemotron-3-nano")
    told = flop.layer_flop(model, 0, 8192)
    assert told["projections"] == 2 * 2688 * (2 * 4096 + 2 * 8 * 128 + 64) + 2 * 4096 * 2688
    assert told["convolution"] == 2 * 4 * (4096 + 2 * 8 * 128)
    assert told["scan"] == 7 * 4096 * 128
    assert told["experts"] == 2 * 2 * 6 * 2688 * 1856
    assert told["shared"] == 2 * 2 * 2688 * 3712
    assert flop.layer_flop(model, 0, 131_072) == told


def test_gated_delta_by_hand():
    """Qwen3-Next: 16 key and 32 value heads of 128; every fourth layer has attention with an output gate."""
    model = load_model("qwen3-next-80b-a3b")
    linear, attention = (flop.layer_flop(model, layer, 4096) for layer in (0, 3))
    assert linear["projections"] == 2 * 2048 * (2 * 2048 + 2 * 4096 + 64) + 2 * 4096 * 2048
    assert linear["scan"] == 8 * 32 * 128 * 128
    assert attention["projections"] == 2 * 2048 * (2 * 4096 + 2 * 512) + 2 * 4096 * 2048
    assert attention["core"] == 2 * 2048 * (4096 + 4096)


def test_latent_experts_by_hand():
    """Nemotron-3-Super: 22 of 512 experts work on rows of 1024, between two projections of the hidden 4096."""
    told = flop.layer_flop(load_model("nemotron-3-super"), 0, 8192)
    assert told["experts"] == 2 * 2 * 22 * 1024 * 2688
    assert told["latent"] == 2 * 2 * 4096 * 1024


def test_a_layer_without_an_ffn_has_no_more_than_its_mixer():
    model = load_model("nemotron-3-nano")
    assert set(flop.layer_flop(model, 2, 64)) == {"projections", "convolution", "scan"}


def test_parameters_of_a_module_over_all_ranks_are_those_counted():
    """Of DeepSeek-V3's 11,610,068,224: one of 64 expert ranks holds 4 experts."""
    model = load_model("deepseek-v3")
    dense, experts = module_share(model, 1, 1, 64)
    assert dense + 64 * experts == count.mtp_parameters(model, own_copies=False) == 11_610_068_224
    assert experts == 4 * 3 * 7168 * 2048


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_share_a_mixer(name, tp):
    """Every matrix and vector is divided by heads; only a norm of one head is held by all."""
    model = load_model(name)
    whole = model.mixer.value_head_dim if name.startswith("qwen") else 0
    assert tp * (mixer.parameters(model, tp) - whole) == mixer.parameters(model) - whole
    assert tp * mixer.scan_flop(model, tp) == mixer.scan_flop(model)


def test_more_ranks_than_groups_hold_groups_twice():
    model = load_model("nemotron-3-nano")
    matrix, vector = 2688 * 2 * 8 * 128, 2 * 8 * 128 * 5
    assert 16 * mixer.parameters(model, 16) == mixer.parameters(model) + matrix + vector
