"""HuggingFace families that no shipped model stands for: published totals, and what each refuses by name of the key."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.resources import parameters as count
from moeplan.resources.attention import projections
from moeplan.spec.huggingface import FAMILIES, read_config
from moeplan.spec.model import STATE, GroupedQuery, Latent, grouped, has_ffn, is_dense, moe_layers, window_of, windows

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf"
EXAMPLE = {
    "llama": "llama-3.1-8b",
    "qwen3": "qwen3-8b",
    "qwen2_moe": "qwen1.5-moe-a2.7b",
    "kimi_k2": "kimi-k2",
    "glm4_moe": "glm-4.5-air",
    "phimoe": "phi-3.5-moe",
    "dbrx": "dbrx",
    "llama4": "llama-4-maverick",
    "hunyuan_v1_moe": "hunyuan-a13b",
    "minimax_m2": "minimax-m2",
    "nemotron_h": "nemotron-3-nano",
    "qwen3_next": "qwen3-next-80b-a3b",
}
SAME_KEYS = {"llama4_text": "llama4", "minimax": "minimax_m2"}


def written(folder: Path, family: str, **changes: Any) -> Path:
    """The published file of a family with some keys changed; `...` removes one, `table__key` is one of a table."""
    raw = json.loads((FIXTURES / EXAMPLE[family] / "config.json").read_text())
    for key, value in changes.items():
        *tables, last = key.split("__")
        table = raw
        for name in tables:
            table = table[name]
        table[last] = value
        if value is ...:
            del table[last]
    path = folder / "changed.json"
    path.write_text(json.dumps(raw))
    return path


@pytest.mark.parametrize(
    ("family", "key", "field", "value"),
    [
        ("kimi_k2", "n_shared_experts", "shared_experts", 1),
        ("kimi_k2", "first_k_dense_replace", "dense_layers", 3),
        ("glm4_moe", "n_shared_experts", "shared_experts", 1),
        ("glm4_moe", "first_k_dense_replace", "dense_layers", 1),
        ("glm4_moe", "rms_norm_eps", "norm_eps", 1e-5),
        ("phimoe", "rms_norm_eps", "norm_eps", 1e-5),
        ("hunyuan_v1_moe", "rms_norm_eps", "norm_eps", 1e-5),
        ("llama4", "text_config__rms_norm_eps", "norm_eps", 1e-5),
        ("llama4", "text_config__head_dim", "attention.head_dim", 128),
        ("qwen3", "head_dim", "attention.head_dim", 128),
        ("minimax_m2", "head_dim", "attention.head_dim", 128),
        ("qwen3_next", "head_dim", "attention.head_dim", 256),
        ("nemotron_h", "head_dim", "attention.head_dim", 128),
        ("nemotron_h", "n_shared_experts", "shared_experts", 1),
        ("nemotron_h", "moe_shared_expert_intermediate_size", "shared_width", 7688),
        ("nemotron_h", "n_routed_experts", "experts", 8),
    ],
)
def test_a_key_that_is_left_out_has_the_default_of_its_class(
    tmp_path: Path, family: str, key: str, field: str, value: float
) -> None:
    """Defaults of each family's configuration class in huggingface/transformers; some are no neutral number."""
    more = {"num_experts_per_tok": 2} if key == "n_routed_experts" else {}
    found: Any = read_config(written(tmp_path, family, **{key: ...}, **more))
    for name in field.split("."):
        found = getattr(found, name)
    assert found == value


