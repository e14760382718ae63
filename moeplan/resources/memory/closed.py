"""Memory of pipelines whose order nobody makes here, in closed form from what each stage keeps of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.assembly import assemble
from moeplan.errors import SpecError
from moeplan.layout import Recompute, StageGraph
from moeplan.resources.memory.need import needs
from moeplan.resources.memory.state import state_bytes
from moeplan.resources.work import Load
from moeplan.spec.case import Case

CLOSED = ("zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipe")
IN_V = ("zbv", "v-half", "v-min")
"""Schedules in which position r has the half stages r and 2 p - 1 - r."""


def alive(schedule: str, position: int, positions: int, microbatches: int) -> dict[int, float]:
    """Most micro-batches of each stage that `position` keeps at once, by stage; at most `microbatches` of each.

    ZB-H1: p - r, as 1F1B; ZB-H2: 2 (p - r) - 1 (Zero Bubble, arXiv 2401.10241, section 3). In a V of half stages (arXiv
    2405.15362, section 3) every position keeps as much: ZB-V p, V-Half (p + 2) / 2, V-Min (p + 4) / 3, rounded down, of
    its two halves together, each in proportion to how long the pipeline takes from it to the end and back.
    DualPipe: p + 1, p - r of its own stage and r + 1 of the stage opposite (README of deepseek-ai/DualPipe). Left out:
    what waits for a weight gradient that is computed later. SpecError for another schedule.
    """
    p, r = positions, position
    opposite = p - 1 - r
    if schedule in IN_V:
        whole = {"zbv": p, "v-half": (p + 2) // 2, "v-min": (p + 4) // 3}[schedule]
        waits = {s: (4 * p - 1 - 2 * s) / (2 * p) for s in (r, 2 * p - 1 - r)}
        return {s: min(float(microbatches), min(whole, p) * share) for s, share in waits.items()}
    counts = {"zb-h1": {r: p - r}, "zb-h2": {r: 2 * (p - r) - 1}, "dualpipe": {r: p - r}}
    if schedule not in counts:
        raise SpecError(f"schedule {schedule!r} has no closed form of memory; right is one of {', '.join(CLOSED)}")
    if schedule == "dualpipe":
        both = {r: float(p + 1)} if opposite == r else {r: float(p - r), opposite: float(r + 1)}
        return {s: min(float(microbatches), count) for s, count in both.items()}
    return {s: float(min(microbatches, count)) for s, count in counts[schedule].items()}


def in_v(case: Case, graph: StageGraph) -> StageGraph:
    """`graph`, which has two virtual stages per position, with its second half running back: 0 1 2 3 3 2 1 0."""
    p, model = len(graph.positions), case.model
    layers = {piece.layer: piece.stage for piece in graph.pieces if piece.kind == "attention"}
    return assemble(
        model,
        positions=graph.positions,
        stages=[(s if s < p else 2 * p - 1 - s,) for s in range(2 * p)],
        stage_of=lambda layer, side: layers[layer],
        tp=graph.tp,
        cp=graph.cp,
        etp=graph.etp,
        ep=graph.ep,
        sharded=case.memory.optimizer_shards != 1 and case.memory.zero > 0,
    )


def closed_peaks(
    case: Case, graph: StageGraph, schedule: str, recompute: Recompute, loads: Sequence[Load], microbatches: int
) -> list[float]:
    """Most bytes at once of one rank at each position, its state included.

    State + sum over its stages of micro-batches alive x what one keeps + the fullest moment of one backward. DualPipe
    holds weights and gradients of two stages; its ranks share optimizer states with those of the position opposite.
    """
    stages, p = needs(case, graph, recompute, loads), len(graph.positions)
    result = []
    for position in range(p):
        counts = alive(schedule, position, p, microbatches)
        kept = sum(count * stages[s].alive for s, count in counts.items())
        result.append(closed_static_bytes(case, graph, schedule, position) + kept + max(stages[s].most for s in counts))
    return result


def closed_static_bytes(case: Case, graph: StageGraph, schedule: str, position: int) -> float:
    """Bytes of state of one rank at `position`, as `closed_peaks` counts them."""
    own = state_bytes(case, graph, position)
    if schedule != "dualpipe":
        return sum(own)
    other = state_bytes(case, graph, len(graph.positions) - 1 - position)
    divided = 2 if case.memory.zero and case.memory.optimizer_shards != 1 else 1
    states = own.main + own.optimizer + other.main + other.optimizer
    return sum(own) + sum(other) - states + states / divided
