"""HBM bytes of each position: parameters with their gradients and optimizer state, and activations over the schedule.

Static bytes count what a rank holds; activations are folded over the schedule text: a forward adds what its stage
keeps, its backward takes it away, and while it runs it needs what it recomputes. Left out: allocator fragmentation,
communicators and kernel workspaces, for which `memory.usable` keeps a share of the HBM back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.layout import Piece, Recompute, Replica, StageGraph, experts_of, pieces_of
from moeplan.program import keeps
from moeplan.resources import attention
from moeplan.resources import parameters as count
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.schedule import Steps
from moeplan.spec.case import Case
from moeplan.spec.model import ModelSpec, is_dense, shared_width
from moeplan.spec.workload import gradient_bytes


def replica_parameters(model: ModelSpec, graph: StageGraph, replica: Replica, position: int) -> float:
    """Parameters of the class `replica` that one rank at `position` holds."""
    here = [i for i, p in enumerate(graph.pieces) if position in graph.stages[p.stage]]
    if replica.parameters == "embedding":
        return count.embedding_parameters(model) / graph.tp
    if replica.parameters == "ffn_norm":
        other = {q for q in replica.positions if q != position}
        return sum(count.norm_parameters(model) for _ in _shared_norms(graph, position, other))
    if replica.parameters == "experts":
        held = len(experts_of(model, graph, 0))
        each = count.ffn_share(model, model.expert_width, graph.etp)
        return held * each * sum(graph.pieces[i].kind == "experts" for i in here)
    alike = Counter((graph.pieces[i].kind, is_dense(model, graph.pieces[i].layer), _leaves(graph, i)) for i in here)
    return sum(number * _dense_parameters(model, graph.tp, *kind) for kind, number in alike.items())


def _shared_norms(graph: StageGraph, position: int, others: set[int]) -> list[int]:
    """Experts pieces whose norm is applied on both sides of an M2N between `position` and one of `others`."""
    result = []
    for i, piece in enumerate(graph.pieces):
        if piece.kind == "experts" and graph.edges[i - 1].kind == "m2n":
            ends = {graph.stages[graph.pieces[i - 1].stage][0], graph.stages[piece.stage][0]}
            if position in ends and ends & others:
                result.append(i)
    return result


def _leaves(graph: StageGraph, piece: int) -> bool:
    """Whether the rows of `piece` go over an M2N."""
    return piece < len(graph.edges) and graph.edges[piece].kind == "m2n"


def _dense_parameters(model: ModelSpec, tp: int, kind: str, dense: bool, leaves: bool) -> float:
    """Parameters of one piece without routed experts and embedding; `leaves`: over an M2N, as does its norm."""
    norm = count.norm_parameters(model)
    if kind == "attention" and dense:
        return count.attention_share(model, tp)
    if kind == "attention":
        shared = count.shared_share(model, tp)
        return count.attention_share(model, tp) + count.router_parameters(model) + shared + (0 if leaves else norm)
    if kind == "dense":
        return norm + count.ffn_share(model, model.dense_width, tp)
    return norm + count.head_parameters(model) / tp if kind == "head" else 0.0


class State(NamedTuple):
    """Bytes of the parameters of one rank and what belongs to them."""

    weights: float
    gradients: float
    optimizer: float


class Live(NamedTuple):
    """Bytes of one rank at the moment of a step when they are most."""

    activations: float
    """Kept from forwards for their backwards."""
    working: float
    """What the running backward needs beside: recomputed activations and the incoming gradient."""
    buffers: float
    """Rows in flight."""


def state_bytes(case: Case, graph: StageGraph, position: int) -> State:
    """Bytes of weights, gradients and optimizer state of one rank at `position`.

    Per parameter: weight + gradient + optimizer / shards, shards = ranks that hold the same parameter (or what
    `memory.optimizer_shards` says).
    """
    memory = case.memory
    held = states = 0.0
    for replica in graph.replicas:
        if position in replica.positions:
            shards = memory.optimizer_shards or (len(replica.groups[0]) if replica.sharded else 1)
            parameters = replica_parameters(case.model, graph, replica, position)
            held, states = held + parameters, states + parameters / shards
    return State(held * memory.weight_bytes, held * gradient_bytes(memory), states * memory.optimizer_bytes)


def static_bytes(case: Case, graph: StageGraph, position: int) -> float:
    """Bytes of weights, gradients and optimizer state of one rank at `position` together."""
    return sum(state_bytes(case, graph, position))


class Kept(NamedTuple):
    """Bytes of one piece and micro-batch on one rank."""

    alive: float
    """From the forward to the backward."""
    transient: float
    """More while the backward runs: what is recomputed, and the incoming gradient."""


def piece_bytes(case: Case, piece: Piece, recompute: Recompute, load: Load) -> Kept:
    """What `piece` keeps for its backward, and what its backward needs beside.

    A piece that is recomputed keeps its input, or nothing. With `memory.activations` "piper" only what Piper's terms
    count: no gradient, nothing of embedding, join and head.
    """
    model, size = case.model, ELEMENT_BYTES[case.workload.dtype]
    if case.memory.activations == "piper":
        return _piper_bytes(case, piece, recompute, load)
    everything = size * _activation_elements(case, piece, load)
    kept = keeps(piece, recompute)
    gradient = size * model.hidden * (load.rows if piece.kind == "experts" else load.tokens / load.tp)
    if piece.kind == "head":
        gradient += (size + 4) * load.tokens * model.vocab / load.tp
    if kept == "activations":
        return Kept(everything, gradient)
    return Kept(gradient if kept == "input" else 0.0, everything + gradient)


def _piper_bytes(case: Case, piece: Piece, recompute: Recompute, load: Load) -> Kept:
    """Piper's activations (arXiv 2605.05049), fp16 as printed: attention 12 s d, experts 2 s k (m f + d) of m matrices.

    A recomputed piece keeps its input (attention 2 s d, experts 2 s k d) or nothing, and all of it once while its
    backward runs. The paper has no dense FFN, which counts as one expert of each token, and prints nothing for router
    and shared experts.
    """
    model, size, m = case.model, ELEMENT_BYTES[case.workload.dtype], count.ffn_matrices(case.model)
    own = load.tokens / load.tp
    everything, entering = {
        "attention": (6 * own * model.hidden, own * model.hidden),
        "experts": (load.rows * (m * model.expert_width / load.etp + model.hidden), load.rows * model.hidden),
        "dense": (load.tokens * m * model.dense_width / load.tp + own * model.hidden, own * model.hidden),
    }.get(piece.kind, (0.0, 0.0))
    kept = keeps(piece, recompute)
    if kept == "activations":
        return Kept(size * everything, 0.0)
    return Kept(size * entering if kept == "input" else 0.0, size * everything)


def _activation_elements(case: Case, piece: Piece, load: Load) -> float:
    """Elements that autograd keeps of a piece, and its outputs, which stay until its backward.

    Per token of attention: input, its norm, the residual after it, q, k, v and the attention output (FlashAttention
    keeps no scores, windowed or not), q and k once more before a QK norm, the narrow vectors of latent attention before
    and after their norms; before experts the norm, the router's scores and the shared experts' inner values. Per row of
    experts: the row, its copy in the order of experts (or its norm's, where the residual rides), the inner values, the
    output before and after the gate weight. Inner values: gate, silu(gate), up and their product; without a gate before
    and after the activation. Dense: input, norm, inner values, output. Head: its input, the norm and fp32
    log-probabilities. A norm keeps its input and one number per token (fused). Left out: integers that travel with
    rows, one number per head and token of FlashAttention, dropout masks; biases keep nothing.
    """
    model = case.model
    hidden, tokens, tp, inner = model.hidden, load.tokens, load.tp, 4 if case.model.gated else 2
    if piece.kind == "attention":
        widths = attention.core(model, tp)
        again = attention.normed(model) * (widths.queries + widths.keys)
        narrow = 2 * attention.narrow(model) / tp
        total = tokens * (3 * hidden / tp + sum(widths) + again + narrow)
        if not is_dense(model, piece.layer):
            total += tokens * (hidden / tp + 2 * model.experts / tp)
            total += inner * tokens * shared_width(model) / tp
        return total
    if piece.kind == "experts":
        return load.rows * (4 * hidden + inner * model.expert_width / load.etp)
    if piece.kind == "dense":
        return tokens * (3 * hidden / tp + inner * model.dense_width / tp)
    if piece.kind == "head":
        return tokens * (2 * hidden / tp + 4 / ELEMENT_BYTES[case.workload.dtype] * model.vocab / tp)
    return 0.0


class Track(NamedTuple):
    """The actions of one position in their order, as arrays [actions]."""

    stages: NDArray[np.intp]
    kinds: NDArray[np.str_]


def tracks(steps: Steps) -> list[Track]:
    """`steps` as arrays, for every position."""
    rows = [[action for step in row for action in step] for row in steps]
    return [Track(np.array([a.stage for a in row]), np.array([a.kind for a in row])) for row in rows]


def peak_activation_bytes(
    case: Case, graph: StageGraph, order: Sequence[Track], recompute: Recompute, loads: Sequence[Load]
) -> list[float]:
    """Most bytes at once of one rank at each position beside its state: activations, working bytes and buffers."""
    return [sum(live) for live in peak_activations(case, graph, order, recompute, loads)]


def peak_activations(
    case: Case, graph: StageGraph, order: Sequence[Track], recompute: Recompute, loads: Sequence[Load]
) -> list[Live]:
    """The fullest moment of one rank at each position, folded over the schedule's order; `loads` per position.

    Transfers in flight: one row buffer of the largest edge that touches the position, on each side; Piper counts none.
    """
    kept = []
    for stage, homes in enumerate(graph.stages):
        load = loads[homes[0]]
        pieces = [graph.pieces[i] for i in pieces_of(graph, stage)]
        kept.append(_together(pieces, [piece_bytes(case, piece, recompute, load) for piece in pieces], recompute))
    sides = 0 if case.memory.activations == "piper" else 2
    return [
        Live(*_peak(track, kept), sides * _largest_buffer(case, graph, position, loads[position]))
        for position, track in enumerate(order)
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


def _peak(track: Track, kept: Sequence[Kept]) -> tuple[float, float]:
    """Kept and working bytes when they are most: F adds what its stage keeps, B and W take it away.

    Every backward needs its transient; the forward that runs already counts as kept.
    """
    alive, transient = (np.array(part)[track.stages] for part in zip(*kept, strict=True))
    enters, inner = track.kinds == "F", track.kinds == "I"
    before = np.concatenate(([0.0], np.cumsum(np.where(enters, alive, np.where(inner, 0.0, -alive)))))
    held, working = before[:-1] + np.where(enters, alive, 0.0), np.where(enters, 0.0, transient)
    fullest = int((held + working).argmax())
    return float(held[fullest]), float(working[fullest])


def _largest_buffer(case: Case, graph: StageGraph, position: int, load: Load) -> float:
    here = [
        edge_bytes(case.model, graph, i, "F", load, dtype=case.workload.dtype)
        for i in range(len(graph.edges))
        if position in graph.stages[graph.pieces[i].stage] + graph.stages[graph.pieces[i + 1].stage]
    ]
    return max(here, default=0.0)
