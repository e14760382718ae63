"""Parameter counts against the published totals, and against each other."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from moeplan.resources import parameters as count
from moeplan.spec.model import ModelSpec, grouped
from moeplan.spec.shipped import load_model, shipped


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("mixtral-8x22b", 140_620_634_112, 39_152_031_744),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
        ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520),
        ("deepseek-moe-16b", 16_375_728_128, 2_828_650_496),
        ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208),
        ("deepseek-v2", 235_741_434_880, 21_375_800_320),
        ("deepseek-v3", 671_026_419_200, 37_552_297_472),
        ("gpt-oss-20b", 20_914_757_184, 4_187_440_704),
        ("gpt-oss-120b", 116_829_156_672, 5_711_982_912),
        ("kimi-k2", 1_026_408_232_448, 32_861_500_928),
        ("llama-2-7b", 6_738_415_616, 6_738_415_616),
        ("llama-2-13b", 13_015_864_320, 13_015_864_320),
        ("llama-2-70b", 68_976_648_192, 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248, 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496, 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800, 405_853_388_800),
        ("llama-4-maverick", 400_711_848_960, 17_184_691_200),
        ("nemotron-3-nano", 31_577_940_288, 3_580_076_352),
        ("qwen2-57b-a14b", 57_408_658_944, 14_249_270_784),
        ("qwen3-next-80b-a3b", 79_674_391_296, 3_874_929_408),
    ],
)
def test_published_totals(name: str, total: int, active: int) -> None:
    model = load_model(name)
    assert count.total_parameters(model) == total
    assert count.active_parameters(model) == active


@pytest.mark.parametrize(
    ("name", "published", "tolerance"),
    [
        ("xmoe-small", 10.06 * 2**30, 0.005),
        ("xmoe-medium", 55.23 * 2**30, 0.005),
        ("xmoe-large", 201.36 * 2**30, 0.005),
        ("xmoe-super", 545.43 * 2**30, 0.005),
        ("piper-110b", 110.7e9, 0.01),
        ("piper-862b", 862.3e9, 0.01),
        ("piper-1.7t", 1721.3e9, 0.01),
    ],
)
def test_sizes_of_both_papers_models(name: str, published: float, tolerance: float) -> None:
    """X-MoE (arXiv 2508.13337) and Piper (arXiv 2605.05049) count neither embedding nor head."""
    model = load_model(name)
    body = count.total_parameters(model) - count.embedding_parameters(model) - count.head_parameters(model)
    assert body == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("nemotron-3-super", 120.6e9),
        ("nemotron-3-ultra", 550e9),
        ("nemotron-h-56b", 56e9),
        ("moonlight-16b-a3b", 15_960_111_936),
        ("grok-1", 314e9),
        ("skywork-moe", 146e9),
    ],
)
def test_sizes_that_reports_and_names_round(name: str, published: float) -> None:
    assert count.total_parameters(load_model(name)) == pytest.approx(published, rel=0.006)


@pytest.mark.parametrize("name", shipped("model"))
def test_every_shipped_model_has_a_published_size(name: str) -> None:
    """The tables above hold all models but the made-up one."""
    source = Path(__file__).read_text()
    assert f'("{name}", ' in source or name == "tiny-moe"


def test_modules_that_predict_further_tokens_are_beside_the_total() -> None:
    """deepseek-ai/DeepSeek-V3 #19: 671 B, 683 B with the module, 685 B with its copies of embedding and head."""
    model = load_model("deepseek-v3")
    total = count.total_parameters(model)
    shared, own = (count.mtp_parameters(model, own_copies=own) for own in (False, True))
    assert shared == 11_610_068_224
    assert (total + shared, total + own) == (682_636_487_424, 684_489_845_504)
    assert count.mtp_parameters(msgspec.structs.replace(model, mtp_layers=0), own_copies=True) == 0


def test_latent_attention_is_its_list_of_matrices() -> None:
    """DeepSeek-V3's attention by the shapes in its checkpoint, norms included; V2-Lite projects queries at once."""
    norms = 7168 + 1536 + 512
    matrices = [(1536, 7168), (128 * 192, 1536), (512 + 64, 7168), (128 * (128 + 128), 512), (7168, 128 * 128)]
    assert count.attention_parameters(load_model("deepseek-v3")) == sum(a * b for a, b in matrices) + norms
    lite = [(16 * 192, 2048), (512 + 64, 2048), (16 * 256, 512), (2048, 16 * 128)]
    assert count.attention_parameters(load_model("deepseek-v2-lite")) == sum(a * b for a, b in lite) + 2048 + 512


def test_gpt_oss_layer_by_hand() -> None:
    model = load_model("gpt-oss-20b")
    attention = 2880 * 5120 + 5120 + 4096 * 2880 + 2880 + 64
    experts = 32 * (2880 * 2 * 2880 + 2 * 2880 + 2880 * 2880 + 2880)
    assert count.layer_parameters(model, 0) == attention + 32 * (2880 + 1) + experts + 2 * 2880


