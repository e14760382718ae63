"""HuggingFace configurations: equal to the shipped models, and refused by the name of the key."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moeplan.errors import SpecError
from moeplan.resources.attention import projections
from moeplan.spec.huggingface import FAMILIES, read_config
from moeplan.spec.model import GroupedQuery, Latent, ModelSpec, grouped, window_of, windows
from moeplan.spec.shipped import load_model, shipped

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf"
EXAMPLE = {
    "mixtral": "mixtral-8x7b",
    "qwen3_moe": "qwen3-30b-a3b",
    "deepseek": "deepseek-moe-16b",
    "deepseek_v2": "deepseek-v2-lite",
    "deepseek_v3": "deepseek-v3",
    "gpt_oss": "gpt-oss-20b",
}


def written(folder: Path, family: str, **changes: Any) -> Path:
    """The published file of a family with some keys changed; `...` removes one."""
    raw = json.loads((FIXTURES / EXAMPLE[family] / "config.json").read_text()) | changes
    path = folder / "changed.json"
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not ...}))
    return path


def test_every_example_is_a_family() -> None:
    assert set(EXAMPLE) <= set(FAMILIES)


@pytest.mark.parametrize("name", sorted({folder.name for folder in FIXTURES.iterdir()} & set(shipped("model"))))
def test_published_configuration_is_the_shipped_model(name: str) -> None:
    folder = FIXTURES / name
    assert read_config(folder) == read_config(folder / "config.json") == load_model(name)
    assert load_model(str(folder)) == load_model(name)


def test_name_is_the_file_stem(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "mixtral")).name == "changed"


def test_explicit_head_dim_wins_and_null_is_absent(tmp_path: Path) -> None:
    assert grouped(read_config(written(tmp_path, "qwen3_moe"))).head_dim == 128
    assert grouped(read_config(written(tmp_path, "qwen3_moe", head_dim=None))).head_dim == 2048 // 32
    assert grouped(read_config(written(tmp_path, "mixtral", head_dim=64))).head_dim == 64


def test_window_as_long_as_the_context_is_no_window(tmp_path: Path) -> None:
    plain = read_config(written(tmp_path, "mixtral"))
    assert read_config(written(tmp_path, "mixtral", sliding_window=32768)) == plain


def test_newer_files_keep_the_rotary_base_apart(tmp_path: Path) -> None:
    rope = {"rope_theta": 5e6, "rope_type": "default"}
    assert read_config(written(tmp_path, "qwen3_moe", rope_theta=..., rope_parameters=rope)).rope_theta == 5e6


def test_deepseek_without_dense_or_shared(tmp_path: Path) -> None:
    model = read_config(written(tmp_path, "deepseek", first_k_dense_replace=0, n_shared_experts=None))
    shipped = load_model("deepseek-moe-16b")
    bare = msgspec.structs.replace(shipped, name="changed", dense_layers=0, dense_width=0, shared_experts=0)
    assert model == bare


def test_deepseek_keys_that_are_left_out_have_the_defaults_of_their_class(tmp_path: Path) -> None:
    """DeepseekV2Config and DeepseekV3Config of huggingface/transformers: null is none, left out is the default."""
    keys = ("n_shared_experts", "first_k_dense_replace", "n_group", "topk_group")
    latest = read_config(written(tmp_path, "deepseek_v3", **dict.fromkeys(keys, ...)))
    found = (latest.shared_experts, latest.dense_layers, latest.expert_groups, latest.top_k_groups)
    assert found == (1, 3, 8, 4)
    assert read_config(written(tmp_path, "deepseek_v3", n_shared_experts=None)).shared_experts == 0
    assert read_config(written(tmp_path, "deepseek_v2", n_shared_experts=...)).shared_experts == 2
    for family in ("mixtral", "gpt_oss"):
        assert read_config(written(tmp_path, family, rms_norm_eps=...)).norm_eps == 1e-5


def test_head_dim_of_a_file_may_differ_from_hidden_over_heads(tmp_path: Path) -> None:
    """Rows of q, k and v together (NVIDIA/TensorRT-LLM #5912): 64 + 2 x 8 heads of 128, not of 5120 / 64."""
    changes = {"hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    assert qkv_rows(read_config(written(tmp_path, "qwen3_moe", **changes))) == 10_240
    assert qkv_rows(read_config(FIXTURES / "gpt-oss-20b")) == 5_120


def qkv_rows(model: ModelSpec) -> int:
    return sum(p.outputs for p in projections(model) if p.kernel == "qkv")


def test_width_of_an_expert_is_not_the_dense_width() -> None:
    """Megatron-LM PR 682: Qwen3 keeps an unused dense width; gpt-oss calls the experts' width `intermediate_size`."""
    widths = {name: load_model(str(FIXTURES / name)).expert_width for name in EXAMPLE.values()}
    assert widths["qwen3-30b-a3b"] == 768
    assert widths["gpt-oss-20b"] == 2880
    lite = load_model(str(FIXTURES / "deepseek-v2-lite"))
    assert (lite.dense_layers, lite.dense_width, lite.expert_width, lite.shared_experts) == (1, 10_944, 1408, 2)


def test_latent_attention_without_a_narrow_query() -> None:
    lite, large = (read_config(FIXTURES / name).attention for name in ("deepseek-v2-lite", "deepseek-v3"))
    assert isinstance(lite, Latent)
    assert isinstance(large, Latent)
    assert (lite.q_lora_rank, large.q_lora_rank) == (0, 1536)


def test_groups_of_experts_count_only_where_the_router_chooses_by_group(tmp_path: Path) -> None:
    changes = {"n_group": 8, "topk_group": 3}
    greedy = read_config(written(tmp_path, "deepseek_v2", **changes))
    limited = read_config(written(tmp_path, "deepseek_v2", topk_method="group_limited_greedy", **changes))
    assert (greedy.expert_groups, greedy.top_k_groups) == (1, 1)
    assert (limited.expert_groups, limited.top_k_groups) == (8, 3)
    assert read_config(written(tmp_path, "deepseek_v3", n_group=None, topk_group=None)).expert_groups == 1


@pytest.mark.parametrize(
    ("types", "window", "full_every"),
    [
        (["full_attention"] * 24, 0, 1),
        (["sliding_attention", "full_attention"] * 12, 128, 2),
        ((["sliding_attention"] * 3 + ["full_attention"]) * 6, 128, 4),
        ((["sliding_attention"] * 4 + ["full_attention"]) * 4 + ["sliding_attention"] * 4, 128, 5),
        (["sliding_attention"] * 24, 128, 25),
        (..., 128, 2),
    ],
)
def test_layer_types_as_every_n_th_full_layer(tmp_path: Path, types: Any, window: int, full_every: int) -> None:
    model = read_config(written(tmp_path, "gpt_oss", layer_types=types))
    assert isinstance(model.attention, GroupedQuery)
    assert (model.attention.window, model.attention.full_every) == (window, full_every)
    if types is not ...:
        assert [window_of(model, layer) == 0 for layer in range(24)] == [kind == "full_attention" for kind in types]


def test_a_wrong_layer_type_is_named(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"] * 11 + ["full_attention", "full_attention"]
    with pytest.raises(SpecError, match=r"layer_types\[22\] 'full_attention' is not read; right: 'full_attention' in"):
        read_config(written(tmp_path, "gpt_oss", layer_types=types))


def test_without_layer_types_layers_alternate_as_in_their_class_and_that_is_assumed(tmp_path: Path) -> None:
    """GptOssConfig of huggingface/transformers: layer i slides where i is even; without a window all are full."""
    model = read_config(written(tmp_path, "gpt_oss", layer_types=None))
    listed = read_config(written(tmp_path, "gpt_oss"))
    assert [window_of(model, layer) for layer in range(4)] == [128, 0, 128, 0]
    assert msgspec.structs.replace(model, assumed=()) == listed
    full = read_config(written(tmp_path, "gpt_oss", layer_types=None, sliding_window=None))
    assert set(windows(full, range(full.num_layers))) == {0}
    assert model.assumed == full.assumed == ("attention.window",)


@pytest.mark.parametrize("family", EXAMPLE)
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_rescaled_rotary_frequencies_are_noted(tmp_path: Path, family: str, key: str) -> None:
    assert read_config(written(tmp_path, family, rope_scaling={key: "yarn", "factor": 4})).rope_scaled
    assert not read_config(written(tmp_path, family, rope_scaling={key: "default"})).rope_scaled
    assert not read_config(written(tmp_path, family, rope_scaling=None)).rope_scaled


@pytest.mark.parametrize("family", EXAMPLE)
def test_how_weights_are_stored_is_a_note_and_nothing_else(tmp_path: Path, family: str) -> None:
    plain = read_config(written(tmp_path, family, quantization_config=...))
    stored = read_config(written(tmp_path, family, quantization_config={"quant_method": "fp8"}))
    assert (plain.checkpoint, stored.checkpoint) == ("", "fp8")
    assert msgspec.structs.replace(stored, checkpoint="") == plain


@pytest.mark.parametrize(
    "kind",
    [
        "deepseek_v4",
        "deepseek_v32",
        "gpt-oss",
        "llama3",
        "Mixtral",
        "mixtral ",
        "kimi_k25",
        "minimax_m1",
        "glm_moe_dsa",
        "nemotron_h_puzzle",
    ],
)
def test_other_families_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(
        SpecError,
        match=f"model_type '{kind}' is not read; read: mixtral, qwen3_moe, deepseek, deepseek_v2, deepseek_v3, gpt_oss",
    ):
        read_config(written(tmp_path, "mixtral", model_type=kind))


@pytest.mark.parametrize("kind", [..., None, 7])
def test_missing_family(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(SpecError, match=r"changed\.json: model_type is missing"):
        read_config(written(tmp_path, "mixtral", model_type=kind))


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("mixtral", "hidden_size", -4096),
        ("mixtral", "hidden_size", "4096"),
        ("mixtral", "hidden_size", 4096.5),
        ("mixtral", "hidden_size", True),
        ("mixtral", "hidden_size", 10**12),
        ("mixtral", "hidden_size", 4100),
        ("mixtral", "num_hidden_layers", 0),
        ("mixtral", "vocab_size", ...),
        ("mixtral", "num_local_experts", ...),
        ("mixtral", "intermediate_size", None),
        ("mixtral", "hidden_act", "gelu"),
        ("mixtral", "sliding_window", 4096),
        ("mixtral", "rope_theta", ...),
        ("mixtral", "rms_norm_eps", 2),
        ("mixtral", "tie_word_embeddings", "no"),
        ("mixtral", "head_dim", 0),
        ("qwen3_moe", "head_dim", [128]),
        ("qwen3_moe", "moe_intermediate_size", ...),
        ("qwen3_moe", "decoder_sparse_step", 0),
        ("qwen3_moe", "mlp_only_layers", [0]),
        ("qwen3_moe", "use_sliding_window", True),
        ("qwen3_moe", "attention_bias", True),
        ("qwen3_moe", "num_experts", [128]),
        ("deepseek", "moe_layer_freq", 2),
        ("deepseek", "n_routed_experts", None),
        ("deepseek", "scoring_func", "sigmoid"),
        ("deepseek", "attention_bias", True),
        ("deepseek", "n_shared_experts", -1),
        ("deepseek_v2", "q_lora_rank", ...),
        ("deepseek_v2", "q_lora_rank", 0),
        ("deepseek_v2", "kv_lora_rank", None),
        ("deepseek_v2", "topk_method", "noaux_tc"),
        ("deepseek_v2", "scoring_func", "sigmoid"),
        ("deepseek_v2", "attention_bias", True),
        ("deepseek_v3", "scoring_func", "softmax"),
        ("deepseek_v3", "topk_method", "greedy"),
        ("deepseek_v3", "moe_layer_freq", 2),
        ("deepseek_v3", "routed_scaling_factor", 0),
        ("deepseek_v3", "num_nextn_predict_layers", -1),
        ("gpt_oss", "intermediate_size", ...),
        ("gpt_oss", "sliding_window", None),
        ("gpt_oss", "sliding_window", -1),
        ("gpt_oss", "layer_types", []),
        ("gpt_oss", "layer_types", ["full_attention"]),
        ("gpt_oss", "layer_types", ["full_attention", "sliding_attention"] * 12),
        ("gpt_oss", "layer_types", ["sliding_attention", "chunked_attention"] * 12),
        ("gpt_oss", "attention_bias", "yes"),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, family: str, key: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        read_config(written(tmp_path, family, **{key: value}))
    assert "changed.json: " in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("family", "changes", "numbers"),
    [
        ("mixtral", {"num_key_value_heads": 5}, "heads 32 % kv_heads 5"),
        ("mixtral", {"num_experts_per_tok": 9}, r"top_k 9 is not within 1\.\.experts 8"),
        ("qwen3_moe", {"head_dim": 127}, "head_dim 127 is odd"),
        ("deepseek", {"first_k_dense_replace": 29}, "dense_layers 29 > num_layers 28"),
        ("deepseek_v2", {"qk_rope_head_dim": 63}, "rope_head_dim 63 is odd"),
        ("deepseek_v3", {"n_group": 7}, "experts 256 % expert_groups 7 is not 0"),
        ("deepseek_v3", {"topk_group": 9}, "top_k_groups 9 > expert_groups 8"),
        ("deepseek_v3", {"n_group": 128, "topk_group": 3}, "top_k 8 > 6 experts of top_k_groups 3"),
        ("gpt_oss", {"head_dim": None}, "head_dim 45 is odd"),
    ],
)
def test_sizes_that_do_not_go_together(tmp_path: Path, family: str, changes: dict[str, int], numbers: str) -> None:
    with pytest.raises(SpecError, match=rf"changed\.json: .*{numbers}"):
        read_config(written(tmp_path, family, **changes))


@pytest.mark.parametrize("text", ['{"model_type": "mixtral", "hid', "", "\x00", '"mixtral"', "[]", "3", "[" * 100_000])
def test_files_that_are_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=r"config\.json: (not valid JSON|is empty|model_type is missing)"):
        read_config(tmp_path)


def test_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: No such file"):
        read_config(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 10_001), ("num_local_experts", 65_537)])
def test_sizes_beyond_what_a_model_may_have_are_told_with_the_file(tmp_path: Path, key: str, value: int) -> None:
    folder = written(tmp_path, "mixtral", **{key: value})
    with pytest.raises(SpecError, match=r"changed\.json: .*Expected `int` <= "):
        read_config(folder)
