"""What a piece keeps of a micro-batch from its forward to its backward, and what its backward needs beside."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.layout import Piece, Recompute
from moeplan.program import keeps
from moeplan.resources import parameters as count
from moeplan.resources.memory.eager import eager_gradients, eager_input, eager_terms
from moeplan.resources.memory.fused import fused_gradients, fused_input, fused_terms
from moeplan.resources.memory.loss import Loss, loss_parts
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.spec.case import Case


class Kept(NamedTuple):
    """Bytes of one piece and micro-batch on one rank."""

    alive: float
    """From the forward to the backward."""
    transient: float
    """More while the backward runs: what is computed again, and gradients."""


class Parts(NamedTuple):
    """`Kept`, and how much of it is what."""

    alive: float
    routing: float
    """Of `alive`: router and permutation."""
    logits: float
    """Of `alive`."""
    transient: float
    loss: float
    """Of `transient`: logits and their gradient."""
    rows: float
    """Of `transient`: routed rows in flight."""
    again: float
    """Of `transient`: what is computed again."""


def piece_bytes(case: Case, piece: Piece, recompute: Recompute, load: Load) -> Kept:
    """What `piece` keeps for its backward, and what its backward needs beside.

    A piece that is recomputed keeps its input, or nothing. `execution.kernels` says whose terms count; with
    `memory.activations` "piper" only what Piper's terms count: no gradient, nothing of embedding, join and head.
    """
    parts = piece_parts(case, piece, recompute, load)
    return Kept(parts.alive, parts.transient)


def piece_parts(case: Case, piece: Piece, recompute: Recompute, load: Load, *, ride: bool = False) -> Parts:
    """As `piece_bytes`, by bucket; `ride`: the residual travels to an FFN on other ranks (`layout.rides`)."""
    if case.memory.activations == "piper":
        alive, transient = _piper_bytes(case, piece, recompute, load)
        return Parts(alive, 0.0, 0.0, transient, 0.0, 0.0, transient)
    fused = case.execution.kernels == "fused"
    terms = fused_terms(case, piece, load) if fused else eager_terms(case, piece, recompute, load, ride=ride)
    gradients, rows = fused_gradients(case, piece, load) if fused else eager_gradients(case, piece, load, ride=ride)
    loss = loss_parts(case, load) if piece.kind == "head" else Loss(0.0, 0.0)
    whole = sum(term.size for term in terms)
    if keeps(piece, recompute) != "activations":
        entering = (
            fused_input(case, piece, recompute, load) if fused else eager_input(case, piece, recompute, load, ride=ride)
        )
        again = max(0.0, whole - entering)
        return Parts(entering, 0.0, 0.0, again + gradients + rows, 0.0, rows, again)
    again = sum(term.size for term in terms if not set(recompute.modules).isdisjoint(term.freed_by))
    routing = sum(term.size for term in terms if term.routing)
    transient = again + gradients + rows + loss.transient
    return Parts(whole - again + loss.alive, routing, loss.alive, transient, loss.transient, rows, again)


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
