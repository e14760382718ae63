"""HuggingFace configurations: equal to the shipped models, and refused by the name of the key."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moeplan.errors import SpecError
from moeplan.spec.huggingface import FAMILIES, read_config
from moeplan.spec.shipped import load_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf"
EXAMPLE = {"mixtral": "mixtral-8x7b", "qwen3_moe": "qwen3-30b-a3b", "deepseek": "deepseek-moe-16b"}


def written(folder: Path, family: str, **changes: Any) -> Path:
    """The published file of a family with some keys changed; `...` removes one."""
    raw = json.loads((FIXTURES / EXAMPLE[family] / "config.json").read_text()) | changes
    path = folder / "changed.json"
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not ...}))
    return path


def test_every_family_has_a_fixture() -> None:
    assert set(EXAMPLE) == set(FAMILIES)


@pytest.mark.parametrize("name", EXAMPLE.values())
def test_published_configuration_is_the_shipped_model(name: str) -> None:
    folder = FIXTURES / name
    assert read_config(folder) == read_config(folder / "config.json") == load_model(name)
    assert load_model(str(folder)) == load_model(name)


def test_name_is_the_file_stem(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "mixtral")).name == "changed"


def test_explicit_head_dim_wins_and_null_is_absent(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "qwen3_moe")).attention.head_dim == 128
    assert read_config(written(tmp_path, "qwen3_moe", head_dim=None)).attention.head_dim == 2048 // 32
    assert read_config(written(tmp_path, "mixtral", head_dim=64)).attention.head_dim == 64


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


@pytest.mark.parametrize("kind", ["deepseek_v3", "gpt_oss", "llama4", "Mixtral", "mixtral ", "deepseek_v2"])
def test_other_families_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(SpecError, match=f"model_type '{kind}' is not read; read: mixtral, qwen3_moe, deepseek"):
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
        ("qwen3_moe", "decoder_sparse_step", 2),
        ("qwen3_moe", "mlp_only_layers", [0]),
        ("qwen3_moe", "use_sliding_window", True),
        ("qwen3_moe", "attention_bias", True),
        ("qwen3_moe", "num_experts", [128]),
        ("deepseek", "moe_layer_freq", 2),
        ("deepseek", "n_routed_experts", None),
        ("deepseek", "scoring_func", "sigmoid"),
        ("deepseek", "attention_bias", True),
        ("deepseek", "n_shared_experts", -1),
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
    ],
)
def test_sizes_that_do_not_go_together(tmp_path: Path, family: str, changes: dict[str, int], numbers: str) -> None:
    with pytest.raises(SpecError, match=rf"changed\.json: .*{numbers}"):
        read_config(written(tmp_path, family, **changes))


@pytest.mark.parametrize("text", ['{"model_type": "mixtral", "hid', "", "\x00", '"mixtral"', "[]", "3", "[" * 100_000])
def test_files_that_are_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=r"config\.json: (not valid JSON|model_type is missing)"):
        read_config(tmp_path)


def test_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: No such file"):
        read_config(tmp_path)
