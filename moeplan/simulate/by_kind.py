"""Where the seconds of a simulated step go, by the kind of work and per position."""

from __future__ import annotations

from moeplan.plan import Plan
from moeplan.program import Op, Program, is_receive
from moeplan.simulate.metrics import metrics
from moeplan.simulate.timeline import Timeline

ORDER = (
    *("embedding", "attention", "dense", "experts", "join", "head", "recompute", "tensor_parallel"),
    *("all_to_all", "m2n_n2m", "send", "gradients", "optimizer", "exposed", "waiting"),
)
KINDS = {
    "dispatch": "all_to_all",
    "combine": "all_to_all",
    "m2n": "m2n_n2m",
    "n2m": "m2n_n2m",
    "send": "send",
    "all_reduce": "gradients",
    "reduce_scatter": "gradients",
    "all_gather": "gradients",
    "optimizer": "optimizer",
}
"""What the seconds of an operation that computes no piece are called."""


def seconds_by_kind(plan: Plan, program: Program, timeline: Timeline) -> list[dict[str, float]]:
    """Busy seconds of each position by kind, from the simulated step.

    Pieces by their kind, what is computed again as `recompute`; collectives of tensor parallelism inside a piece as
    `tensor_parallel`. A transfer between two positions counts at its sender.
    """
    inside = {(d.kind, d.phase, piece): d.communication_s for d in plan.durations for piece in d.pieces}
    busy: list[dict[str, float]] = [{} for _ in plan.graph.positions]
    for op in program.ops:
        if is_receive(program, op):
            continue
        spent = (timeline.end_ns[op.id] - timeline.start_ns[op.id]) / 1e9
        shared = inside.get((op.kind, "F" if op.phase == "R" else op.phase, op.piece), 0.0)
        mine = busy[op.position]
        kind = _kind(plan, op)
        mine[kind] = mine.get(kind, 0.0) + spent - shared
        if shared:
            mine["tensor_parallel"] = mine.get("tensor_parallel", 0.0) + shared
    for mine, use in zip(busy, metrics(program, timeline).positions, strict=True):
        mine["exposed"], mine["waiting"] = use.exposed_ns / 1e9, use.bubble_ns / 1e9
    return busy


def _kind(plan: Plan, op: Op) -> str:
    if op.kind in KINDS:
        return KINDS[op.kind]
    return "recompute" if op.phase == "R" else plan.graph.pieces[op.piece].kind
