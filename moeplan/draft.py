"""A layout, a schedule and a recompute rule made into a plan; costs are filled in by whoever knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moeplan.layout import Batch, Disaggregated, Layout, Recompute, StageGraph, batch
from moeplan.layouts import stages
from moeplan.overlaps import plain
from moeplan.plan import SCHEMA, SCHEMA_VERSION, Duration, Plan, Predictions, ScheduleText, Solver, place
from moeplan.schedule import Shape, Steps, to_text
from moeplan.schedules import make
from moeplan.spec.case import Case


def dealt(case: Case, layout: Layout, graph: StageGraph) -> Batch:
    """The micro-batches of a step under `layout`."""
    first = graph.positions[0].ranks
    return batch(case.workload.global_batch, layout.micro_batch, len(first) * len(first[0]) // graph.tp)


def shape_of(layout: Layout, graph: StageGraph, microbatches: int) -> Shape:
    """What a schedule generator may know of `layout`."""
    depth = layout.depth if isinstance(layout, Disaggregated) else 1
    return Shape(len(graph.positions), len(graph.stages), microbatches, depth=depth)


class Written(NamedTuple):
    """An order and its text."""

    steps: Steps
    text: ScheduleText


def written(schedule: str, shape: Shape) -> Written:
    """The order that `schedule` makes for `shape`."""
    steps = make(schedule, shape)
    return Written(steps, ScheduleText(name=schedule, positions=tuple(to_text(row) for row in steps)))


def draft(case: Case, layout: Layout, *, schedule: str, recompute: Recompute | None = None) -> Plan:
    """A plan of `layout` without predictions: every number that a cost model would give is zero."""
    return draft_with_steps(case, layout, schedule=schedule, recompute=recompute)[0]


def draft_with_steps(
    case: Case,
    layout: Layout,
    *,
    schedule: str,
    recompute: Recompute | None = None,
    order: Callable[[str, Shape], Written] = written,
) -> tuple[Plan, Steps]:
    """As `draft`, with the steps that its schedule text says; `order` may remember what it has written before."""
    graph = stages(case, layout)
    batches = dealt(case, layout, graph)
    steps, text = order(schedule, shape_of(layout, graph, batches.microbatches))
    nothing = Predictions(
        step_s=0.0,
        tokens_per_s=0.0,
        mfu=0.0,
        peak_flop_per_s=0.0,
        model_flop=0.0,
        peak_hbm_bytes=(),
        static_hbm_bytes=(),
        exposed_communication_s=0.0,
        bubble=0.0,
    )
    empty: tuple[Duration, ...] = ()
    plan = Plan(
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        case=case,
        layout=layout,
        graph=graph,
        placement=place(case.cluster, sum(len(group) for position in graph.positions for group in position.ranks)),
        batch=batches,
        schedule=text,
        overlap=plain.make(),
        recompute=recompute or Recompute(),
        durations=empty,
        predictions=nothing,
        solver=Solver(status="given"),
    )
    return plan, steps
