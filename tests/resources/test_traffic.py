"""What tensor-parallel blocks gather and scatter per row."""

import pytest
from msgspec import structs

from moeplan.resources.traffic import split_elements
from moeplan.spec.shipped import load_model


def total(model, kind, *, moe=True):
    """Elements per row in both directions together."""
    return sum(sum(split_elements(model, kind, direction, moe=moe)) for direction in "FB")


def test_a_block_gathers_and_scatters_hidden_elements_in_both_directions():
    model = load_model("mixtral-8x7b")
    assert total(model, "attention") == total(model, "experts") == 4 * model.hidden
    assert total(model, "dense", moe=False) == 4 * model.hidden


def test_shared_experts_are_a_block_of_their_own():
    model = load_model("deepseek-moe-16b")
    assert total(model, "attention") == 8 * model.hidden
    assert total(model, "attention", moe=False) == 4 * model.hidden


@pytest.mark.parametrize(("name", "narrow"), [("deepseek-v3", 1536 + 512 + 64), ("deepseek-v2-lite", 2048)])
def test_latent_attention_gathers_narrow_vectors_where_queries_have_them(name, narrow):
    model = load_model(name)
    assert total(model, "attention", moe=False) == 2 * (narrow + model.hidden)


def test_embedding_and_head_pass_rows_once_per_direction():
    model = load_model("tiny-moe")
    assert total(model, "embedding") == total(model, "head") == 2 * model.hidden
    assert total(model, "join") == 0
    assert total(structs.replace(model, shared_experts=2), "embedding") == 2 * model.hidden