def test_a_width_that_is_left_out_is_no_narrow_one(tmp_path: Path) -> None:
    """NemotronHConfig of huggingface/transformers: 21504."""
    changes = {"hybrid_override_pattern": "M-*-", "num_hidden_layers": 4, "intermediate_size": ...}
    assert read_config(written(tmp_path, "nemotron_h", **changes)).dense_width == 21_504


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("nemotron_h", {"n_groups": 7}, "mixer heads 64 % groups 7 is not 0"),
        ("qwen3_next", {"linear_num_key_heads": 12}, "mixer value_heads 32 % key_heads 12 is not 0"),
    ],
)
def test_heads_of_a_mixer_that_do_not_divide_are_refused(
    tmp_path: Path, family: str, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        read_config(written(tmp_path, family, **changes))


def test_every_family_has_a_fixture() -> None:
    kinds = {json.loads((folder / "config.json").read_text())["model_type"] for folder in FIXTURES.iterdir()}
    assert kinds | set(SAME_KEYS) == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("qwen3-8b", 8_190_735_360),
        ("qwen1.5-moe-a2.7b", 14_315_784_192),
        ("qwen2-57b-a14b", 57_408_658_944),
        ("kimi-k2", 1_026_408_232_448),
        ("phi-3.5-moe", 41_873_153_344),
        ("dbrx", 131_596_523_520),
        ("minimax-m2", 228_689_764_864),
        ("nemotron-3-nano", 31_577_940_288),
        ("qwen3-next-80b-a3b", 79_674_391_296),
    ],
)
def test_totals_are_those_that_the_checkpoints_state(name: str, total: int) -> None:
    """Elements of the tensors, as their HuggingFace pages count them (MiniMax-M2 without the scales of its fp8)."""
    assert count.total_parameters(read_config(FIXTURES / name)) == total


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("llama-4-maverick", 400e9, 17e9),
        ("hunyuan-a13b", 80e9, 13e9),
        ("qwen2-57b-a14b", 57e9, 14e9),
        ("qwen1.5-moe-a2.7b", 14.3e9, 2.7e9),
        ("kimi-k2", 1e12, 32e9),
        ("phi-3.5-moe", 42e9, 6.6e9),
        ("dbrx", 132e9, 36e9),
        ("glm-4.5-air", 106e9, 12e9),
        ("minimax-m2", 230e9, 10e9),
    ],
)
def test_announced_sizes_with_or_without_the_embedding(name: str, total: float, active: float) -> None:
    """Rounded numbers of each model's page; some leave embedding, or embedding and head, out of what is active."""
    model = read_config(FIXTURES / name)
    ends = count.embedding_parameters(model) + count.head_parameters(model)
    assert count.total_parameters(model) == pytest.approx(total, rel=0.03)
    assert 0.97 * (count.active_parameters(model) - ends) <= active <= 1.03 * count.active_parameters(model)


def test_glm_with_the_copies_of_its_module_is_its_checkpoint() -> None:
    """GLM-4.5 (arXiv 2508.06471): 106 B; its checkpoint has 110,468,824,832 elements with the module."""
    model = read_config(FIXTURES / "glm-4.5-air")
    assert count.total_parameters(model) == 106_852_251_264
    assert count.total_parameters(model) + count.mtp_parameters(model, own_copies=True) == 110_468_824_832


def test_a_dense_model_has_no_experts() -> None:
    for name in ("llama-3.1-8b", "qwen3-8b"):
        model = read_config(FIXTURES / name)
        assert (model.experts, model.top_k, model.expert_width, moe_layers(model)) == (0, 0, 0, 0)
        assert count.active_parameters(model) == count.total_parameters(model)


def test_older_llama_files_have_as_many_key_value_heads_as_heads(tmp_path: Path) -> None:
    model = read_config(written(tmp_path, "llama", num_key_value_heads=..., rope_theta=..., rope_scaling=None))
    assert grouped(model).kv_heads == 32
    assert (model.rope_theta, model.rope_scaled) == (10_000.0, False)


def test_newer_llama_files_keep_the_rotary_base_apart(tmp_path: Path) -> None:
    rope = {"rope_theta": 5e5, "rope_type": "llama3"}
    newer = read_config(written(tmp_path, "llama", rope_theta=..., rope_scaling=..., rope_parameters=rope))
    assert (newer.rope_theta, newer.rope_scaled) == (5e5, True)


