"""The bytes that a layout moves between its ranks in one step, whichever nodes they are on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from moeplan.cost.edges import alike_edges, expert_groups, limit_of, row_types
from moeplan.cost.patterns import (
    Groups,
    Side,
    Transfers,
    blocks,
    by_node,
    copies,
    ends,
    every_pair,
    ring,
    routed,
    side,
)
from moeplan.cost.pieces import alike, context_groups
from moeplan.cost.pricing import Loads, loads
from moeplan.cost.synchronisation import gathered_bytes
from moeplan.layout import StageGraph
from moeplan.plan import Plan
from moeplan.resources import attention
from moeplan.resources.memory import held_parameters, pieces_at
from moeplan.resources.traffic import edge_bytes, residual_bytes, split_elements
from moeplan.resources.work import ELEMENT_BYTES
from moeplan.spec.case import Case
from moeplan.spec.model import STATE
from moeplan.spec.workload import gradient_bytes
from moeplan.topology.inside import Floats, Integers

DIRECTIONS = ("F", "B")


class Flows(NamedTuple):
    """What ranks send each other in a step, every pair once; three arrays [pairs]."""

    source: Integers
    target: Integers
    bytes: Floats


class Slots(NamedTuple):
    """Ranks in blocks of a node's GPUs."""

    gpus: int

    def node_of(self, ranks: ArrayLike, /) -> Integers:
        """The block of each of `ranks` [n]."""
        return np.asarray(ranks, dtype=np.intp) // self.gpus


