"""Seconds of one edge of the chain for one micro-batch: rows to their experts and back, or to the next stage."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import TypeAlias

import numpy as np
from msgspec import structs

from moeplan.cost import Cost
from moeplan.cost import communication as network
from moeplan.cost.exchange import ALGORITHMS, Algorithm, exchange, fastest
from moeplan.cost.exposure import exposed_experts
from moeplan.cost.patterns import Groups, side
from moeplan.cost.pricing import Loads, Machine, Pricing
from moeplan.layout import Exchange, StageGraph
from moeplan.resources.traffic import edge_bytes, residual_bytes
from moeplan.resources.work import Load
from moeplan.spec.case import Case
from moeplan.spec.model import ModelSpec


def alike_edges(graph: StageGraph) -> dict[tuple[str, str, int, int, bool], list[int]]:
    """Edge numbers by what their seconds depend on: kind, algorithm, both positions, a dense FFN at an end."""
    found: dict[tuple[str, str, int, int, bool], list[int]] = {}
    for number, edge in enumerate(graph.edges):
        if edge.kind != "local":
            ends = graph.pieces[number], graph.pieces[number + 1]
            here, there = (graph.stages[p.stage][0] for p in ends)
            dense = "dense" in (ends[0].kind, ends[1].kind)
            found.setdefault((edge.kind, edge.algorithm, here, there, dense), []).append(number)
    return found


def edge_cost(pricing: Pricing, edge: int, direction: str, at: Loads) -> Cost:
    """Seconds of `edge` in `direction`, as far as compute waits for them."""
    case, graph, machine, _ = pricing
    ends = [graph.stages[graph.pieces[i].stage][0] for i in (edge, edge + 1)]
    source, target = ends if direction == "F" else ends[::-1]
    ranks = [graph.positions[p].ranks for p in (source, target)]
    size = edge_bytes(case.model, graph, edge, direction, at[source], **row_types(case))
    kind, algorithm = graph.edges[edge].kind, graph.edges[edge].algorithm
    if kind in ("dispatch", "combine"):
        return routed_cost(
            case, machine, expert_groups(graph, source), size * (case.execution.capacity or 1.0), algorithm
        )
    if kind == "send":
        pairs = [pair for a, b in zip(*ranks, strict=True) for pair in zip(a, b, strict=True)]
        return network.point_to_point(*machine, pairs, size)
    if algorithm == "deduplicated":
        attention, ffn = ends if kind == "m2n" else ends[::-1]
        load, dtype = at[attention], case.workload.dtype
        carried = residual_bytes(case.model, graph, edge, load, dtype=dtype) if kind == "m2n" else 0.0
        rows = edge_bytes(case.model, graph, edge, direction, load, **row_types(case)) - carried
        sides = graph.positions[attention].ranks, graph.positions[ffn].ranks
        limit = limit_of(case.model, np.unique(machine.fabric.node_of(np.array(sides[1][0]))).size)
        return network.many_to_many(*machine, sides[0], sides[1], rows, case.model.top_k, carried, limit)
    return network.many_to_many(*machine, ranks[0], ranks[1], size)


def row_types(case: Case) -> dict[str, str]:
    """Element types of what edges carry, as `edge_bytes` takes them."""
    return {"dtype": case.workload.dtype, "rows": case.execution.rows}


def edge_in_step(pricing: Pricing, edge: int, direction: str, at: Loads) -> Cost:
    """As `edge_cost`, of rows on their way to experts and back at the rate that a step reaches."""
    cost = edge_cost(pricing, edge, direction, at)
    if pricing.graph.edges[edge].kind == "send":
        return cost
    return cost._replace(seconds=cost.seconds / pricing.machine.calibration.constants.expert_bandwidth)


Allowed: TypeAlias = Mapping[int, tuple[Algorithm, ...]]
"""Algorithms that edges at a position may take; where it is not named, all."""


def settled(pricing: Pricing, at: Loads, allowed: Allowed) -> StageGraph:
    """The graph with the fastest algorithm named at every edge that leaves it open: forward and backward together."""
    graph, edges = pricing.graph, list(pricing.graph.edges)
    for (kind, algorithm, here, _, _), numbers in alike_edges(graph).items():
        if kind in ("dispatch", "combine") and algorithm == "fastest":
            named = _cheapest(pricing, numbers[0], here, at[here], allowed.get(here, ALGORITHMS))
            for number in numbers:
                edges[number] = structs.replace(edges[number], algorithm=named)
    return structs.replace(graph, edges=tuple(edges))


def _cheapest(pricing: Pricing, edge: int, position: int, load: Load, among: tuple[Algorithm, ...]) -> Exchange:
    """The algorithm for a dispatch or combine inside `position` with least seconds of both directions' rows."""
    case, graph, machine, _ = pricing
    if case.execution.dispatcher != "all_to_all":
        return "flat"
    padded, groups = case.execution.capacity or 1.0, expert_groups(graph, position)
    sizes = [padded * edge_bytes(case.model, graph, edge, way, load, **row_types(case)) for way in ("F", "B")]
    return min(among, key=lambda name: sum(exchange(*machine, groups, size, name).seconds for size in sizes))


def routed_cost(case: Case, machine: Machine, groups: Groups, size: float, algorithm: str) -> Cost:
    """Dispatch or combine of `size` bytes per rank inside a position, by the dispatcher that the case names."""
    model = case.model
    nodes = np.unique(machine.fabric.node_of(side(groups).ranks[: side(groups).sizes[0]])).size
    limit = limit_of(model, nodes)
    if case.execution.dispatcher == "all_to_all":
        among = ALGORITHMS if algorithm == "fastest" else (algorithm,)
        _, cost = fastest(*machine, groups, size, among)  # type: ignore[arg-type]
    else:
        cost = network.dispatch(*machine, groups, size, model.top_k, case.execution.dispatcher, limit)
    return cost._replace(seconds=cost.seconds * exposed_experts(case, between=nodes > 1))


def limit_of(model: ModelSpec, nodes: int) -> float:
    """Nodes that a token of `model` may reach where experts lie on `nodes`; 0 where its routing knows no groups."""
    return nodes_reached(model.expert_groups, model.top_k_groups, nodes) if model.expert_groups > 1 else 0.0


def nodes_reached(groups: int, chosen: int, nodes: int) -> float:
    """Nodes on which `chosen` of a model's `groups` of experts lie, experts in order over `nodes`, groups alike.

    With g = groups / nodes on each node: nodes (1 - C(groups - g, chosen) / C(groups, chosen)); where a group lies on
    several nodes, chosen nodes / groups. Groups that are cut by a node's border are left out.
    """
    if nodes >= groups:
        return chosen * nodes / groups
    here = groups // nodes
    return nodes * (1 - comb(groups - here, chosen) / comb(groups, chosen))


def expert_groups(graph: StageGraph, position: int) -> list[tuple[int, ...]]:
    """Ranks that exchange rows: those of one block of etp * ep with the same expert-tensor-parallel index."""
    block = graph.etp * graph.ep
    return [
        group[start + j : start + block : graph.etp]
        for group in graph.positions[position].ranks
        for start in range(0, len(group), block)
        for j in range(graph.etp)
    ]