def test_maverick_layer_by_layer() -> None:
    """24 dense and 24 MoE layers in turn, the second layer the first with experts; sizes by hand."""
    model = read_config(FIXTURES / "llama-4-maverick")
    assert [is_dense(model, layer) for layer in range(48)] == [True, False] * 24
    assert count.layer_parameters(model, 0) == 314_583_040
    assert count.layer_parameters(model, 1) == 16_295_536_640
    assert (count.total_parameters(model), count.active_parameters(model)) == (400_711_848_960, 17_184_691_200)


def test_maverick_sees_chunks_but_in_each_fourth_layer() -> None:
    model = read_config(FIXTURES / "llama-4-maverick")
    assert grouped(model).chunked
    assert [window_of(model, layer) for layer in range(8)] == [8192, 8192, 8192, 0] * 2
    assert windows(model, range(48)) == {0: 12, 8192: 36}


def test_llama4_names_its_full_layers_in_three_ways(tmp_path: Path) -> None:
    plain = read_config(written(tmp_path, "llama4"))
    types = (["chunked_attention"] * 3 + ["full_attention"]) * 12
    assert read_config(written(tmp_path, "llama4", text_config__layer_types=types)) == plain
    assert read_config(written(tmp_path, "llama4", text_config__no_rope_layers=[1, 1, 1, 0] * 12)) == plain
    assert read_config(written(tmp_path, "llama4", text_config__no_rope_layers=[])) == plain
    every = grouped(read_config(written(tmp_path, "llama4", text_config__no_rope_layer_interval=3)))
    assert every.full_every == 3
    assert grouped(read_config(written(tmp_path, "llama4", text_config__attention_chunk_size=None))).window == 0


@pytest.mark.parametrize("family", EXAMPLE)
@pytest.mark.parametrize(
    ("stored", "told"),
    [({"quant_method": "fp8"}, "fp8"), ({"load_in_4bit": True}, "by no named method"), (None, ""), ({}, "")],
)
def test_how_weights_are_stored_is_a_note_in_every_family(tmp_path: Path, family: str, stored: Any, told: str) -> None:
    assert read_config(written(tmp_path, family, quantization_config=stored)).checkpoint == told


def test_qwen3_next_without_a_list_has_attention_in_every_fourth_layer(tmp_path: Path) -> None:
    """Qwen3NextConfig of huggingface/transformers; a list of layers wins over the interval."""
    bare = {"layer_types": None, "full_attention_interval": ...}
    model = read_config(written(tmp_path, "qwen3_next", **bare))
    assert [window_of(model, layer) for layer in range(8)] == [STATE, STATE, STATE, 0] * 2


def test_llama4_with_experts_in_every_layer(tmp_path: Path) -> None:
    model = read_config(written(tmp_path, "llama4", text_config__interleave_moe_layer_step=1))
    assert (moe_layers(model), model.dense_width) == (48, 0)
    same = read_config(written(tmp_path, "llama4", text_config__moe_layers=list(range(1, 48, 2))))
    assert moe_layers(same) == 24


def test_the_norm_of_llama4s_queries_has_no_weights(tmp_path: Path) -> None:
    plain, normed = (read_config(written(tmp_path, "llama4", text_config__use_qk_norm=use)) for use in (False, True))
    assert grouped(normed).qk_norm
    assert count.total_parameters(normed) == count.total_parameters(plain)


@pytest.mark.parametrize("kind", SAME_KEYS)
def test_two_names_of_one_family(tmp_path: Path, kind: str) -> None:
    raw = json.loads((FIXTURES / EXAMPLE[SAME_KEYS[kind]] / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw.get("text_config", raw) | {"model_type": kind}))
    model = read_config(FIXTURES / EXAMPLE[SAME_KEYS[kind]])
    assert structs.replace(read_config(path), name=model.name) == model


def test_kimi_has_the_shape_of_deepseek_v3() -> None:
    kimi, v3 = (read_config(FIXTURES / name) for name in ("kimi-k2", "deepseek-v3"))
    assert isinstance(kimi.attention, Latent)
    assert isinstance(v3.attention, Latent)
    assert structs.replace(kimi.attention, heads=128) == v3.attention
    assert (kimi.experts, kimi.dense_layers, kimi.expert_groups, kimi.mtp_layers) == (384, 1, 1, 0)


