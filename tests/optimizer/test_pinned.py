"""Degrees that a user fixed: kept where a layout has them, else refused by the rule that leaves none."""

from itertools import combinations, product

import pytest
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.layouts import FAMILIES
from moeplan.optimizer.candidate import has
from moeplan.optimizer.pinned import _broken, _grid, check_fixed, chosen
from moeplan.planner import optimize
from moeplan.ranking import ranking_notes
from moeplan.spec.shipped import load_calibration

VALUES = {"pp": (1, 2, 3, 8), "ep": (1, 4, 16), "vpp": (1, 2, 3), "dp": (1, 4, 8), "micro_batch": (1, 3, 16)}


@pytest.fixture(scope="module")
def case(make_case):
    """16 GPUs, nodes of 4, leaves of two nodes; 16 experts, 8 heads, 4 layers."""
    made = make_case(16, per_node=4, experts=16, num_layers=4)
    network = structs.replace(made.cluster.network, nodes_per_leaf=2)
    attention = structs.replace(made.model.attention, heads=8, kv_heads=8)
    cluster, model = structs.replace(made.cluster, network=network), structs.replace(made.model, attention=attention)
    return structs.replace(made, cluster=cluster, model=model)


@pytest.mark.parametrize("family", ["colocated", "piper"])
def test_what_is_said_to_be_broken_are_the_rules_of_the_search(case, family):
    """A layout with the degrees keeps all rules exactly where the search has one with them."""
    values = VALUES | ({"tp": (1, 2, 8)} if family == "colocated" else {})
    tried = 0
    for names in (pair for count in (1, 2, 3) for pair in combinations(values, count)):
        for degrees in product(*(values[name] for name in names)):
            fixed = dict(zip(names, degrees, strict=True))
            searched = any(has(one, fixed) for one in FAMILIES[family].layouts(case, chosen(fixed)))
            kept = any(not _broken(case, one) for one in _grid(case, family, fixed))
            assert searched == kept, fixed
            tried += not searched
    assert tried > 50


@pytest.mark.parametrize(
    ("family", "fixed", "why"),
    [
        ("piper", {"ep": 16}, "piper keeps ep 16 within the 8 ranks of one single-hop switch group; ep may be 1, 2, 4"),
        ("piper", {"pp": 1, "vpp": 2}, "vpp 2 with pp 1: one position has one stage; pp may be 2 beside the others"),
        ("colocated", {"tp": 8}, "tp 8 > 4 GPUs that one switch joins, within which it is searched; tp may be 1, 2, 4"),
        ("colocated", {"pp": 1, "dp": 1, "tp": 1}, "pp 1 * dp 1 = 1, not 16 GPUs; dp may be 16 beside the others"),
        (
            "colocated",
            {"pp": 4, "tp": 4, "ep": 16},
            "expert groups of ep 16 do not fill the 4 GPUs of each of 4 stages",
        ),
        ("colocated", {"micro_batch": 3, "dp": 16}, "micro_batch 3 * dp 16 = 48 > 16 sequences of a step"),
        ("disaggregated", {"ffn_gpus": 5, "pairs": 1}, "16 experts % 5 ranks of one FFN group is not 0"),
        ("disaggregated", {"attention_gpus": 5, "pairs": 2}, "attention 5 ranks % pairs 2 is not 0"),
        ("disaggregated", {"dp": 16}, "attention 1 + ffn 1 = 2 ranks * dp 16 > 16"),
    ],
)
def test_the_rule_and_what_would_be_right_are_told_with_their_numbers(case, family, fixed, why):
    with pytest.raises(SpecError) as told:
        check_fixed(case, fixed, [family])
    assert why in str(told.value)


def test_each_family_has_its_own_reason(case):
    with pytest.raises(SpecError, match=r"colocated: expert groups of ep 16 .*; piper: pp 2 \* ep 16 does not"):
        check_fixed(case, {"ep": 16, "pp": 2}, ["colocated", "piper"])
    assert check_fixed(case, {"ep": 16, "pp": 1}, list(FAMILIES)) == {
        "piper": "piper keeps ep 16 within the 8 ranks of one single-hop switch group; ep may be 1, 2, 4, 8 beside the"
        " others",
        "disaggregated": "it has no ep, pp",
    }


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 6])
def test_attention_ranks_that_are_set_are_searched_also_where_an_allocation_takes_others(make_case, ranks):
    case = make_case(8, num_layers=8)
    found = optimize(case, load_calibration("h800"), families="disaggregated", fixed={"attention_gpus": ranks})
    assert found.best.layout.attention_gpus == ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ffn_ranks_that_are_set_are_searched_three_as_three_groups_of_one(make_case, ranks):
    case = make_case(8, num_layers=8)
    found = optimize(case, load_calibration("h800"), families="disaggregated", fixed={"ffn_gpus": ranks})
    assert found.best.layout.ffn_gpus == ranks


def test_a_family_without_the_degree_says_so_and_the_baseline_is_free_beside_it(make_case):
    ranking = optimize(make_case(8, num_layers=8), load_calibration("h800"), fixed={"pairs": 2})
    assert ranking.best.layout.pairs == 2
    assert {found.family for found in ranking.found if found.best} == {"colocated", "disaggregated"}
    assert "piper: no layout has the degrees that were set: it has no pairs" in ranking_notes(ranking)
