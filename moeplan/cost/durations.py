"""Predicted seconds of every kind of operation of a plan, and the same per operation of its program.

Routing is balanced: every expert receives the same number of rows. Pieces with the same work and the same ranks share
one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from moeplan.batch import Batch, sequences
from moeplan.cost import Cost, compute
from moeplan.cost import communication as network
from moeplan.cost.patterns import blocks
from moeplan.errors import SpecError
from moeplan.layout import Position, StageGraph
from moeplan.plan import Duration
from moeplan.program import Program, receives, text_of
from moeplan.resources.memory import replica_parameters
from moeplan.resources.traffic import edge_bytes, residual_bytes, split_elements
from moeplan.resources.work import ELEMENT_BYTES, Load, backward, forward
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case
from moeplan.spec.model import is_dense, window_of
from moeplan.spec.workload import gradient_bytes
from moeplan.topology.routes import Fabric

Loads = Sequence[Load]
"""[position]: what one rank of each position has to do for one micro-batch."""


LONGEST_S = 1e8
"""No operation takes longer: three years, and nanoseconds stay exact."""


class Machine(NamedTuple):
    """Where seconds come from: routes and links, and how much of them and of the GPUs is reached."""

    fabric: Fabric
    calibration: Calibration


def loads(case: Case, graph: StageGraph, batch: Batch, microbatch: int) -> list[Load]:
    """The load of the busiest rank of each position for `microbatch`."""
    busiest = max(len(sequences(batch, microbatch, shard)) for shard in (0, batch.shards - 1))
    tokens = busiest * case.workload.seq_len / graph.cp
    per_copy = len(graph.positions[0].ranks[0]) // graph.tp
    return [_load(case, graph, position, tokens, per_copy) for position in graph.positions]


def _load(case: Case, graph: StageGraph, position: Position, tokens: int, shards: int) -> Load:
    model = case.model
    local = model.experts / graph.ep
    if position.spread == "sequence":
        rows = tokens * model.top_k * graph.etp / graph.tp
        return Load(tokens, rows, graph.tp, graph.etp, local)
    share = tokens * shards / len(position.ranks[0])
    return Load(share, share * model.top_k, 1, 1, local)


def predict(case: Case, graph: StageGraph, batch: Batch, machine: Machine) -> tuple[Duration, ...]:
    """Seconds of each kind of operation, for a full and for the last micro-batch."""
    full, last = loads(case, graph, batch, 0), loads(case, graph, batch, batch.microbatches - 1)
    pricing = _Pricing(case, graph, machine)
    entries = [*_compute_entries(pricing, full, last), *_edge_entries(pricing, full, last), *_sync_entries(pricing)]
    return tuple(sorted(entries, key=lambda d: (d.pieces, d.kind, d.phase)))


class _Pricing(NamedTuple):
    case: Case
    graph: StageGraph
    machine: Machine


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


def _compute_entries(pricing: _Pricing, full: Loads, last: Loads) -> list[Duration]:
    case, graph, _ = pricing
    alike: dict[tuple[str, bool, int, int], list[int]] = {}
    for number, piece in enumerate(graph.pieces):
        moe = piece.layer < case.model.num_layers and not is_dense(case.model, piece.layer)
        window = window_of(case.model, piece.layer) if piece.kind == "attention" else 0
        alike.setdefault((piece.kind, moe, window, graph.stages[piece.stage][0]), []).append(number)
    entries = []
    for (kind, moe, window, position), pieces in alike.items():
        for direction in ("F", "B"):
            inside = _twice(
                lambda at: _tensor_parallel(pricing, kind, moe, position, at[position], direction),  # noqa: B023
                full,
                last,
            )
            costs = _twice(lambda at: _piece(pricing, kind, moe, window, at[position], direction), full, last)  # noqa: B023
            first, last_one = (Cost(a.seconds + b.seconds, a.source) for a, b in zip(costs, inside, strict=True))
            entries.append(_entry(direction, direction, pieces, first, last_one, inside[0].seconds))
    return entries


def _piece(pricing: _Pricing, kind: str, moe: bool, window: int, load: Load, direction: str) -> Cost:
    case = pricing.case
    seq_len, dtype = case.workload.seq_len, case.workload.dtype
    work = forward(case.model, kind, load, seq_len=seq_len, dtype=dtype, moe=moe, window=window)
    work = work if direction == "F" else backward(work)
    return compute.seconds(work, case.cluster.gpu, pricing.machine.calibration, dtype)


def _tensor_parallel(pricing: _Pricing, kind: str, moe: bool, position: int, load: Load, direction: str) -> Cost:
    """All-gathers and reduce-scatters of the rows around tensor-parallel blocks, on their critical path."""
    graph = pricing.graph
    degree = graph.etp if kind == "experts" else graph.tp
    passed = split_elements(pricing.case.model, kind, direction, moe=moe)
    if degree == 1 or not passed:
        return Cost(0.0, "roofline")
    groups = blocks(graph.positions[position].ranks, degree)
    rows = load.rows if kind == "experts" else load.tokens
    size = rows * ELEMENT_BYTES[pricing.case.workload.dtype]
    costs = [network.all_gather(*pricing.machine, groups, elements * size) for elements in passed]
    return Cost(sum(cost.seconds for cost in costs), costs[0].source)


def _edge_entries(pricing: _Pricing, full: Loads, last: Loads) -> list[Duration]:
    graph = pricing.graph
    alike: dict[tuple[str, str, int, int, bool], list[int]] = {}
    for number, edge in enumerate(graph.edges):
        if edge.kind != "local":
            ends = graph.pieces[number], graph.pieces[number + 1]
            here, there = (graph.stages[p.stage][0] for p in ends)
            dense = "dense" in (ends[0].kind, ends[1].kind)
            alike.setdefault((edge.kind, edge.algorithm, here, there, dense), []).append(number)
    entries = []
    for (kind, *_), edges in alike.items():
        for direction in ("F", "B"):
            costs = _twice(lambda at: _edge(pricing, edges[0], direction, at), full, last)  # noqa: B023
            entries.append(_entry(kind, direction, edges, *costs))
    return entries


def _edge(pricing: _Pricing, edge: int, direction: str, at: Loads) -> Cost:
    case, graph, machine = pricing
    ends = [graph.stages[graph.pieces[i].stage][0] for i in (edge, edge + 1)]
    source, target = ends if direction == "F" else ends[::-1]
    ranks = [graph.positions[p].ranks for p in (source, target)]
    size = edge_bytes(case.model, graph, edge, direction, at[source], dtype=case.workload.dtype)
    kind, algorithm = graph.edges[edge].kind, graph.edges[edge].algorithm
    if kind in ("dispatch", "combine"):
        return network.all_to_all(*machine, _expert_groups(graph, source), size)
    if kind == "send":
        pairs = [pair for a, b in zip(*ranks, strict=True) for pair in zip(a, b, strict=True)]
        return network.point_to_point(*machine, pairs, size)
    if algorithm == "deduplicated":
        attention, ffn = ends if kind == "m2n" else ends[::-1]
        load, dtype = at[attention], case.workload.dtype
        carried = residual_bytes(case.model, graph, edge, load, dtype=dtype) if kind == "m2n" else 0.0
        rows = edge_bytes(case.model, graph, edge, direction, load, dtype=dtype) - carried
        sides = graph.positions[attention].ranks, graph.positions[ffn].ranks
        return network.many_to_many(*machine, sides[0], sides[1], rows, case.model.top_k, carried)
    return network.many_to_many(*machine, ranks[0], ranks[1], size)


def _expert_groups(graph: StageGraph, position: int) -> list[tuple[int, ...]]:
    """Ranks that exchange rows: those of one block of etp * ep with the same expert-tensor-parallel index."""
    block = graph.etp * graph.ep
    return [
        group[start + j : start + block : graph.etp]
        for group in graph.positions[position].ranks
        for start in range(0, len(group), block)
        for j in range(graph.etp)
    ]


def _sync_entries(pricing: _Pricing) -> list[Duration]:
    case, graph, machine = pricing
    memory, gpu = case.memory, case.cluster.gpu
    moved = 2 * memory.optimizer_bytes + gradient_bytes(memory) + memory.weight_bytes
    entries, state_bytes = [], [0.0] * len(graph.positions)
    for number, replica in enumerate(graph.replicas):
        held = [replica_parameters(case.model, graph, replica, p) for p in replica.positions]
        for position, parameters in zip(replica.positions, held, strict=True):
            shards = len(replica.groups[0]) if replica.sharded else 1
            state_bytes[position] += parameters / shards * moved
        gradients, weights = max(held) * gradient_bytes(memory), max(held) * memory.weight_bytes
        if replica.sharded:
            scatter = network.reduce_scatter(*machine, replica.groups, gradients)
            gather = network.all_gather(*machine, replica.groups, weights)
            entries += [_entry("reduce_scatter", "S", [number], scatter, scatter)]
            entries += [_entry("all_gather", "S", [number], gather, gather)]
        else:
            reduce = network.all_reduce(*machine, replica.groups, gradients)
            entries += [_entry("all_reduce", "S", [number], reduce, reduce)]
    slowest = max(state_bytes) / (gpu.hbm_bytes_per_s * machine.calibration.hbm)
    step = Cost(slowest + machine.calibration.kernel_s, "roofline")
    return [*entries, _entry("optimizer", "S", [-1], step, step)]


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
