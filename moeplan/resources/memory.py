"""HBM bytes of each position: parameters with their gradients and optimizer state, and activations over the schedule.

Static bytes count what a rank holds; activations are folded over the schedule text: a forward adds what its stage
keeps, its backward takes it away, and while it runs it needs what it recomputes. Left out: allocator fragmentation,
communicators and kernel workspaces, for which `memory.usable` keeps a share of the HBM back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from moeplan.layout import Piece, Recompute, Replica, StageGraph, experts_of, pieces_of
from moeplan.program import keeps
from moeplan.resources import parameters as count
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.schedule import Step, Steps
from moeplan.spec.case import Case
from moeplan.spec.model import ModelSpec, is_dense
from moeplan.spec.workload import gradient_bytes


def replica_parameters(model: ModelSpec, graph: StageGraph, replica: Replica, position: int) -> float:
    """Parameters of the class `replica` that one rank at `position` holds."""
    here = [p for i, p in enumerate(graph.pieces) if position in graph.stages[p.stage]]
    if replica.parameters == "embedding":
        return count.embedding_parameters(model) / graph.tp
    if replica.parameters == "ffn_norm":
        other = {q for q in replica.positions if q != position}
        return sum(count.norm_parameters(model) for _ in _shared_norms(graph, position, other))
    if replica.parameters == "experts":
        held = len(experts_of(model, graph, 0))
        return sum(held * count.expert_parameters(model) / graph.etp for p in here if p.kind == "experts")
    return sum(_dense_parameters(model, graph, i) for i, p in enumerate(graph.pieces) if p in here)


def _shared_norms(graph: StageGraph, position: int, others: set[int]) -> list[int]:
    """Experts pieces whose norm is applied on both sides of an M2N between `position` and one of `others`."""
    result = []
    for i, piece in enumerate(graph.pieces):
        if piece.kind == "experts" and graph.edges[i - 1].kind == "m2n":
            ends = {graph.stages[graph.pieces[i - 1].stage][0], graph.stages[piece.stage][0]}
            if position in ends and ends & others:
                result.append(i)
    return result


def _dense_parameters(model: ModelSpec, graph: StageGraph, number: int) -> float:
    piece = graph.pieces[number]
    if piece.kind == "attention":
        norms = count.norm_parameters(model)
        total = _attention_parameters(model, graph.tp)
        if is_dense(model, piece.layer):
            return total
        total += count.router_parameters(model) + count.shared_parameters(model) / graph.tp
        return total if graph.edges[number].kind == "m2n" else total + norms
    if piece.kind == "dense":
        return count.norm_parameters(model) + count.dense_parameters(model) / graph.tp
    if piece.kind == "head":
        return count.norm_parameters(model) + count.head_parameters(model) / graph.tp
    return 0.0


def _attention_parameters(model: ModelSpec, tp: int) -> float:
    """Attention on one of `tp` ranks: norms whole on each, keys and values whole where heads are fewer than ranks."""
    shape = model.attention
    keys = 2 * model.hidden * shape.kv_heads * shape.head_dim
    whole = count.norm_parameters(model) + (2 * shape.head_dim if shape.qk_norm else 0)
    return whole + (count.attention_parameters(model) - whole - keys) / tp + keys / min(tp, shape.kv_heads)


def static_bytes(case: Case, graph: StageGraph, position: int) -> float:
    """Bytes of weights, gradients and optimizer state of one rank at `position`.

    Per parameter: weight + gradient + optimizer / shards, shards = ranks that hold the same parameter (or what
    `memory.optimizer_shards` says).
    """
    memory = case.memory
    total = 0.0
    for replica in graph.replicas:
        if position in replica.positions:
            shards = memory.optimizer_shards or (len(replica.groups[0]) if replica.sharded else 1)
            each = memory.weight_bytes + gradient_bytes(memory) + memory.optimizer_bytes / shards
            total += each * replica_parameters(case.model, graph, replica, position)
    return total


class Kept(NamedTuple):
    """Bytes of one piece and micro-batch on one rank."""

    alive: float
    """From the forward to the backward."""
    transient: float
    """More while the backward runs: what is recomputed, and the incoming gradient."""


def piece_bytes(case: Case, piece: Piece, recompute: Recompute, load: Load) -> Kept:
    """What `piece` keeps for its backward, and what its backward needs beside.

    A piece that is recomputed keeps its input, or nothing.
    """
    model, size = case.model, ELEMENT_BYTES[case.workload.dtype]
    everything = size * _activation_elements(case, piece, load)
    kept = keeps(piece, recompute)
    gradient = size * model.hidden * (load.rows if piece.kind == "experts" else load.tokens / load.tp)
    if piece.kind == "head":
        gradient += (size + 4) * load.tokens * model.vocab / load.tp
    if kept == "activations":
        return Kept(everything, gradient)
    return Kept(gradient if kept == "input" else 0.0, everything + gradient)


def _activation_elements(case: Case, piece: Piece, load: Load) -> float:
    """Elements that autograd keeps of a piece, and its outputs, which stay until its backward.

    Per token of attention: input, its norm, the residual after it, q, k, v and the attention output (FlashAttention
    keeps no scores), q and k once more before a QK norm; before experts the norm, the router's scores and the shared
    experts' inner values. Per row of experts: the row, its copy in the order of experts (or its norm's, where the
    residual rides), gate, silu(gate), up and their product, the output before and after the gate weight. Dense: input,
    norm, inner values, output. Head: its input, the norm and fp32 log-probabilities. A norm keeps its input and one
    number per token (fused). Left out: integers that travel with rows, dropout masks.
    """
    model = case.model
    hidden, tokens, tp = model.hidden, load.tokens, load.tp
    if piece.kind == "attention":
        shape = model.attention
        queries = shape.heads * shape.head_dim / tp
        keys = shape.kv_heads * shape.head_dim / min(tp, shape.kv_heads)
        total = tokens * (3 * hidden / tp + (2 + shape.qk_norm) * queries + (2 + shape.qk_norm) * keys)
        if not is_dense(model, piece.layer):
            total += tokens * (hidden / tp + 2 * model.experts / tp)
            total += 4 * tokens * model.shared_experts * model.expert_width / tp
        return total
    if piece.kind == "experts":
        return load.rows * (4 * hidden + 4 * model.expert_width / load.etp)
    if piece.kind == "dense":
        return tokens * (3 * hidden / tp + 4 * model.dense_width / tp)
    if piece.kind == "head":
        return tokens * (2 * hidden / tp + 4 / ELEMENT_BYTES[case.workload.dtype] * model.vocab / tp)
    return 0.0


def peak_activation_bytes(
    case: Case, graph: StageGraph, steps: Steps, recompute: Recompute, loads: Sequence[Load]
) -> list[float]:
    """Most activation bytes at once of one rank at each position, folded over the schedule; `loads` per position.

    Transfers in flight: one row buffer of the largest edge that touches the position, on each side.
    """
    kept = []
    for stage, homes in enumerate(graph.stages):
        load = loads[homes[0]]
        pieces = [graph.pieces[i] for i in pieces_of(graph, stage)]
        kept.append(_together(pieces, [piece_bytes(case, piece, recompute, load) for piece in pieces], recompute))
    return [
        _peak(row, kept) + 2 * _largest_buffer(case, graph, position, loads[position])
        for position, row in enumerate(steps)
    ]


def _together(pieces: Sequence[Piece], parts: Sequence[Kept], recompute: Recompute) -> Kept:
    """What a stage keeps; its backward needs one piece's transient at a time.

    Where rows are dispatched again, the recomputed attention before them is there too.
    """
    transient = [part.transient for part in parts]
    for before, piece in pairwise(range(len(pieces))):
        again = keeps(pieces[before], recompute) != "activations"
        if keeps(pieces[piece], recompute) == "nothing" and again:
            transient[piece] += parts[before].transient
    return Kept(sum(part.alive for part in parts), max(transient))


def _peak(row: Sequence[Step], kept: Sequence[Kept]) -> float:
    """Most bytes at once: F adds what its stage keeps, B and W take it away, every backward needs its transient."""
    actions = [action for step in row for action in step]
    stages = np.array([action.stage for action in actions])
    kinds = np.array([action.kind for action in actions])
    alive, transient = (np.array(part)[stages] for part in zip(*kept, strict=True))
    before = np.concatenate(([0.0], np.cumsum(np.where(kinds == "F", alive, np.where(kinds == "I", 0.0, -alive)))))
    during = np.where(kinds == "F", alive, transient)
    return float((before[:-1] + during).max())


def _largest_buffer(case: Case, graph: StageGraph, position: int, load: Load) -> float:
    here = [
        edge_bytes(case.model, graph, i, "F", load, dtype=case.workload.dtype)
        for i in range(len(graph.edges))
        if position in graph.stages[graph.pieces[i].stage] + graph.stages[graph.pieces[i + 1].stage]
    ]
    return max(here, default=0.0)