def per_rank(model: ModelSpec, tp: int) -> float:
    """Attention on one rank, matrix by matrix: (parameters, ranks that divide them)."""
    a, hidden, queries, keys = grouped(model), model.hidden, 4 * 16, 2 * 16
    split = [(hidden * queries, tp), (hidden * keys, min(tp, 2)), (hidden * keys, min(tp, 2)), (queries * hidden, tp)]
    biases = [(queries, tp), (keys, min(tp, 2)), (keys, min(tp, 2)), (hidden * a.output_bias, 1)] if a.bias else []
    spans = {"head": 2, "all": 6, "none": 0}[a.qk_norm_weights]
    whole = [(hidden, 1), (spans * 16 * a.qk_norm, 1), (4 * a.sinks, tp)]
    return sum(parameters / ranks for parameters, ranks in split + biases + whole)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qk_norm": True},
        {"qk_norm": True, "qk_norm_weights": "all"},
        {"qk_norm": True, "qk_norm_weights": "none"},
        {"bias": True},
        {"bias": True, "output_bias": False},
        {"sinks": True, "bias": True},
    ],
)
def test_share_of_a_tensor_parallel_rank(tp: int, changes: dict[str, Any]) -> None:
    """Two key-value heads over four ranks are held twice; norms and the output's bias are whole on each."""
    model = load_model("tiny-moe")
    model = msgspec.structs.replace(model, attention=msgspec.structs.replace(model.attention, **changes))
    assert count.attention_share(model, tp) == per_rank(model, tp)
    assert count.attention_share(model, 1) == count.attention_parameters(model)


@pytest.mark.parametrize("tp", [1, 2, 8, 128])
def test_narrow_projections_are_whole_on_each_tensor_parallel_rank(tp: int) -> None:
    whole = 7168 * 1536 + 7168 * 576 + 7168 + 1536 + 512
    model = load_model("deepseek-v3")
    assert count.attention_share(model, tp) == whole + (count.attention_parameters(model) - whole) / tp


def test_without_a_gate_an_ffn_has_two_matrices() -> None:
    model = msgspec.structs.replace(load_model("tiny-moe"), gated=False, ffn_bias=True)
    assert count.expert_parameters(model) == 2 * 64 * 96 + 96 + 64
    assert count.ffn_share(model, 96, 2) == 64 * 96 + 48 + 64


def test_qwen3_30b_embedding() -> None:
    model = load_model("qwen3-30b-a3b")
    assert count.embedding_parameters(model) == count.head_parameters(model) == 311_164_928


@pytest.mark.parametrize("name", shipped("model"))
def test_pieces_add_up(name: str) -> None:
    model = load_model(name)
    layers = sum(count.layer_parameters(model, layer) for layer in range(model.num_layers))
    ends = count.embedding_parameters(model) + count.norm_parameters(model) + count.head_parameters(model)
    assert layers + ends == count.total_parameters(model)


def test_deepseek_layers_by_hand() -> None:
    model = load_model("deepseek-moe-16b")
    attention, norms = 4 * 2048 * 2048, 2 * 2048
    assert count.layer_parameters(model, 0) == attention + norms + 3 * 2048 * 10944
    assert count.layer_parameters(model, 1) == attention + norms + 64 * 2048 + 66 * 3 * 2048 * 1408


def test_every_second_layer_by_hand() -> None:
    """Layers 1 and 3 of 4 have experts, and beside them a shared one of its own width with a gate of hidden."""
    fields = {"moe_every": 2, "dense_width": 48, "shared_experts": 1, "shared_width": 40, "shared_gate": True}
    model = msgspec.structs.replace(load_model("tiny-moe"), **fields)
    common = count.attention_parameters(model) + 64
    dense, moe = common + 3 * 64 * 48, common + 64 * (model.experts + 1) + 3 * 64 * (model.experts * 96 + 40)
    assert [count.layer_parameters(model, layer) for layer in range(4)] == [dense, moe, dense, moe]
    idle = 2 * (model.experts - model.top_k) * 3 * 64 * 96
    assert count.total_parameters(model) - count.active_parameters(model) == idle
    assert count.total_parameters(model) == 2 * (dense + moe) + 2 * 512 * 64 + 64


def test_layer_norms_with_a_bias_have_two_vectors() -> None:
    model = load_model("tiny-moe")
    rms, layer, both = (
        count.total_parameters(msgspec.structs.replace(model, norm=norm)) for norm in ("rms", "layer", "layer_bias")
    )
    assert rms == layer == both - (2 * 4 + 1) * 64


def test_a_head_with_a_bias_has_one_number_per_token_more() -> None:
    model = msgspec.structs.replace(load_model("tiny-moe"), head_bias=True)
    assert count.head_parameters(model) == 512 * 65
    assert count.head_parameters(msgspec.structs.replace(model, tied_embeddings=True)) == 512


def test_tied_embeddings_have_no_head() -> None:
    model = load_model("tiny-moe")
    tied = msgspec.structs.replace(model, tied_embeddings=True)
    assert count.head_parameters(tied) == 0
    assert count.total_parameters(model) - count.total_parameters(tied) == 512 * 64


def test_qk_norm_adds_two_head_dims_per_layer() -> None:
    model = load_model("tiny-moe")
    normed = msgspec.structs.replace(model, attention=msgspec.structs.replace(model.attention, qk_norm=True))
    assert count.total_parameters(normed) - count.total_parameters(model) == 4 * 2 * 16
