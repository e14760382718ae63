"""What plain PyTorch keeps of a piece: every operation on its own, as moeplan's executor runs them."""

from __future__ import annotations

from moeplan.layout import Piece, Recompute
from moeplan.program import keeps
from moeplan.resources import attention, mixer
from moeplan.resources import parameters as count
from moeplan.resources.memory.terms import AGAIN, Modules, Term
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.spec.case import Case
from moeplan.spec.model import Latent, ModelSpec, has_state, is_dense, row_width, shared_width

META_BYTES = 24
"""Beside each row: token number, slot of the choice and expert number, 8 bytes each."""
ORDER_BYTES = 16
"""Of each row: its place in the order of experts, and back."""
PLACE_BYTES = 8
"""Of each row: its place among those that go home."""
CHOICE_BYTES = 24
"""Of each choice at home: the expert's number, its place among the rows that leave, and where it comes back to."""
TOKEN_BYTES = 8
"""Of a token: its number in the vocabulary, where it enters and where it is the label."""
STATISTIC_BYTES = 4
"""Of a norm, per vector: its reciprocal root mean square in fp32."""


SCORES: Modules = ("core_attention", AGAIN)


def eager_terms(case: Case, piece: Piece, recompute: Recompute, load: Load, *, ride: bool = False) -> list[Term]:
    """All that autograd keeps of `piece` for one micro-batch on one rank.

    Attention: input, norm, residual, queries, keys, values and output of the core with 4 bytes per head, rotary tables;
    before experts the second norm, the router's scores and gates, and the shared experts' inner values. Experts: the
    row as it came and in the order of experts, inner values, outputs before and after the gate weight, and where they
    belong. Inner values: gate, silu(gate), up and their product; without a gate before and after the activation. Dense:
    norm and inner values; its input is the residual of the attention before, and counts there if that is kept. Where
    residuals `ride` to an FFN on other ranks, it keeps them too, a dense one its input and output; one that is computed
    again has its output twice. Head: input and
    norm; logits are `loss_parts`. Windows and biases keep nothing more.
    """
    if piece.kind == "attention":
        return _attention(case, piece, load)
    size, tokens, own = ELEMENT_BYTES[case.workload.dtype], load.tokens, load.own
    hidden = case.model.hidden
    if piece.kind == "experts":
        return _experts(case, load) + [Term(size * load.rows / case.model.top_k * hidden)] * ride
    if piece.kind == "dense":
        terms = [Term(size * own * hidden, ("norm", AGAIN)), Term(own * STATISTIC_BYTES, (AGAIN,))]
        terms += _inner(case.model, size * tokens * case.model.dense_width / load.tp, ("dense",))
        kept = keeps(piece, recompute)
        alone = recompute.attention != "none" and kept != "nothing"
        extra = max(2 * ride, alone + (kept != "activations")) + (AGAIN in recompute.modules)
        return terms + [Term(size * own * hidden)] * extra
    if piece.kind == "head":
        return [Term(own * (size * hidden + STATISTIC_BYTES + TOKEN_BYTES)), Term(size * own * hidden, ("norm",))]
    return [Term(size * own * hidden if piece.kind == "join" else own * TOKEN_BYTES)]


def _inner(model: ModelSpec, each: float, by: Modules) -> list[Term]:
    """Inner values of an FFN, `each` bytes per value: what the first product gives, and what follows of it."""
    freed = Term(each, (*by, "activation", AGAIN))
    if not model.gated:
        return [Term(each, by), freed]
    return [Term(each, by), Term(each, (*by, AGAIN)), freed, freed]


def _attention(case: Case, piece: Piece, load: Load) -> list[Term]:
    model, size = case.model, ELEMENT_BYTES[case.workload.dtype]
    tokens, own, hidden = load.tokens, load.own, model.hidden
    if has_state(model, piece.layer):
        inside = [Term(size * tokens * mixer.kept_elements(model, load.tp), (AGAIN,))]
    else:
        inside = _core(case, load)
    kept = [
        Term(size * own * hidden),
        Term(size * own * hidden, ("norm", AGAIN)),
        Term(size * own * hidden, (AGAIN,)),
        Term(own * STATISTIC_BYTES * (1 if is_dense(model, piece.layer) else 2), (AGAIN,)),
        *inside,
    ]
    if is_dense(model, piece.layer):
        return kept
    gates = own * (model.top_k * (2 * size + CHOICE_BYTES) + size)
    shared = _inner(model, size * tokens * shared_width(model) / load.tp, ("shared_experts",))
    return [
        *kept,
        Term(size * own * hidden, ("norm",)),
        Term(size * own * model.experts, routing=True),
        Term(gates, routing=True),
        *([Term(size * own * hidden), *shared] if model.shared_experts else []),
    ]


def _core(case: Case, load: Load) -> list[Term]:
    """Queries, keys, values and output of the core; scores where no flash kernel hides them."""
    model, size, tokens = case.model, ELEMENT_BYTES[case.workload.dtype], load.tokens
    widths, heads = attention.core(model, load.tp), model.attention.heads / load.tp
    up: Modules = ("latent_up",) if isinstance(model.attention, Latent) else ()
    turned = (
        model.attention.rope_head_dim if isinstance(model.attention, Latent) else model.attention.head_dim
    ) * case.workload.seq_len
    scores = [] if case.execution.flash_attention else [Term(size * tokens * heads * case.workload.seq_len, SCORES)]
    again = attention.normed(model) * (widths.queries + widths.keys)
    return [
        Term(size * tokens * widths.queries, up),
        Term(size * tokens * widths.keys, (*up, AGAIN)),
        Term(size * tokens * widths.values, up),
        Term(size * tokens * widths.output * (1 + 2 * attention.gated_output(model))),
        Term(size * tokens * again, (AGAIN,)),
        Term(4 * tokens * heads, ("core_attention",)),
        Term(attention.normed(model) * tokens * STATISTIC_BYTES * _normed_heads(model, load.tp), (AGAIN,)),
        Term(2 * size * turned, (AGAIN,)),
        Term(size * 2 * load.own * attention.narrow(model), (AGAIN,)),
        *scores,
    ]


