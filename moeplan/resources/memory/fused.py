"""What fused kernels keep of a piece: the terms of Megatron-LM with Transformer Engine.

Activations of a layer as in arXiv 2205.05198, section 4 (34 s b h with dropout, 32 without), put into the shapes of
grouped queries, latent attention and gated FFNs; routed rows k (h + 3 f) as in arXiv 2603.07685 (memory-efficient
permutation). With sequence parallelism a tensor-parallel group divides what stands between its blocks too.
"""

from __future__ import annotations

from moeplan.layout import Piece, Recompute
from moeplan.program import keeps
from moeplan.resources import attention, mixer
from moeplan.resources import parameters as count
from moeplan.resources.memory.terms import AGAIN, Modules, Term, linear_bytes
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.spec.case import Case
from moeplan.spec.model import Latent, has_state, is_dense, row_width, shared_width

ROUTER_BYTES = 8
"""Per token and expert: the router's logits and scores in fp32."""
PLACE_BYTES = 8
"""Per row: its gate weight in fp32 and its place, 4 bytes each."""


def fused_terms(case: Case, piece: Piece, load: Load) -> list[Term]:
    """All that is kept of `piece` for one micro-batch on one rank.

    Attention: input and output of the norm, queries, keys, values (again where they have norms), output, 4 bytes per
    head; latent vectors before and after their norms. FFN: input and output of the norm, what the first matrix gives
    (2 f, or f without a gate), what enters the second (f). Rows of experts: the row and those two. What enters a linear
    layer is kept in its narrow type, where it has one (`Execution.linear`).
    """
    size, narrow, own = ELEMENT_BYTES[case.workload.dtype], linear_bytes(case), load.own
    hidden = own * case.model.hidden
    mask = [Term(hidden)] if case.memory.dropout else []
    if piece.kind == "attention":
        return _attention(case, piece, load) + mask
    if piece.kind == "experts":
        return _experts(case, load)
    if piece.kind == "dense":
        inner = _inner(case, load.tokens * case.model.dense_width / load.tp, dense=True)
        return [Term(hidden * size), Term(hidden * narrow, ("norm", AGAIN)), *inner, *mask]
    if piece.kind == "head":
        return [Term(hidden * size), Term(hidden * size, ("norm",))]
    return mask if piece.kind == "embedding" else []


def _inner(case: Case, values: float, *, dense: bool = False, shared: bool = False) -> list[Term]:
    """Inner values of an FFN: before its activation in the element type, after it as the last matrix keeps it."""
    by: Modules = ("dense",) if dense else ("shared_experts",) if shared else ()
    before = values * (count.ffn_matrices(case.model) - 1) * ELEMENT_BYTES[case.workload.dtype]
    kept = before / (count.ffn_matrices(case.model) - 1)
    after = Term(values * linear_bytes(case), (*by, "activation", AGAIN))
    return [Term(kept, by), Term(before - kept, (*by, AGAIN)), after]


def _attention(case: Case, piece: Piece, load: Load) -> list[Term]:
    model, size, narrow = case.model, ELEMENT_BYTES[case.workload.dtype], linear_bytes(case)
    tokens, own = load.tokens, load.own
    state = has_state(model, piece.layer)
    inside = [Term(tokens * size * mixer.kept_elements(model, load.tp))] if state else _core(case, load)
    kept = [Term(own * model.hidden * size), Term(own * model.hidden * narrow, ("norm", AGAIN)), *inside]
    if is_dense(model, piece.layer):
        return kept
    shared = _inner(case, tokens * shared_width(model) / load.tp, shared=True) if model.shared_experts else []
    return [
        *kept,
        Term(own * model.hidden * size),
        Term(own * model.hidden * size, ("norm",)),
        Term(own * model.expert_latent * size),
        Term(own * model.experts * ROUTER_BYTES, routing=True),
        *shared,
    ]


def _core(case: Case, load: Load) -> list[Term]:
    model, size, tokens = case.model, ELEMENT_BYTES[case.workload.dtype], load.tokens
    widths, heads = attention.core(model, load.tp), model.attention.heads / load.tp
    up: Modules = ("latent_up",) if isinstance(model.attention, Latent) else ()
    again = attention.normed(model) * (widths.queries + widths.keys)
    score = size + (size + 1) * case.memory.dropout
    scores = 0.0 if case.execution.flash_attention else tokens * heads * case.workload.seq_len * score
    copy = tokens * widths.output * linear_bytes(case) if case.execution.linear != "same" else 0.0
    return [
        Term(tokens * widths.queries * size, up),
        Term(tokens * widths.keys * size, (*up, AGAIN)),
        Term(tokens * widths.values * size, up),
        Term(tokens * widths.output * size * (1 + 2 * attention.gated_output(model))),
        Term(copy, (AGAIN,)),
        Term(tokens * again * size, (AGAIN,)),
        Term(2 * load.own * attention.narrow(model) * size),
        Term(4 * tokens * heads, ("core_attention",)),
        Term(scores, ("core_attention",)),
    ]


def _experts(case: Case, load: Load) -> list[Term]:
    rows, model = load.rows, case.model
    inner = _inner(case, rows * model.expert_width / load.etp)
    return [Term(rows * row_width(model) * linear_bytes(case)), *inner, Term(rows * PLACE_BYTES, routing=True)]


def fused_input(case: Case, piece: Piece, recompute: Recompute, load: Load) -> float:
    """Bytes of a piece's input, all that it keeps where it is computed again; nothing where it is not kept."""
    if keeps(piece, recompute) == "nothing":
        return 0.0
    if piece.kind == "experts":
        return load.rows * row_width(case.model) * linear_bytes(case)
    return load.own * case.model.hidden * ELEMENT_BYTES[case.workload.dtype]


def fused_gradients(case: Case, piece: Piece, load: Load) -> tuple[float, float]:
    """(gradients, rows in flight): bytes while the backward of a piece runs.

    Gradients of its output and of its widest inner values; weight gradients are summed in place. Where a
    tensor-parallel group divides its rows, the whole ones are there beside a rank's own. Routed rows are there as they
    came and as they leave.
    """
    model, size = case.model, ELEMENT_BYTES[case.workload.dtype]
    own = (load.own + (load.tokens if load.tp > 1 and not load.whole else 0.0)) * model.hidden
    if piece.kind == "experts":
        inner, row = count.ffn_matrices(model) * model.expert_width / load.etp, size * load.rows
        return row * inner, 2 * row * row_width(model)
    if piece.kind == "dense":
        return size * (own + load.tokens * count.ffn_matrices(model) * model.dense_width / load.tp), 0.0
    if piece.kind == "attention":
        inside = mixer.widths(model, load.tp).convolved if has_state(model, piece.layer) else 0.0
        return size * (own + load.tokens * (inside or sum(attention.core(model, load.tp)))), 0.0
    return size * own, 0.0