def test_the_shared_expert_of_qwen2_has_its_own_width_and_a_gate() -> None:
    model = read_config(FIXTURES / "qwen2-57b-a14b")
    assert (model.shared_experts, model.shared_width, model.expert_width) == (1, 20_480, 2_560)
    assert count.shared_parameters(model) == 3 * 3584 * 20_480
    assert count.router_parameters(model) == 3584 * (64 + 1)


def test_qwen_layers_between_those_with_experts_are_dense(tmp_path: Path) -> None:
    model = read_config(written(tmp_path, "qwen2_moe", decoder_sparse_step=3))
    assert [layer for layer in range(24) if not is_dense(model, layer)] == list(range(2, 24, 3))
    assert model.dense_width == 5632


@pytest.mark.parametrize(("name", "biases"), [("qwen2-57b-a14b", 3), ("glm-4.5-air", 3), ("phi-3.5-moe", 4)])
def test_projections_with_biases(name: str, biases: int) -> None:
    found = projections(read_config(FIXTURES / name))
    assert [p.bias for p in found] == [p.outputs for p in found[:biases]] + [0] * (4 - biases)


def test_phi_layer_by_hand() -> None:
    """LayerNorms have two vectors, all four projections and the head a bias."""
    model = read_config(FIXTURES / "phi-3.5-moe")
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 4096 + 2 * 1024
    assert count.layer_parameters(model, 0) == attention + 4 * 4096 + 16 * 4096 + 16 * 3 * 4096 * 6400
    assert count.head_parameters(model) == 32_064 * 4097


def test_dbrx_norms_have_no_bias() -> None:
    model = read_config(FIXTURES / "dbrx")
    assert (model.norm, count.norm_parameters(model), model.num_layers) == ("layer", 6144, 40)
    assert model.normalize_top_k


def test_the_norm_of_minimaxs_queries_spans_all_heads() -> None:
    model = read_config(FIXTURES / "minimax-m2")
    matrices = [(3072, 48 * 128), (3072, 8 * 128), (3072, 8 * 128), (48 * 128, 3072)]
    assert count.attention_parameters(model) == sum(map(prod, matrices)) + (48 + 8) * 128 + 3072
    assert count.router_parameters(model) == 256 * (3072 + 1)
    assert model.mtp_layers == 3


def test_hunyuans_lists_may_be_numbers(tmp_path: Path) -> None:
    changes = {"moe_topk": 8, "num_shared_expert": 1, "moe_intermediate_size": ..., "num_experts": [64] * 32}
    assert read_config(written(tmp_path, "hunyuan_v1_moe", **changes)) == read_config(
        written(tmp_path, "hunyuan_v1_moe")
    )


