"""Degrees typed by hand: what was not said follows, what cannot be is refused with the product that fails."""

import pytest

from moeplan.by_hand import ByHand, as_options, layout_of, recompute_of, rule_text, split_of
from moeplan.draft import draft
from moeplan.errors import SpecError
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.layouts import stages


def test_data_parallelism_takes_what_is_left_and_experts_are_split_as_attention_is(make_case):
    case = make_case(4)
    assert layout_of(case, ByHand(pp=2, ep=2, etp=1)) == Colocated(pp=2, ep=2, dp=2)
    assert layout_of(case, ByHand(tp=2)) == Colocated(tp=2, etp=2, dp=2)
    assert layout_of(case, ByHand(tp=2, etp=1, ep=4)) == Colocated(tp=2, ep=4, dp=2)
    assert layout_of(case, ByHand(pp=2, ep=2), "piper") == Piper(pp=2, ep=2)
    assert layout_of(case, ByHand(ep=2), "piper") == Piper(ep=2, dp=2)


def test_world_of_four_with_pp_two_and_ep_two_is_the_valid_mesh(make_case):
    """Dense mesh 1 * 2 * 2, expert mesh 1 * 2 * 2 with each expert on one rank."""
    case = make_case(4)
    graph = stages(case, layout_of(case, ByHand(tp=1, pp=2, ep=2, etp=1)))
    sizes = {r.parameters: len(r.groups[0]) for r in graph.replicas}
    assert (sizes["dense"], sizes["experts"]) == (2, 1)


@pytest.mark.parametrize(
    ("given", "family", "message"),
    [
        (ByHand(tp=2, pp=2, ep=2), "", r"etp 2 \* ep 2 \* pp 2 = 8 does not divide 4 GPUs \(etp was not given"),
        (ByHand(tp=2, ep=4), "", r"etp 2 \* ep 4 \* pp 1 = 8 does not divide 4 GPUs"),
        (ByHand(tp=3), "", r"etp 3 \* ep 1 \* pp 1 = 3 does not divide 4 GPUs"),
        (ByHand(tp=3, etp=1), "", r"tp 3 \* pp 1 = 3 does not divide 4 GPUs"),
        (ByHand(pp=3, ep=1), "piper", r"pp 3 \* ep 1 = 3 does not divide 4 GPUs"),
        (ByHand(tp=2), "piper", "--tp 2: piper layouts have no such degree"),
        (ByHand(pp=2, attention_gpus=2, ffn_gpus=2), "", "--pp 2: disaggregated layouts have no such degree"),
        (ByHand(attention_gpus=2), "", "need both --attention-gpus and --ffn-gpus"),
        (ByHand(attention_gpus=2, ffn_gpus=2), "piper", "--attention-gpus 2: piper layouts have no such degree"),
        (ByHand(), "dense", "family 'dense' is not known; there are colocated, piper, disaggregated"),
    ],
)
def test_degrees_that_do_not_go_together_are_refused_with_their_product(given, family, message, make_case):
    with pytest.raises(SpecError, match=message):
        layout_of(make_case(4), given, family)


@pytest.mark.parametrize(("split", "right"), [((16,), False), ((32,), True)])
def test_the_layers_of_the_only_stage_are_all_layers(split, right, make_case):
    case = make_case(4, num_layers=32)
    layout = layout_of(case, ByHand(split=split))
    if right:
        assert len([p for p in stages(case, layout).pieces if p.kind == "attention"]) == 32
    else:
        with pytest.raises(SpecError, match=r"split \[16\] has 16 layers, not 32"):
            stages(case, layout)


def test_two_sides_take_the_nics_of_their_gpus(make_case):
    layout = layout_of(make_case(8), ByHand(attention_gpus=2, ffn_gpus=4, deduplicate=True))
    assert layout == Disaggregated(attention_gpus=2, ffn_gpus=4, attention_nics=2, ffn_nics=4, deduplicate=True)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("none", Recompute()),
        ("experts", Recompute(ffn="experts")),
        ("full", Recompute(attention="full", ffn="full")),
        ("full/none", Recompute(attention="full")),
        ("none+norm+activation", Recompute(modules=("norm", "activation"))),
        ("full/experts+latent_up", Recompute(attention="full", ffn="experts", modules=("latent_up",))),
        ("none+norm+norm", Recompute(modules=("norm",))),
    ],
)
def test_recompute_is_one_word_or_one_per_side(text, rule):
    assert recompute_of(text) == rule
    assert recompute_of(rule_text(rule)) == rule


@pytest.mark.parametrize("text", ["", "all", "experts/none", "none/none/none", "full/", "norm"])
def test_other_recompute_is_refused(text):
    with pytest.raises(SpecError, match=r"--recompute .*: right is none, experts, full, or attention/ffn"):
        recompute_of(text)


@pytest.mark.parametrize("text", ["none+", "none+gelu", "full+norm+Norm"])
def test_other_modules_are_refused_with_those_there_are(text):
    with pytest.raises(SpecError, match=r"is no module; there are core_attention, norm, .*every_other_product"):
        recompute_of(text)


def test_options_of_a_plan_give_its_modules(make_case):
    plan = draft(make_case(4), Colocated(dp=4), schedule="1f1b", recompute=Recompute(modules=("norm", "dense")))
    assert as_options(plan) == "--family colocated --dp 4 --recompute none/none+norm+dense --schedule 1f1b"


def test_a_split_is_numbers_between_commas():
    assert split_of("9, 8,8,7") == (9, 8, 8, 7)
    for text in ("", "9,,7", "9;8", "-1,3", "9,8.0"):
        with pytest.raises(SpecError, match="--pp-split"):
            split_of(text)
