"""The longest path over actions: never above the simulated step, and equal to the program's where nothing is shared."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from moeplan.cost.durations import per_operation, predict
from moeplan.draft import draft_with_steps
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.optimizer.bound import step_bound_s
from moeplan.optimizer.evaluate import evaluate
from moeplan.plan import lowered
from moeplan.program import longest_path

LAYOUTS = (
    (Colocated(dp=8, ep=4), "1f1b"),
    (Colocated(tp=2, pp=2, dp=2, ep=4), "1f1b"),
    (Colocated(pp=4, dp=2, ep=2), "1f1b"),
    (Colocated(pp=8), "1f1b"),
    (Colocated(pp=2, vpp=3, dp=4, ep=2), "interleaved"),
    (Colocated(pp=4, vpp=2, dp=2), "interleaved"),
    (Piper(pp=2, ep=4), "gpipe"),
    (Piper(pp=4, ep=2, split=(3, 2, 2, 1)), "1f1b"),
    (Disaggregated(attention_gpus=4, ffn_gpus=4, deduplicate=True), "af-pipe"),
    (Disaggregated(attention_gpus=3, ffn_gpus=2), "af-pipe"),
    (Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4, deduplicate=True, depth=2), "af-pipe"),
    (Disaggregated(pairs=3, attention_gpus=3, ffn_gpus=3), "af-pipe"),
    (Disaggregated(attention_gpus=2, ffn_gpus=2, dp=2), "gpipe"),
)
RULES = st.builds(Recompute, attention=st.sampled_from(["none", "full"]), ffn=st.sampled_from(["none", "experts"]))


def priced(make_case, machine_of, layout, schedule, recompute, **case):
    """(plan with durations, steps) on two nodes of four GPUs."""
    given_case = make_case(8, per_node=4, num_layers=8, **case)
    plan, steps = draft_with_steps(given_case, layout, schedule=schedule, recompute=recompute)
    machine = machine_of(given_case)
    return structs.replace(plan, durations=predict(given_case, plan.graph, plan.batch, machine)), steps


@settings(max_examples=60)
@given(
    drawn=st.sampled_from(LAYOUTS),
    recompute=RULES,
    global_batch=st.integers(1, 24),
    seq_len=st.sampled_from([64, 2048]),
    micro_batch=st.integers(1, 2),
)
def test_no_simulated_step_is_faster(make_case, machine_of, drawn, recompute, global_batch, seq_len, micro_batch):
    layout, schedule = drawn
    layout = structs.replace(layout, micro_batch=micro_batch)
    sizes = {"global_batch": global_batch, "seq_len": seq_len}
    plan, steps = priced(make_case, machine_of, layout, schedule, recompute, **sizes)
    rounding = 1e-9 * len(lowered(plan, steps).ops)
    assert step_bound_s(plan, steps, plan.durations) <= evaluate(plan, steps).predictions.step_s + rounding


@pytest.mark.parametrize("global_batch", [1, 5, 16])
@pytest.mark.parametrize("recompute", [Recompute(), Recompute(attention="full", ffn="full")], ids=["none", "full"])
@pytest.mark.parametrize(("layout", "schedule"), [row for row in LAYOUTS if not isinstance(row[0], Disaggregated)])
def test_without_shared_links_it_is_the_longest_path(make_case, machine_of, layout, schedule, recompute, global_batch):
    """Up to the synchronisation after the last backward, of which the bound takes the shortest position's."""
    plan, steps = priced(make_case, machine_of, layout, schedule, recompute, global_batch=global_batch)
    free = [structs.replace(d, seconds=0.0) if d.phase == "S" else d for d in plan.durations]
    program = lowered(plan, steps)
    longest_s = max(longest_path(program, per_operation(program, free, plan.batch.microbatches))) / 1e9
    assert step_bound_s(plan, steps, free) == pytest.approx(longest_s, rel=1e-5)


def test_a_filled_link_bounds_the_step(make_case, machine_of):
    """Ten times the transfers: the busiest way out, once per micro-batch but the first, is in the bound."""
    layout = Disaggregated(attention_gpus=4, ffn_gpus=4)
    plan, steps = priced(make_case, machine_of, layout, "af-pipe", Recompute(), global_batch=32)
    slow = [
        structs.replace(d, seconds=10.0, last_seconds=10.0) if d.kind in ("m2n", "n2m") else d for d in plan.durations
    ]
    layers, microbatches = plan.case.model.num_layers, plan.batch.microbatches
    filled = 10.0 * (2 * layers - 1) * (microbatches - 1)
    assert step_bound_s(plan, steps, slow) >= filled
    simulated = evaluate(structs.replace(plan, durations=tuple(slow)), steps).predictions.step_s
    assert filled < simulated
    assert step_bound_s(plan, steps, slow) <= simulated