def test_hunyuan_without_shared_experts_or_with_dense_layers(tmp_path: Path) -> None:
    model = read_config(written(tmp_path, "hunyuan_v1_moe", use_mixed_mlp_moe=False, moe_layer_num_skipped=2))
    assert (model.shared_experts, model.dense_layers, model.dense_width) == (0, 2, 3072)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("nemotron_h", "hybrid_override_pattern", ...),
        ("nemotron_h", "hybrid_override_pattern", "EM" * 26),
        ("nemotron_h", "hybrid_override_pattern", "MEX" + "ME" * 24 + "M"),
        ("nemotron_h", "hybrid_override_pattern", "ME"),
        ("nemotron_h", "layers_block_type", ["mamba", "swa"]),
        ("nemotron_h", "mamba_num_heads", ...),
        ("nemotron_h", "mlp_hidden_act", "silu"),
        ("nemotron_h", "use_bias", True),
        ("nemotron_h", "mamba_proj_bias", True),
        ("nemotron_h", "sliding_window", 4096),
        ("nemotron_h", "n_routed_experts", -1),
        ("qwen3_next", "linear_num_key_heads", ...),
        ("qwen3_next", "decoder_sparse_step", 2),
        ("qwen3_next", "mlp_only_layers", [0]),
        ("qwen3_next", "layer_types", ["linear_attention"] * 47),
        ("qwen3_next", "layer_types", ["linear_attention", "full_attention"] * 23 + ["linear_attention"] * 2),
        ("qwen3_next", "attention_bias", True),
        ("llama", "mlp_bias", True),
        ("llama", "intermediate_size", ...),
        ("llama", "num_attention_heads", ...),
        ("llama", "num_key_value_heads", 0),
        ("llama", "hidden_act", "gelu"),
        ("qwen3", "attention_bias", True),
        ("qwen3", "use_sliding_window", True),
        ("qwen2_moe", "shared_expert_intermediate_size", ...),
        ("qwen2_moe", "shared_expert_intermediate_size", 0),
        ("qwen2_moe", "mlp_only_layers", [0]),
        ("qwen2_moe", "use_sliding_window", True),
        ("kimi_k2", "scoring_func", "softmax"),
        ("kimi_k2", "q_lora_rank", ...),
        ("glm4_moe", "n_routed_experts", ...),
        ("glm4_moe", "first_k_dense_replace", -1),
        ("phimoe", "sliding_window", 2048),
        ("phimoe", "num_local_experts", ...),
        ("phimoe", "lm_head_bias", "yes"),
        ("dbrx", "ffn_config", ...),
        ("dbrx", "ffn_config__moe_num_experts", ...),
        ("dbrx", "ffn_config__moe_top_k", 0),
        ("dbrx", "ffn_config__ffn_act_fn", {"name": "gelu"}),
        ("dbrx", "attn_config__kv_n_heads", "8"),
        ("dbrx", "n_heads", 47),
        ("llama4", "text_config", ...),
        ("llama4", "text_config", [1]),
        ("llama4", "text_config__attention_bias", True),
        ("llama4", "text_config__intermediate_size_mlp", ...),
        ("llama4", "text_config__interleave_moe_layer_step", 0),
        ("llama4", "text_config__moe_layers", [0, 2, 4]),
        ("llama4", "text_config__layer_types", ["full_attention"]),
        ("llama4", "text_config__layer_types", ["sliding_attention", "full_attention"] * 24),
        ("hunyuan_v1_moe", "use_cla", True),
        ("hunyuan_v1_moe", "use_mla", True),
        ("hunyuan_v1_moe", "attention_bias", True),
        ("hunyuan_v1_moe", "moe_topk", [8] * 31 + [4]),
        ("hunyuan_v1_moe", "moe_intermediate_size", [3072] * 31),
        ("hunyuan_v1_moe", "num_shared_expert", [0] + [1] * 31),
        ("hunyuan_v1_moe", "num_experts", []),
        ("minimax_m2", "attn_type_list", ...),
        ("minimax_m2", "attn_type_list", [1] * 61),
        ("minimax_m2", "scoring_func", "softmax"),
        ("minimax_m2", "use_routing_bias", False),
        ("minimax_m2", "qk_norm_type", "per_head"),
        ("minimax_m2", "shared_intermediate_size", 512),
        ("minimax_m2", "sliding_window", 512),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, family: str, key: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        read_config(written(tmp_path, family, **{key: value}))
    assert "changed.json: " in str(caught.value)
    assert key.split("__")[-1] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attn_type_list", [0] * 7 + [1] + [0] * 54, r"attn_type_list\[0\] 0 is not read; right: 1 \(full attention\)"),
        (
            "layer_types",
            ["full_attention", "linear_attention"] * 31,
            r"layer_types\[1\] 'linear_attention' is not read",
        ),
    ],
)
def test_linear_attention_is_refused_by_value(tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_config(written(tmp_path, "minimax_m2", **{key: value}))


def test_a_layer_that_differs_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"moe_topk\[3\] 4 differs from moe_topk\[0\] 8; right: one value"):
        read_config(written(tmp_path, "hunyuan_v1_moe", moe_topk=[8, 8, 8, 4] * 8))


