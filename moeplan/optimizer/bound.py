"""The longest path over a schedule's actions: a lower bound on the simulated step that needs no lowered program.

One micro-batch is lowered to learn how each action's operations hang together; the schedule is then walked action by
action. Without shared links the result is the simulated step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moeplan.cost.durations import per_operation
from moeplan.layout import StageGraph
from moeplan.plan import Duration, Plan
from moeplan.program import Program, is_receive, lower
from moeplan.schedule import Shape, Steps
from moeplan.schedules import make

_NEVER = float("-inf")


class ActionTime(NamedTuple):
    """Nanoseconds of one action: it ends at max(step before + after_step, input + after_input)."""

    after_step: float
    after_input: float
    leaves: float
    """The transfer of its result to another position."""


Times = Mapping[tuple[int, str], ActionTime]
"""(stage, F | B): the times of an action."""


def step_bound_s(plan: Plan, steps: Steps, durations: Sequence[Duration]) -> float:
    """Seconds of the longest path through `steps`, the schedule of `plan`, and the synchronisation after it."""
    one = _one_microbatch(plan)
    full, last = (_times(plan.graph, one, per_operation(one, durations, n)) for n in (2, 1))
    ends = walk(steps, len(plan.graph.stages), full, last, plan.batch.microbatches)
    busiest = max(_links_ns(plan.graph, full).values(), default=0.0) * (plan.batch.microbatches - 1)
    return (max(*ends, busiest) + _sync_ns(plan, durations)) / 1e9


def _links_ns(graph: StageGraph, times: Times) -> dict[tuple[int, str], float]:
    """Nanoseconds per micro-batch for which each position's links are filled, outwards and inwards.

    A transfer fills the links of the side with fewer ranks, and of the other the share that its ranks leave.
    """
    filled: dict[tuple[int, str], float] = {}
    sizes = [len(position.ranks[0]) for position in graph.positions]
    for (stage, kind), time in times.items():
        other = stage + 1 if kind == "F" else stage - 1
        if time.leaves and 0 <= other < len(graph.stages):
            ends = (graph.stages[stage][0], "out"), (graph.stages[other][0], "in")
            fewest = min(sizes[end[0]] for end in ends)
            for end in ends:
                filled[end] = filled.get(end, 0.0) + time.leaves * fewest / sizes[end[0]]
    return filled


def walk(steps: Steps, stages: int, full: Times, last: Times, microbatches: int) -> list[float]:
    """End of the last action of each position; `last` are the times of the last micro-batch.

    The steps are legal and have no overlapped pairs: `schedule.check` has seen them.
    """
    clock = [0.0] * len(steps)
    at = [0] * len(steps)
    ends: dict[tuple[int, str, int], float] = {}
    moved = True
    while moved:
        moved = False
        for position, row in enumerate(steps):
            while at[position] < len(row):
                stage, kind, microbatch = row[at[position]][0]
                arrived = _input(ends, stage, kind, microbatch, stages)
                if arrived is None:
                    break
                cost = (last if microbatch == microbatches - 1 else full)[(stage, kind)]
                end = max(clock[position] + cost.after_step, arrived + cost.after_input)
                clock[position] = end
                ends[(stage, kind, microbatch)] = end + cost.leaves
                at[position] += 1
                moved = True
    return clock


def _input(
    ends: Mapping[tuple[int, str, int], float], stage: int, kind: str, microbatch: int, stages: int
) -> float | None:
    """When the rows (F) or their gradient (B) are there; None if they have not left yet."""
    before = stage - 1 if kind == "F" else stage + 1
    if before in (-1, stages):
        return 0.0
    return ends.get((before, kind, microbatch))


def _one_microbatch(plan: Plan) -> Program:
    graph = plan.graph
    steps = make("gpipe", Shape(len(graph.positions), len(graph.stages), 1))
    return lower(graph, steps, microbatches=1, overlap=plan.overlap, recompute=plan.recompute)


def _times(graph: StageGraph, program: Program, duration_ns: Sequence[int]) -> Times:
    """The times of each action, from the operations of one micro-batch."""
    actions: dict[tuple[int, str], list[int]] = {}
    leaves: dict[tuple[int, str], int] = {}
    for op in program.ops:
        if op.phase == "S" or is_receive(program, op):
            continue
        key = (_stage(graph, op.piece, op.phase, transfer=bool(op.peers)), "F" if op.phase == "F" else "B")
        if op.peers:
            leaves[key] = duration_ns[op.id]
        else:
            actions.setdefault(key, []).append(op.id)
    return {
        key: ActionTime(
            _end(program, ops, duration_ns, step=0.0, given=_NEVER),
            _end(program, ops, duration_ns, step=_NEVER, given=0.0),
            leaves.get(key, 0),
        )
        for key, ops in actions.items()
    }


def _stage(graph: StageGraph, piece: int, phase: str, *, transfer: bool) -> int:
    """The stage whose action holds the operation; the gradient of an edge leaves the stage after it."""
    return graph.pieces[piece + 1 if transfer and phase == "B" else piece].stage


def _end(program: Program, ops: Sequence[int], duration_ns: Sequence[int], *, step: float, given: float) -> float:
    """End of an action's last operation if its step before ended at `step` and its input came at `given`."""
    inside = set(ops)
    ends: dict[int, float] = {}
    streams: dict[int, float] = {}
    for i, number in enumerate(ops):
        op = program.ops[number]
        start = max(streams.get(op.stream, _NEVER), step if i == 0 else _NEVER)
        for dep in op.deps:
            if dep in inside:
                start = max(start, ends[dep])
            elif is_receive(program, program.ops[dep]):
                start = max(start, given)
        ends[number] = streams[op.stream] = start + duration_ns[number]
    return max(ends.values())


def _sync_ns(plan: Plan, durations: Sequence[Duration]) -> float:
    """The longest chain of collectives and optimizer at one position after its last backward."""
    seconds = {(d.kind, piece): d.seconds for d in durations if d.phase == "S" for piece in d.pieces}
    total = [seconds[("optimizer", -1)]] * len(plan.graph.positions)
    for number, replica in enumerate(plan.graph.replicas):
        if any(len(group) > 1 for group in replica.groups):
            for position in replica.positions:
                total[position] += sum(
                    seconds.get((kind, number), 0.0) for kind in ("reduce_scatter", "all_gather", "all_reduce")
                )
    return min(total) * 1e9
