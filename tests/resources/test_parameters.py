"""Parameter counts against the published totals, and against each other."""

import msgspec
import pytest

from moeplan.resources import parameters as count
from moeplan.spec.shipped import load_model, shipped


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
        ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520),
        ("deepseek-moe-16b", 16_375_728_128, 2_828_650_496),
    ],
)
def test_published_totals(name: str, total: int, active: int) -> None:
    model = load_model(name)
    assert count.total_parameters(model) == total
    assert count.active_parameters(model) == active


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


def test_tied_embeddings_have_no_head() -> None:
    model = load_model("tiny-moe")
    tied = msgspec.structs.replace(model, tied_embeddings=True)
    assert count.head_parameters(tied) == 0
    assert count.total_parameters(model) - count.total_parameters(tied) == 512 * 64


def test_qk_norm_adds_two_head_dims_per_layer() -> None:
    model = load_model("tiny-moe")
    normed = msgspec.structs.replace(model, attention=msgspec.structs.replace(model.attention, qk_norm=True))
    assert count.total_parameters(normed) - count.total_parameters(model) == 4 * 2 * 16
