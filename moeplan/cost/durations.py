"""Predicted seconds of every kind of operation of a plan, and the same per operation of its program.

Routing is balanced: every expert receives the same number of rows. Pieces with the same work and the same ranks share
one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from moeplan.batch import Batch
from moeplan.cost import Cost
from moeplan.cost.compute import weakest
from moeplan.cost.edges import Allowed, alike_edges, edge_in_step, settled
from moeplan.cost.exposure import outlasting, resharded
from moeplan.cost.further import further_cost
from moeplan.cost.pieces import alike, price, seconds
from moeplan.cost.pricing import Loads as Loads
from moeplan.cost.pricing import Machine as Machine
from moeplan.cost.pricing import Pricing
from moeplan.cost.pricing import loads as loads
from moeplan.cost.synchronisation import optimizer, shared
from moeplan.errors import SpecError
from moeplan.layout import Recompute, StageGraph
from moeplan.plan import Duration, Plan, tiers_in
from moeplan.program import Program, receives, text_of
from moeplan.spec.case import Case

NOTHING_AGAIN = Recompute()
ANY: Allowed = {}
TINY_S = 1e-12
"""Compute that takes no time waits for nothing."""
LONGEST_S = 1e8
"""No operation takes longer: three years, and nanoseconds stay exact."""


def settle(plan: Plan, machine: Machine, allowed: Allowed = ANY) -> Plan:
    """`plan` with the fastest way for rows at every edge that leaves it open, and the tiers of the groups that need it.

    Of those `allowed` at the edge's position, for a full micro-batch's rows; its durations are then those of `predict`.
    """
    pricing = Pricing(plan.case, plan.graph, machine, plan.recompute)
    graph = settled(pricing, loads(plan.case, plan.graph, plan.batch, 0), allowed)
    return structs.replace(plan, graph=graph, tiers=tiers_in(graph, plan.case.cluster))


def predict(
    case: Case, graph: StageGraph, batch: Batch, machine: Machine, recompute: Recompute = NOTHING_AGAIN
) -> tuple[Duration, ...]:
    """Seconds of each kind of operation, for a full and for the last micro-batch.

    Of `recompute` its modules count here, and what modules of further tokens compute again: pieces that are recomputed
    whole are operations of the program.
    """
    full, last = loads(case, graph, batch, 0), loads(case, graph, batch, batch.microbatches - 1)
    pricing = Pricing(case, graph, machine, recompute)
    work, edges = _compute_entries(pricing, full, last), _edge_entries(pricing, full, last)
    sync = _sync_entries(pricing)
    if case.memory.zero == 3 and len(graph.positions) == 1:
        work, sync = _gathered(case, work, edges, sync)
    else:
        sync = _outlasting(pricing, [*work, *edges], sync)
    entries = [*work, *edges, *sync]
    return tuple(sorted(entries, key=lambda d: (d.pieces, d.kind, d.phase)))


def _entry(
    kind: str, phase: str, pieces: Sequence[int], full: Cost, last: Cost, communication: float = 0.0
) -> Duration:
    return Duration(
        kind=kind,
        phase=phase,
        pieces=tuple(pieces),
        seconds=full.seconds,
        last_seconds=last.seconds,
        communication_s=communication,
        source=full.source,
    )


def _twice(price: Callable[[Loads], Cost], full: Loads, last: Loads) -> tuple[Cost, Cost]:
    cost = price(full)
    return cost, cost if last == full else price(last)


def _compute_entries(pricing: Pricing, full: Loads, last: Loads) -> list[Duration]:
    """Of each kind of piece; the head's with the modules that predict further tokens."""
    entries, found = [], alike(pricing.case, pricing.graph)
    for what, pieces in found.items():
        for direction in ("F", "B"):
            first = price(pricing, what, full[what.position], direction)
            other = first if last == full else price(pricing, what, last[what.position], direction)
            costs = seconds(pricing, first), seconds(pricing, other)
            if what.kind == "head":
                more = _twice(lambda at: further_cost(pricing, found, direction, at), full, last)  # noqa: B023
                costs = _both(costs[0], more[0]), _both(costs[1], more[1])
            entries.append(_entry(direction, direction, pieces, *costs, first.inside_s))
    return entries


def _both(one: Cost, other: Cost) -> Cost:
    return Cost(one.seconds + other.seconds, weakest((one.source, other.source)))


def _edge_entries(pricing: Pricing, full: Loads, last: Loads) -> list[Duration]:
    entries = []
    for (kind, *_), edges in alike_edges(pricing.graph).items():
        for direction in ("F", "B"):
            costs = _twice(lambda at: edge_in_step(pricing, edges[0], direction, at), full, last)  # noqa: B023
            entries.append(_entry(kind, direction, edges, *costs))
    return entries


