"""A layout, a schedule and a recompute rule made into a plan; costs are filled in by whoever knows them."""

from __future__ import annotations

from msgspec import structs

from moeplan.batch import Batch, batch
from moeplan.layout import Disaggregated, Layout, Recompute, StageGraph
from moeplan.layouts import stages
from moeplan.overlaps import plain
from moeplan.plan import SCHEMA, SCHEMA_VERSION, Duration, Plan, Predictions, ScheduleText, Solver, place, tiers_in
from moeplan.schedule import Shape, Steps, to_text
from moeplan.schedules import make
from moeplan.spec.case import Case


def dealt(case: Case, layout: Layout, graph: StageGraph) -> Batch:
    """The micro-batches of a step under `layout`."""
    first = graph.positions[0].ranks
    return batch(case.workload.global_batch, layout.micro_batch, len(first) * len(first[0]) // (graph.tp * graph.cp))


def shape_of(layout: Layout, graph: StageGraph, microbatches: int) -> Shape:
    """What a schedule generator may know of `layout`."""
    depth = layout.depth if isinstance(layout, Disaggregated) else 1
    return Shape(len(graph.positions), len(graph.stages), microbatches, depth=depth)


def draft(case: Case, layout: Layout, *, schedule: str, recompute: Recompute | None = None) -> Plan:
    """A plan of `layout` without predictions: every number that a cost model would give is zero."""
    return draft_with_steps(case, layout, schedule=schedule, recompute=recompute)[0]


def draft_with_steps(
    case: Case, layout: Layout, *, schedule: str, recompute: Recompute | None = None
) -> tuple[Plan, Steps]:
    """As `draft`, with the steps that its schedule text says; rows go straight where a cost model would choose."""
    plan = outline(case, layout, schedule=schedule, recompute=recompute)
    plan = structs.replace(plan, graph=straight(plan.graph))
    steps = make(schedule, shape_of(layout, plan.graph, plan.batch.microbatches))
    return spelled(plan, steps), steps


def straight(graph: StageGraph) -> StageGraph:
    """`graph` with the flat algorithm at every edge that leaves it open."""
    edges = (structs.replace(e, algorithm="flat") if e.algorithm == "fastest" else e for e in graph.edges)
    return structs.replace(graph, edges=tuple(edges))


def spelled(plan: Plan, steps: Steps) -> Plan:
    """`plan` with the text of `steps`, which its schedule makes."""
    text = ScheduleText(name=plan.schedule.name, positions=tuple(to_text(row) for row in steps))
    return structs.replace(plan, schedule=text)


def outline(case: Case, layout: Layout, *, schedule: str, recompute: Recompute | None = None) -> Plan:
    """As `draft`, but of the schedule only its name: a text takes longer than all the rest."""
    graph = stages(case, layout)
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
    return Plan(
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        case=case,
        layout=layout,
        graph=graph,
        placement=place(case.cluster, sum(len(group) for position in graph.positions for group in position.ranks)),
        batch=dealt(case, layout, graph),
        schedule=ScheduleText(name=schedule, positions=()),
        overlap=plain.make(),
        recompute=recompute or Recompute(),
        durations=empty,
        predictions=nothing,
        solver=Solver(status="given"),
        tiers=tiers_in(graph, case.cluster),
    )