def flows(plan: Plan) -> Flows:
    """Bytes from rank to rank in one step of `plan`, all micro-batches and both directions.

    Rows to experts and back, between stages, around tensor- and context-parallel blocks, gradients and weights of
    replicas, as the patterns of `cost.communication` move them. Left out: rows that are dispatched again where a piece
    is recomputed, weights that ZeRO-3 gathers for each micro-batch, all-to-alls of context-parallel mixers. Ranks of
    one node count as those of one NVLink domain.
    """
    slots = Slots(plan.case.cluster.node.gpus)
    parts = [_scaled(transfers, size) for transfers, size in _patterns(plan, slots) if size > 0]
    if not parts:
        return Flows(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0))
    source, target, sent = (np.concatenate(part) for part in zip(*parts, strict=True))
    ranks = int(max(source.max(initial=0), target.max(initial=0))) + 1
    pair, number = np.unique(source * ranks + target, return_inverse=True)
    total = np.asarray(np.bincount(number, sent, minlength=pair.size), dtype=np.float64)
    moving = (total > 0) & (pair // ranks != pair % ranks)
    return Flows(pair[moving] // ranks, pair[moving] % ranks, total[moving])


def _scaled(transfers: Transfers, size: float) -> Flows:
    return Flows(transfers.source, transfers.target, transfers.share * size)


def _patterns(plan: Plan, slots: Slots) -> Iterator[tuple[Transfers, float]]:
    """Every pattern with the bytes of a step that it is for."""
    case, graph, batch = plan.case, plan.graph, plan.batch
    full, last = loads(case, graph, batch, 0), loads(case, graph, batch, batch.microbatches - 1)
    at = [(full, batch.microbatches - 1), (last, 1)]
    yield from _edges(case, graph, at, slots)
    yield from _inside(case, graph, at, slots)
    yield from _replicas(case, graph, slots)


def _edges(
    case: Case, graph: StageGraph, at: Sequence[tuple[Loads, int]], slots: Slots
) -> Iterator[tuple[Transfers, float]]:
    for (kind, algorithm, here, there, _), numbers in alike_edges(graph).items():
        for direction in DIRECTIONS:
            for load, times in at:
                ends_ = (here, there) if direction == "F" else (there, here)
                size = edge_bytes(case.model, graph, numbers[0], direction, load[ends_[0]], **row_types(case))
                times_ = times * len(numbers)
                if kind in ("dispatch", "combine"):
                    for transfers, share in _routed(case, graph, here, slots):
                        yield transfers, share * size * (case.execution.capacity or 1.0) * times_
                elif kind == "send":
                    yield ends(_neighbours(graph, *ends_)), size * times_
                elif algorithm == "deduplicated":
                    sides = (here, there) if kind == "m2n" else (there, here)
                    for transfers in _once_a_node(case, graph, numbers[0], direction, load, sides, slots):
                        yield transfers, times_
                else:
                    sources, targets = (side(graph.positions[p].ranks) for p in ends_)
                    yield every_pair(sources, targets), size * times_


def _neighbours(graph: StageGraph, source: int, target: int) -> Side:
    """Rank i of the one position beside rank i of the other, in every copy."""
    pairs = zip(graph.positions[source].ranks, graph.positions[target].ranks, strict=True)
    return side([pair for a, b in pairs for pair in zip(a, b, strict=True)])


def _routed(case: Case, graph: StageGraph, position: int, slots: Slots) -> list[tuple[Transfers, float]]:
    """What the dispatcher moves for a rank's copies, as a share of their bytes."""
    groups, model = side(expert_groups(graph, position)), case.model
    match case.execution.dispatcher:
        case "all_to_all":
            return [(every_pair(groups, groups), 1.0)]
        case "all_gather":
            return [(ring(slots, by_node(slots, groups)), int(groups.sizes.max(initial=1)) / model.top_k)]
        case _:
            nodes = np.unique(slots.node_of(groups.ranks[: groups.sizes[0]])).size
            return [(transfers, 1.0) for transfers in routed(slots, groups, model.top_k, limit_of(model, nodes))]


def _once_a_node(
    case: Case, graph: StageGraph, edge: int, direction: str, load: Loads, sides: tuple[int, int], slots: Slots
) -> tuple[Transfers, ...]:
    """M2N or N2M whose copies for one node cross once, in bytes; the way back is the way there turned round."""
    attention_, dtype, there = load[sides[0]], case.workload.dtype, graph.edges[edge].kind == "m2n"
    carried = residual_bytes(case.model, graph, edge, attention_, dtype=dtype) if there else 0.0
    rows = edge_bytes(case.model, graph, edge, direction, attention_, **row_types(case)) - carried
    sources, targets = (side(graph.positions[p].ranks) for p in sides)
    limit = limit_of(case.model, np.unique(slots.node_of(targets.ranks[: targets.sizes[0]])).size)
    phases = copies(slots, sources, targets, (rows, carried), case.model.top_k, limit)
    if there == (direction == "F"):
        return phases
    return tuple(phase._replace(source=phase.target, target=phase.source) for phase in phases)


def _inside(
    case: Case, graph: StageGraph, at: Sequence[tuple[Loads, int]], slots: Slots
) -> Iterator[tuple[Transfers, float]]:
    """Rows around tensor-parallel blocks; keys and values of context-parallel ranks, thrice: their gradients go too."""
    element = ELEMENT_BYTES[case.workload.dtype]
    for what, numbers in alike(case, graph).items():
        degree = graph.etp if what.kind == "experts" else graph.tp
        passed = sum(sum(split_elements(case.model, what.kind, way, moe=what.moe)) for way in DIRECTIONS)
        for load, times in ((one[what.position], times * len(numbers)) for one, times in at):
            if degree > 1 and passed:
                rows = load.rows if what.kind == "experts" else load.tokens
                yield (
                    _ring(slots, blocks(graph.positions[what.position].ranks, degree)),
                    rows * element * passed * times,
                )
            if graph.cp > 1 and what.kind == "attention" and what.window != STATE:
                widths = attention.core(case.model, load.tp)
                buffer = load.tokens * graph.cp * (widths.keys + widths.values) * element
                yield _ring(slots, context_groups(graph, what.position)), 3 * buffer * times


def _replicas(case: Case, graph: StageGraph, slots: Slots) -> Iterator[tuple[Transfers, float]]:
    """Gradients summed, and weights or sums brought back, over the rings of every replica."""
    here = pieces_at(graph)
    for replica in graph.replicas:
        held = max(held_parameters(case, graph, replica, p, here[p]) for p in replica.positions)
        back = gathered_bytes(case) if replica.sharded else gradient_bytes(case.memory)
        yield _ring(slots, replica.groups), held * (gradient_bytes(case.memory) + back)


def _ring(slots: Slots, groups: Groups) -> Transfers:
    return ring(slots, by_node(slots, side(groups)))