def _normed_heads(model: ModelSpec, tp: int) -> float:
    """Heads of queries and keys on one rank, each of which has a norm of its own."""
    a = model.attention
    return a.heads / tp + (a.heads if isinstance(a, Latent) else a.kv_heads) / tp


def _experts(case: Case, load: Load) -> list[Term]:
    model, size, rows = case.model, ELEMENT_BYTES[case.workload.dtype], load.rows
    width = row_width(model)
    return [
        Term(size * rows * (width + 1)),
        Term(size * rows * width, (AGAIN,)),
        *_inner(model, size * rows * model.expert_width / load.etp, ()),
        Term(size * rows * 2 * width, (AGAIN,)),
        Term(rows * (META_BYTES + ORDER_BYTES + PLACE_BYTES), routing=True),
    ]


def eager_input(case: Case, piece: Piece, recompute: Recompute, load: Load, *, ride: bool = False) -> float:
    """Bytes that a piece keeps where it is computed again: its input, if that, and where its rows went.

    The input of a dense FFN is the residual of the attention before, and counts there unless that is recomputed too.
    """
    model, size, own = case.model, ELEMENT_BYTES[case.workload.dtype], load.own
    kept = keeps(piece, recompute) == "input"
    if piece.kind == "experts":
        rows = load.rows
        residual = (ride and model.shared_experts > 0) * size * model.hidden / model.top_k
        return rows * (PLACE_BYTES + kept * (size * (row_width(model) + 1) + META_BYTES + residual))
    if piece.kind == "dense":
        return kept * (ride or recompute.attention != "none") * size * own * model.hidden
    routed = not is_dense(model, piece.layer)
    return own * (kept * size * model.hidden + routed * model.top_k * CHOICE_BYTES)


def eager_gradients(case: Case, piece: Piece, load: Load, *, ride: bool = False) -> tuple[float, float]:
    """(gradients, rows in flight): bytes that the backward of a piece makes beside what it kept.

    Experts: rows of the gradient that came, and of both factors of the gate weight; later the gradients of all their
    weights in the element type and of their rows, when inner values and two copies of the rows are gone; and the
    residual's, which waits at home unless it rides. Dense: the
    gradient that came, two inner values, or the weights' when inner values are gone. Attention: gradients of both its
    outputs, of queries, keys, values and output of the core, and the weights'; or, where hidden is wide, those around
    router and shared experts.
    """
    model, size = case.model, ELEMENT_BYTES[case.workload.dtype]
    own = size * model.hidden * load.own
    if piece.kind == "experts":
        row = size * load.rows
        weights = size * load.local_experts * count.expert_share(model, load.etp)
        inner = row * (4 if model.gated else 2) * model.expert_width / load.etp
        late = weights + row * row_width(model) - inner
        return max(2 * row * row_width(model), late) + own * (not ride), row * row_width(model)
    if piece.kind == "dense":
        value = size * load.tokens * model.dense_width / load.tp
        weights = size * count.ffn_share(model, model.dense_width, load.tp)
        late = weights - (4 if model.gated else 2) * value
        return own + max(2 * value + weights / count.ffn_matrices(model), late), 0.0
    if piece.kind == "attention":
        early = 0.0 if is_dense(model, piece.layer) else _router_gradients(model, load, ride=ride)
        return max(own + size * _attention_gradients(model, piece, load), size * early), 0.0
    return 0.0, 0.0


def _router_gradients(model: ModelSpec, load: Load, *, ride: bool) -> float:
    """Elements of gradients while router and shared experts go back, less what is gone by then.

    Rows of [tokens, hidden]: those that came, of output and residual, and their sum where both ride; then the router's
    input from two sides, and their sum. The product of shared experts' inner values goes back first, with one of their
    matrices; when all matrices have gone back, no inner value is left.
    """
    rows, routed = model.hidden * load.own, count.router_parameters(model)
    if not model.shared_experts:
        return 3 * rows + routed
    came, shared = (3 if ride else 2) * rows, count.shared_share(model, load.tp)
    value = load.tokens * shared_width(model) / load.tp
    early = came + (2 if model.gated else 1) * value + shared / count.ffn_matrices(model)
    late = came + 3 * rows + routed + shared - (4 if model.gated else 2) * value
    return max(early, late)


def _attention_gradients(model: ModelSpec, piece: Piece, load: Load) -> float:
    """Elements of gradients while the core goes back: of what it reads and writes, and of the matrices behind it.

    Or, where they are more, of all matrices and three copies of the rows when what the core kept is gone: of the norm
    through two matrices and their sum.
    """
    state = has_state(model, piece.layer)
    inside = mixer.kept_elements(model, load.tp) if state else sum(attention.core(model, load.tp))
    matrices = mixer.projections(model) if state else attention.projections(model)
    behind = sum(p.inputs * p.outputs / attention.shares(p, load.tp) for p in matrices if p.from_heads)
    whole, values = count.mixer_share(model, load.tp, state=state), 0.0
    if not is_dense(model, piece.layer):
        beside = count.router_parameters(model) + count.shared_share(model, load.tp)
        behind, whole = behind + beside, whole + beside
        values = (4 if model.gated else 2) * load.tokens * shared_width(model) / load.tp
    late = whole + 3 * model.hidden * load.own - load.tokens * inside
    return max(load.tokens * inside + behind, late) - values