def test_qwen_with_dense_layers_needs_their_width(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="decoder_sparse_step 2 without intermediate_size; right: the dense width"):
        read_config(written(tmp_path, "qwen2_moe", decoder_sparse_step=2, intermediate_size=...))


@pytest.mark.parametrize("name", [*EXAMPLE.values(), "llama-3.1-405b", "qwen2-57b-a14b"])
def test_pieces_add_up(name: str) -> None:
    model = read_config(FIXTURES / name)
    layers = sum(count.layer_parameters(model, layer) for layer in range(model.num_layers))
    ends = count.embedding_parameters(model) + count.norm_parameters(model) + count.head_parameters(model)
    assert layers + ends == count.total_parameters(model)
    assert isinstance(model.attention, GroupedQuery) == (name != "kimi-k2")


def test_nemotrons_blocks_are_layers_of_a_mixer_and_an_ffn() -> None:
    """52 blocks, 23 of Mamba-2, 6 of attention, 23 of experts: 29 layers, of which six have no FFN."""
    model = read_config(FIXTURES / "nemotron-3-nano")
    layers = range(model.num_layers)
    assert (model.num_layers, moe_layers(model)) == (29, 23)
    assert windows(model, layers) == {STATE: 23, 0: 6}
    assert [layer for layer in layers if not has_ffn(model, layer)] == [2, 6, 10, 14, 18, 23]
    assert all(is_dense(model, layer) for layer in layers if not has_ffn(model, layer))


def test_nemotrons_blocks_may_be_words(tmp_path: Path) -> None:
    """Ultra's file lists its blocks by name, and leaves their number out."""
    words = {"M": "mamba", "*": "attention", "E": "moe"}
    pattern = read_config(FIXTURES / "nemotron-3-nano").pattern
    changes = {"layers_block_type": [words[letter] for letter in pattern], "hybrid_override_pattern": ...}
    listed = read_config(written(tmp_path, "nemotron_h", num_hidden_layers=None, **changes))
    assert structs.replace(listed, name="nemotron-3-nano") == read_config(FIXTURES / "nemotron-3-nano")


def test_nemotron_without_experts_is_dense(tmp_path: Path) -> None:
    changes = {"hybrid_override_pattern": "M-" * 26, "intermediate_size": 9856}
    model = read_config(written(tmp_path, "nemotron_h", **changes))
    assert (model.experts, model.dense_width, moe_layers(model)) == (0, 9856, 0)


def test_super_has_latent_experts_and_a_module_of_its_own() -> None:
    model = read_config(FIXTURES / "nemotron-3-super")
    assert (model.expert_latent, model.mtp_layers, model.gated) == (1024, 1, False)
    assert count.expert_parameters(model) == 2 * 1024 * 2688
    assert count.shared_parameters(model) == 2 * 4096 * 5376
    assert count.router_parameters(model) == 512 * 4097 + 2 * 4096 * 1024
    assert count.total_parameters(model) == 120_668_707_840


def test_qwen3_next_by_its_tensors() -> None:
    """81,324,862,720 with its module, which shares embedding and head; every fourth layer has attention."""
    model = read_config(FIXTURES / "qwen3-next-80b-a3b")
    assert windows(model, range(48)) == {STATE: 36, 0: 12}
    assert count.mtp_parameters(structs.replace(model, mtp_layers=1), own_copies=False) == 1_650_471_424
    attention = 2048 * 2 * 4096 + 2 * 2048 * 512 + 4096 * 2048 + 2 * 256
    assert count.attention_parameters(model) == attention + 2048
    linear = 2048 * (12_288 + 64) + 8192 * 4 + 64 + 128 + 4096 * 2048
    assert count.mixer_parameters(model) == linear + 2048


def test_qwen3_next_with_attention_everywhere(tmp_path: Path) -> None:
    model = read_config(written(tmp_path, "qwen3_next", full_attention_interval=1))
    assert (model.mixer, windows(model, range(48))) == (None, {0: 48})