def _sync_entries(pricing: Pricing) -> list[Duration]:
    step = optimizer(pricing)
    each = [_entry(one.kind, "S", [one.number], one.cost, one.cost) for one in shared(pricing)]
    return [*each, _entry("optimizer", "S", [-1], step, step)]


def _gathered(
    case: Case, work: list[Duration], edges: list[Duration], sync: list[Duration]
) -> tuple[list[Duration], list[Duration]]:
    """`work` with what it waits for where weights are gathered for each micro-batch, and `sync` without that.

    Every piece waits in proportion to its seconds; a forward that is computed again waits once more.
    """
    step = [entry for entry in sync if entry.kind == "optimizer"]
    moved = [entry for entry in sync if entry.kind != "optimizer"]
    gather = sum(entry.seconds for entry in moved if entry.kind == "all_gather")
    scatter = sum(entry.seconds for entry in moved) - gather
    whole = [_spent([*work, *edges], phase) for phase in "FB"]
    hides = [kind in case.execution.hidden for kind in ("parameters", "gradients")]
    waits = resharded(*(np.asarray(value, dtype=np.float64) for value in (*whole, gather, scatter, *hides)))
    share = {phase: float(wait) / max(_spent(work, phase), TINY_S) for phase, wait in zip("FB", waits, strict=True)}
    still = [structs.replace(entry, seconds=0.0, last_seconds=0.0) for entry in moved]
    return [_longer(entry, share[entry.phase] * entry.seconds) for entry in work], [*still, *step]


def _outlasting(pricing: Pricing, passed: Sequence[Duration], sync: Sequence[Duration]) -> list[Duration]:
    """`sync`, of gradients and parameters that travel behind compute what outlasts one micro-batch of `passed`."""
    case, graph = pricing.case, pricing.graph
    behind = {
        kind: _windows(graph, passed, phase)
        for kind, phase, hidden in (
            ("reduce_scatter", "B", "gradients"),
            ("all_reduce", "B", "gradients"),
            ("all_gather", "F", "parameters"),
        )
        if hidden in case.execution.hidden
    }
    return [
        _lasting(entry, behind[entry.kind][list(graph.replicas[entry.pieces[0]].positions)].min())
        if entry.kind in behind
        else entry
        for entry in sync
    ]


def _windows(graph: StageGraph, entries: Sequence[Duration], phase: str) -> NDArray[np.float64]:
    """Seconds of each position's pieces and of their rows' way inside it for one micro-batch [positions]."""
    found = np.zeros(len(graph.positions))
    for entry in entries:
        if entry.phase == phase and entry.kind in (phase, "dispatch", "combine"):
            for piece in entry.pieces:
                found[graph.stages[graph.pieces[piece].stage][0]] += entry.seconds
    return found


def _lasting(entry: Duration, window_s: float) -> Duration:
    left = float(outlasting(np.array(entry.seconds), np.array(window_s)))
    return structs.replace(entry, seconds=left, last_seconds=left)


def _spent(entries: Sequence[Duration], phase: str) -> float:
    return sum(entry.seconds * len(entry.pieces) for entry in entries if entry.phase == phase)


def _longer(entry: Duration, more: float) -> Duration:
    """`entry` with `more` seconds of communication."""
    longer = {name: getattr(entry, name) + more for name in ("seconds", "last_seconds", "communication_s")}
    return structs.replace(entry, **longer)


def per_operation(program: Program, durations: Sequence[Duration], microbatches: int) -> list[int]:
    """Nanoseconds of each operation; a receive takes none, its sender's time is the transfer's.

    A recomputed forward takes as long as the forward; I and W take half a backward each. SpecError for an operation
    of which `durations` know nothing.
    """
    table = {(d.kind, d.phase, piece): d for d in durations for piece in d.pieces}
    incoming = {s for s, stream in enumerate(program.streams) if receives(stream)}
    result = []
    for op in program.ops:
        if op.stream in incoming:
            result.append(0)
            continue
        kind, phase, share = op.kind, "F" if op.phase == "R" else op.phase, 1.0
        if kind in "IW":
            kind, share = "B", 0.5
        entry = table.get((kind, phase, op.piece))
        if entry is None:
            raise SpecError(f"durations: {text_of(op)} has none; an entry {kind}, {phase} with piece {op.piece} is due")
        seconds = entry.last_seconds if op.microbatch == microbatches - 1 else entry.seconds
        if not 0 <= seconds < LONGEST_S:
            raise SpecError(f"durations: {text_of(op)} takes {seconds:g} s; 0 to {LONGEST_S:g} s can be simulated")
        result.append(round(seconds * share * 1e9))
    return result
