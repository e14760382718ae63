"""What runs is what the plan's text says, and nothing else."""

from collections import defaultdict

import pytest
from cases import model, plan_of, run_all, worst_error
from msgspec.structs import replace

from moeplan.errors import ScheduleError
from moeplan.layout import Colocated, Disaggregated, Recompute
from moeplan.plan import ScheduleText, program_of
from moeplan_exec.run import Options

ONCE = Options(steps=1, dtype="fp64", timeout_s=30)


def executed(ranks):
    """Operation ids by (rank, stream name), in the order in which they began."""
    order = defaultdict(list)
    for span in sorted(ranks[0][0].trace.spans, key=lambda span: span.start_ns):
        order[(span.lane, span.stream)].append(span.op)
    return order


def expected(plan):
    program = program_of(plan)
    places = plan.graph.positions
    return {
        (rank, stream.name): list(stream.ops)
        for stream in program.streams
        for group in places[stream.position].ranks
        for rank in group
    }


@pytest.mark.parametrize(
    ("layout", "schedule", "recompute"),
    [
        (Colocated(pp=2, ep=2, dp=2), "1f1b", Recompute(ffn="full")),
        (Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=2), "af-pipe", Recompute(attention="full", ffn="experts")),
    ],
)
def test_every_stream_runs_in_the_order_of_the_program(layout, schedule, recompute):
    plan = plan_of(model(), layout, 4, schedule=schedule, recompute=recompute)
    assert executed(run_all(plan, ONCE)) == expected(plan)


def edited(plan, *lines):
    return replace(plan, schedule=ScheduleText(name="edited", positions=lines))


def test_an_edited_text_is_what_runs():
    plan = plan_of(model(), Colocated(pp=2), 2, global_batch=3)
    other = edited(plan, "0F0 0F1 0F2 0B2 0B0 0B1", "1F0 1F1 1B1 1F2 1B2 1B0")
    assert plan.schedule.positions != other.schedule.positions
    ranks = run_all(other, ONCE)
    assert executed(ranks) == expected(other)
    assert executed(run_all(plan, ONCE)) != executed(ranks)
    assert worst_error(other, ranks, ONCE) <= 1e-10


def test_input_and_weight_gradients_may_stand_apart():
    plan = plan_of(model(), Colocated(pp=2), 2, global_batch=2)
    other = edited(plan, "0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W1 1W0")
    assert worst_error(other, run_all(other, ONCE), ONCE) <= 1e-10


def test_overlapped_pairs_run():
    plan = plan_of(model(), Colocated(pp=2), 2, global_batch=3)
    other = edited(plan, "0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1&1B0 1B1&1F2 1B2")
    ranks = run_all(other, ONCE)
    assert executed(ranks) == expected(other)
    assert worst_error(other, ranks, ONCE) <= 1e-10


def test_an_illegal_text_does_not_run():
    plan = plan_of(model(), Colocated(pp=2), 2, global_batch=2)
    with pytest.raises(ScheduleError, match="deadlock"):
        run_all(edited(plan, "0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"), ONCE)
