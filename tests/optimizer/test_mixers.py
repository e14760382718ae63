"""Bounds of layouts whose layers have mixers, or no FFN: never above the step and the bytes that they bound."""

import pytest
from msgspec import structs

from moeplan.cost.durations import predict
from moeplan.draft import draft_with_steps
from moeplan.layout import Colocated, Recompute
from moeplan.optimizer.evaluate import evaluate, footprint
from moeplan.optimizer.screen import Screen
from moeplan.spec.model import Mamba2

FIELDS = {"num_layers": 8, "dense_width": 48, "mixer": Mamba2(heads=4, head_dim=8, state=16), "shared_experts": 1}
LAYOUTS = [Colocated(dp=8, ep=4), Colocated(tp=2, pp=2, dp=2, ep=2), Colocated(pp=4, dp=2)]


@pytest.mark.parametrize("pattern", ["MEM*E", "MEM-*EM", "*EM"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("recompute", [Recompute(), Recompute(attention="full", ffn="full")])
def test_no_step_is_faster_and_none_needs_less(make_case, machine_of, pattern, layout, recompute):
    case = make_case(8, pattern=pattern, **FIELDS | {"num_layers": 2 * (pattern.count("M") + pattern.count("*"))})
    machine = machine_of(case)
    plan, steps = draft_with_steps(case, layout, schedule="1f1b", recompute=recompute)
    plan = structs.replace(plan, durations=predict(case, plan.graph, plan.batch, machine))
    screen = Screen(case, machine)
    assert screen.step_s(layout, recompute) <= evaluate(plan, steps).predictions.step_s * (1 + 1e-9)
    held = footprint(plan, steps)
    assert screen.static_bytes(layout) <= held.static[0]
    assert screen.least_bytes(layout, recompute, "1f1b") <= max(held.peak)
