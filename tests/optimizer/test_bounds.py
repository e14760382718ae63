"""Bounds of the search where ranks divide what they hold, and where stages compute again before gradients come."""

import pytest
from msgspec import structs

from moeplan.estimator import estimate
from moeplan.layout import Colocated, Disaggregated, Recompute
from moeplan.optimizer.candidate import Candidate
from moeplan.optimizer.screen import Screen
from moeplan.optimizer.search import Search
from moeplan.optimizer.sides import Sides
from moeplan.planner import optimize
from moeplan.spec.workload import Memory, bytes_of_one

DIVIDED = [Memory(zero=0), Memory(zero=2), Memory(zero=3), Memory(offload=1), Memory(optimizer_shards=2, zero=3)]
LAYOUTS = [
    Colocated(dp=8),
    Colocated(pp=2, ep=2, dp=4),
    Colocated(tp=2, dp=4),
    Disaggregated(attention_gpus=2, ffn_gpus=2, dp=2),
]
SHOWN = ["nothing", "gradients", "weights", "offloaded", "over two"]


@pytest.mark.parametrize("memory", DIVIDED, ids=SHOWN)
@pytest.mark.parametrize(
    "layout",
    [
        Colocated(dp=8),
        Colocated(pp=2, ep=2, dp=4),
        Colocated(tp=2, dp=4),
        Disaggregated(attention_gpus=2, ffn_gpus=2, dp=2),
    ],
)
def test_no_rank_holds_less_than_the_bound(make_case, machine_of, memory, layout):
    """Experts are wide, so that what is divided is most of a rank's bytes."""
    case = make_case(8, per_node=4, expert_width=2048, memory=memory)
    rule = Recompute(attention="full", ffn="experts")
    held = max(estimate(case, case.cluster.calibration, layout, recompute=rule).plan.predictions.peak_hbm_bytes)
    if isinstance(layout, Disaggregated):
        bound = Sides(case, machine_of(case)).least_bytes(layout, rule)
    else:
        bound = Screen(case, machine_of(case)).least_bytes(layout, rule, "1f1b")
    assert bound <= held


def test_layouts_that_divide_weights_are_found(make_case):
    """Where only ranks that divide all they hold have room."""
    case = make_case(8, per_node=8, hidden=1024, expert_width=2048, num_layers=16)
    layout = Colocated(dp=8)
    whole, divided = (
        max(estimate(one, "h800", layout).plan.predictions.peak_hbm_bytes)
        for one in (case, structs.replace(case, memory=Memory(zero=3)))
    )
    assert divided < whole / 2
    usable = 1.01 * divided / case.cluster.gpu.hbm_bytes
    case = structs.replace(case, memory=Memory(zero=3, usable=usable))
    best = optimize(case, "h800", families=["colocated"], fixed={"dp": 8, "ep": 1}).best
    assert (best.layout.dp, best.layout.ep) == (8, 1)


@pytest.mark.parametrize("ranks", [1, 8])
def test_bytes_of_one_parameter(ranks):
    assert [bytes_of_one(Memory(zero=zero), ranks) for zero in range(4)] == [
        18.0,
        6 + 12 / ranks,
        2 + 16 / ranks,
        18 / ranks,
    ]


def test_what_is_computed_again_before_a_gradient_comes_bounds_nothing(make_case, machine_of):
    """Four stages, few micro-batches and full recompute: the first stages compute again while the last goes back."""
    case = make_case(4, per_node=2, num_layers=4, moe_every=2, dense_width=256, hidden=1024, global_batch=8)
    search, layout, rule = (
        Search(case, machine_of(case)),
        Colocated(pp=4, micro_batch=2),
        Recompute(attention="full", ffn="full"),
    )
    assert search.screen.step_s(layout, rule) <= search.bounded(Candidate(layout, "1f1b", rule))
