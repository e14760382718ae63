"""What one candidate would cost: memory from its schedule, seconds from its simulated program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from moeplan.cost.compute import peak_flop_per_s
from moeplan.cost.durations import Machine, loads, per_operation, settle
from moeplan.cost.edges import Allowed
from moeplan.cost.exchange import ALGORITHMS, Algorithm
from moeplan.plan import Duration, Plan, Predictions, is_stale, lowered, schedule_digest, signed, steps_of, world_size
from moeplan.program import Program
from moeplan.resources.memory import (
    Track,
    has_spare,
    most_spare,
    peak_activation_bytes,
    spare,
    static_bytes,
    tracks,
)
from moeplan.resources.work import model_flop_per_token
from moeplan.schedule import Steps
from moeplan.simulate import Timeline, metrics, run
from moeplan.simulate.demands import demands
from moeplan.spec.case import Case
from moeplan.spec.cluster import domain_of, num_ranks


class Footprint(NamedTuple):
    """HBM bytes of one rank at each position."""

    static: tuple[float, ...]
    peak: tuple[float, ...]


def footprint(plan: Plan, steps: Steps) -> Footprint:
    """Static bytes, and with activations of `steps`, the schedule of `plan`, the peak, per position."""
    case, graph = plan.case, plan.graph
    static = [static_bytes(case, graph, p) for p in range(len(graph.positions))]
    full = loads(case, graph, plan.batch, 0)
    alive = peak_activation_bytes(case, graph, tracks(steps), plan.recompute, full)
    return Footprint(tuple(static), tuple(s + a for s, a in zip(static, alive, strict=True)))


def usable_bytes(case: Case) -> float:
    """HBM of one GPU that may be planned with."""
    return case.cluster.gpu.hbm_bytes * case.memory.usable


def fitted(plan: Plan, machine: Machine, order: Sequence[Track]) -> Plan:
    """`plan` with its exchanges settled, `order` being that of its schedule: the fastest ones whose buffers fit.

    At a position that would exceed the usable HBM, algorithms with as much spare as those that were named there are
    ruled out, until it fits. Where no buffers are little enough, they are not what is too much: the fastest stay.
    """
    allowed: dict[int, tuple[Algorithm, ...]] = {}
    fastest = found = settle(plan, machine)
    if plan.case.execution.exchange != "fastest" or not has_spare(found.graph):
        return found
    while full := _too_full(found, order):
        less = _leaner(found, full, allowed)
        if not less:
            return fastest
        allowed |= less
        found = settle(plan, machine, allowed)
    return found


def _too_full(plan: Plan, order: Sequence[Track]) -> list[int]:
    """The positions of `plan` that exceed the usable HBM."""
    at = loads(plan.case, plan.graph, plan.batch, 0)
    alive = peak_activation_bytes(plan.case, plan.graph, order, plan.recompute, at)
    limit = usable_bytes(plan.case)
    return [p for p, more in enumerate(alive) if static_bytes(plan.case, plan.graph, p) + more > limit]


def _leaner(plan: Plan, full: Sequence[int], allowed: Allowed) -> dict[int, tuple[Algorithm, ...]]:
    """The algorithms with less spare than those named, at the positions `full` that have others."""
    less: dict[int, tuple[Algorithm, ...]] = {}
    for position in full:
        for first, most in most_spare(plan.graph, position).items():
            left = tuple(name for name in allowed.get(first, ALGORITHMS) if spare(name, 2) < most)
            less |= {first: left} if left else {}
    return less


def evaluate(plan: Plan, steps: Steps) -> Plan:
    """`plan`, which has its durations, with predictions from the simulation of `steps`, its schedule."""
    program = lowered(plan, steps)
    told = predictions(plan, steps, program, simulate(plan, program))
    return signed(structs.replace(plan, predictions=told))


def refreshed(plan: Plan) -> Plan:
    """`plan` with predictions for its own schedule text, where that was edited after they were made."""
    return evaluate(plan, steps_of(plan)) if is_stale(plan) else plan


def simulate(plan: Plan, program: Program) -> Timeline:
    """The timeline of one step of `plan` from its own durations, links between positions shared."""
    duration_ns = per_operation(program, plan.durations, plan.batch.microbatches)
    shared = demands(
        program,
        plan.graph,
        duration_ns,
        homes=[domain_of(plan.case.cluster, rank) for rank in range(world_size(plan))],
        latency_ns=round(plan.case.cluster.node.nic_latency_s * 1e9),
    )
    return run(program, duration_ns, transfers=shared)


def predictions(plan: Plan, steps: Steps, program: Program, timeline: Timeline) -> Predictions:
    """What `timeline` and the plan's memory say about the step."""
    case = plan.case
    use = metrics(program, timeline)
    step_s = use.step_ns / 1e9
    tokens = case.workload.global_batch * case.workload.seq_len
    flop = model_flop_per_token(case.model, case.workload.seq_len) * tokens
    peak = peak_flop_per_s(case.cluster.gpu, case.workload.dtype)
    bytes_ = footprint(plan, steps)
    inside_s = _inside(plan.durations, program, plan)
    ranks = [sum(map(len, position.ranks)) for position in plan.graph.positions]
    exposed_s = [part.exposed_ns / 1e9 + inside for part, inside in zip(use.positions, inside_s, strict=True)]
    return Predictions(
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        mfu=flop / (step_s * num_ranks(case.cluster) * peak),
        peak_flop_per_s=peak,
        model_flop=flop,
        peak_hbm_bytes=bytes_.peak,
        static_hbm_bytes=bytes_.static,
        exposed_communication_s=_mean(exposed_s, ranks),
        bubble=_mean([part.bubble_ns / use.step_ns for part in use.positions], ranks),
        spread=plan.predictions.spread,
        of_schedule=schedule_digest(plan),
    )


def _mean(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The mean over ranks of what each position has."""
    return sum(value * n for value, n in zip(values, ranks, strict=True)) / sum(ranks)


def _inside(durations: tuple[Duration, ...], program: Program, plan: Plan) -> list[float]:
    """Seconds of communication inside pieces (tensor parallelism) at each position."""
    inside = {(d.kind, d.phase, piece): d.communication_s for d in durations for piece in d.pieces if d.communication_s}
    total = [0.0] * len(plan.graph.positions)
    for op in program.ops if inside else ():
        total[op.position] += inside.get((op.kind, "F" if op.phase == "R" else op.phase, op.piece), 0.0)
    return total
