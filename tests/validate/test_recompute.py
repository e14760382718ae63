"""The column recompute."""

import pytest

from moeplan.layout import Recompute
from moeplan.validation.outcome import Skip
from moeplan.validation.recompute import Rule, recompute_rule

EVERYTHING = {"attention": "full", "ffn": "full"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", {}),
        ("none/FP8 params", {}),
        ("none at 8K", {}),
        ("full", EVERYTHING),
        ("full AC", EVERYTHING),
        ("selective", {"modules": ("core_attention",)}),
        ("selective(flash)", {"modules": ("core_attention",)}),
        ("selective + sequence parallel", {"modules": ("core_attention",)}),
        ("selective:core_attn", {"modules": ("core_attention",)}),
        ("selective:moe", {"ffn": "full", "modules": ("shared_experts",)}),
        ("selective:moe+layernorm", {"ffn": "full", "modules": ("norm", "shared_experts")}),
        ("selective:moe_act+layernorm", {"modules": ("activation", "norm")}),
        ("selective:mlp+mla_up_proj (relaxed in later steps)", {"modules": ("dense", "latent_up")}),
        ("selective (RMSNorm, MLA up-proj)", {"modules": ("norm", "latent_up")}),
        ("selective:norm+act+shared_expert", {"modules": ("norm", "activation", "shared_experts")}),
        ("selective:experts", {"ffn": "experts"}),
        ("selective:experts+moe", {"ffn": "full", "modules": ("shared_experts",)}),
        ("norm", {"modules": ("norm",)}),
        ("mlp", {"modules": ("dense",)}),
        ("core_attn, moe_act", {"modules": ("core_attention", "activation")}),
        ("experts", {"ffn": "experts"}),
        ("moe/FP8 params", {"ffn": "full", "modules": ("shared_experts",)}),
        ("selective AC", {"modules": ("every_other_product",)}),
        ("per-op SAC", {"modules": ("every_other_product",)}),
    ],
)
def test_rules(text, rule):
    assert recompute_rule(text) == (Recompute(**rule), "")


@pytest.mark.parametrize(
    ("text", "layers", "rule", "note"),
    [
        ("full layers=5", 32, {}, "some layers computed again: taken as none"),
        ("full layers=20", 32, EVERYTHING, "some layers computed again: taken as all"),
        ("full layers=32", 32, EVERYTHING, ""),
        ("full 4 layers", 4, EVERYTHING, ""),
        ("full 4 layers", 16, {}, "some layers computed again: taken as none"),
        ("full (12 of 16 layers)", 16, EVERYTHING, "some layers computed again: taken as all"),
        ("full 2/16 layers", 16, {}, "some layers computed again: taken as none"),
        ("full 0 layers", 16, {}, ""),
        ("full layers=0", 0, {}, ""),
    ],
)
def test_a_number_of_layers_becomes_the_nearest_rule(text, layers, rule, note):
    assert recompute_rule(text, layers) == (Recompute(**rule), note)


@pytest.mark.parametrize("text", ["selective:router", "some", "selective:moe+router", "norm+router"])
def test_what_no_rule_says(text):
    with pytest.raises(Skip, match="recompute"):
        recompute_rule(text)


def test_every_published_rule_is_known(published_runs):
    for run in published_runs.values():
        recompute_rule(run.recompute, 32)


@pytest.mark.parametrize("text", ["none", "no", "no recompute", "off", "False", "disabled", "not used", "without", ""])
def test_nothing_is_computed_again_where_the_cell_says_so(text):
    assert recompute_rule(text) == Rule(Recompute())


def test_a_reason_says_what_would_be_right():
    with pytest.raises(Skip) as caught:
        recompute_rule("selective:router")
    assert caught.value.told.startswith("recompute: module router is not known; right is core_attn, ")
