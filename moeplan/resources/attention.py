"""The matrices of each attention kind, and what its core reads: the one place that tells the kinds apart.

Parameters, FLOP, bytes and their division over tensor-parallel ranks all come from here. Latent attention is counted
in its training form, with keys and values expanded for every head (DeepSeek-V2, arXiv 2405.04434, section 2.1).
"""

from __future__ import annotations

from typing import NamedTuple

from moeplan.spec.model import GroupedQuery, Latent, ModelSpec


class Projection(NamedTuple):
    """One weight matrix [inputs, outputs] of an attention block."""

    kernel: str
    """Projections of one kernel read the same rows and are one GEMM."""
    inputs: int
    outputs: int
    heads: int
    """Heads that tensor parallelism divides; ranks beyond them hold copies. 0: whole on every rank, for own tokens."""
    from_heads: bool = False
    """Whether the heads are its inputs, not its outputs."""
    bias: int = 0


class Core(NamedTuple):
    """Elements per token that the scores and values kernel reads and writes on one rank."""

    queries: float
    keys: float
    values: float
    output: float


def projections(model: ModelSpec) -> list[Projection]:
    """All matrices of one attention block, in the order in which rows pass them.

    An output gate is one more projection as wide as the queries, in the same kernel.
    """
    if isinstance(model.attention, Latent):
        return _latent(model.attention, model.hidden)
    return _grouped(model.attention, model.hidden)


def _grouped(a: GroupedQuery, hidden: int) -> list[Projection]:
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    gate = [Projection("qkv", hidden, queries, a.heads, bias=queries * a.bias)] if a.output_gate else []
    return [
        *gate,
        Projection("qkv", hidden, queries, a.heads, bias=queries * a.bias),
        Projection("qkv", hidden, keys, a.kv_heads, bias=keys * a.bias),
        Projection("qkv", hidden, keys, a.kv_heads, bias=keys * a.bias),
        Projection("output", queries, hidden, a.heads, from_heads=True, bias=hidden * (a.bias and a.output_bias)),
    ]


def _latent(a: Latent, hidden: int) -> list[Projection]:
    queries = a.heads * (a.nope_head_dim + a.rope_head_dim)
    down = [Projection("query down", hidden, a.q_lora_rank, 0)] if a.q_lora_rank else []
    return [
        *down,
        Projection("query", a.q_lora_rank or hidden, queries, a.heads),
        Projection("key-value down", hidden, a.kv_lora_rank + a.rope_head_dim, 0),
        Projection("key-value up", a.kv_lora_rank, a.heads * (a.nope_head_dim + a.v_head_dim), a.heads),
        Projection("output", a.heads * a.v_head_dim, hidden, a.heads, from_heads=True),
    ]


def shares(projection: Projection, tp: int) -> int:
    """Parts into which `tp` ranks divide a projection."""
    return min(tp, projection.heads) if projection.heads else 1


def rank_shape(projection: Projection, tp: int) -> tuple[float, float]:
    """(inputs, outputs) of a projection on one of `tp` ranks."""
    parts = shares(projection, tp)
    if projection.from_heads:
        return projection.inputs / parts, projection.outputs
    return projection.inputs, projection.outputs / parts


def whole_parameters(model: ModelSpec) -> int:
    """Parameters of vectors that every tensor-parallel rank holds: norms of queries and keys, or of narrow vectors."""
    a = model.attention
    if isinstance(a, Latent):
        return a.q_lora_rank + a.kv_lora_rank
    spans = {"head": 2, "all": a.heads + a.kv_heads, "none": 0}[a.qk_norm_weights]
    return spans * a.head_dim * a.qk_norm


def sinks(model: ModelSpec) -> int:
    """Learned logits of one attention block: one per head, or none."""
    a = model.attention
    return a.heads if isinstance(a, GroupedQuery) and a.sinks else 0


def core(model: ModelSpec, tp: int = 1) -> Core:
    """Widths per token of the scores and values kernel on one of `tp` ranks."""
    a = model.attention
    if isinstance(a, Latent):
        heads = a.heads / tp
        queries = heads * (a.nope_head_dim + a.rope_head_dim)
        return Core(queries, queries, heads * a.v_head_dim, heads * a.v_head_dim)
    queries, keys = a.heads * a.head_dim / tp, a.kv_heads * a.head_dim / min(tp, a.kv_heads)
    return Core(queries, keys, keys, queries)


def narrow(model: ModelSpec) -> int:
    """Elements per token of the narrow vectors that a norm stands behind; none in grouped-query attention."""
    return whole_parameters(model) if isinstance(model.attention, Latent) else 0


def gated_output(model: ModelSpec) -> bool:
    """Whether a projection as wide as the queries weighs the output: itself and the product are kept too."""
    return isinstance(model.attention, GroupedQuery) and model.attention.output_gate


def normed(model: ModelSpec) -> bool:
    """Whether queries and keys pass a norm of their own."""
    return isinstance(model.attention, GroupedQuery) and model.attention.qk_norm


def pairs_per_token(seq_len: int, window: int = 0, *, chunked: bool = False) -> float:
    """Query-key pairs of a causal sequence over its tokens: s / 2, or with a window w < s, w - w (w - 1) / (2 s).

    In chunks of w < s tokens, with r = s % w left over: ((s - r) (w + 1) + r (r + 1)) / (2 s). The
    pair of each token with itself counts half without a window (Megatron-LM's convention; s + 1 would be exact) and
    whole with one; a window is never counted as more than no window.
    """
    if not 0 < window < seq_len:
        return seq_len / 2
    if chunked:
        rest = seq_len % window
        return min(seq_len / 2, ((seq_len - rest) * (window + 1) + rest * (rest + 1)) / (2 * seq_len))
    return min(seq_len / 2, window - window * (window - 1) / (2 * seq_len))
