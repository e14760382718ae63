"""What one piece of the chain computes for one micro-batch on one rank: FLOP and HBM bytes, no seconds.

T tokens of a rank lie in sequences of s tokens; R rows are token copies that its experts receive. FLOP are 2 per
multiply-add; attention is causal. Left out: softmax, rotary embedding, top-k and the optimizer's arithmetic, all bound
by the bytes counted as stream; biases and learned logits, which add one operation to a row's thousands.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Literal, NamedTuple

from moeplan.resources import attention
from moeplan.resources.parameters import ffn_matrices
from moeplan.spec.model import GroupedQuery, ModelSpec, is_dense, shared_width, window_of

ELEMENT_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}


class Compute(NamedTuple):
    """One kernel's demand."""

    kind: Literal["gemm", "grouped_gemm", "attention", "stream"]
    flop: float
    hbm_bytes: float
    size: float
    """What the efficiency curve is read at: rows of a GEMM, tokens per expert, tokens that attention sees at most."""


class Load(NamedTuple):
    """What one rank has to do for one micro-batch."""

    tokens: float
    rows: float
    """Token copies that reach the rank's experts; balanced routing."""
    tp: int = 1
    etp: int = 1
    local_experts: float = 1.0


def forward(
    model: ModelSpec, kind: str, load: Load, *, seq_len: int, dtype: str, moe: bool = True, window: int = 0
) -> list[Compute]:
    """Kernels of the forward pass of one piece of `kind`.

    `moe` tells attention whether a router follows it, `window` how many tokens it sees (0: all before).
    """
    size = ELEMENT_BYTES[dtype]
    hidden, tokens = model.hidden, load.tokens
    if kind == "embedding":
        return [_stream(2 * tokens * hidden * size)]
    if kind == "join":
        return [_stream(3 * tokens * hidden * size)]
    if kind == "head":
        logits = _gemm(tokens, hidden, model.vocab / load.tp, size)
        return [logits, _stream(tokens * (hidden * 3 * size + model.vocab / load.tp * 8))]
    if kind == "dense":
        width = model.dense_width / load.tp
        return [*_ffn(model, "gemm", tokens, width, size), _stream(5 * tokens * hidden * size)]
    if kind == "experts":
        width = model.expert_width / load.etp
        parts = _ffn(model, "grouped_gemm", load.rows, width, size, load.local_experts)
        return [*parts, _stream(3 * load.rows * hidden * size)]
    work = [*_projections(model, load, size), _core(model, load, size, seq_len, window), _moved(model, load, size)]
    return work + (_routing(model, load, size) if moe else [])


def backward(work: list[Compute]) -> list[Compute]:
    """Kernels of the backward pass: twice the GEMMs (input and weight gradients), 2.5 times the attention core.

    The attention factor is FlashAttention's, whose backward recomputes the scores (FlashAttention-2, arXiv 2307.08691).
    """
    factor = {"gemm": 2.0, "grouped_gemm": 2.0, "attention": 2.5, "stream": 2.0}
    return [w._replace(flop=w.flop * factor[w.kind], hbm_bytes=w.hbm_bytes * factor[w.kind]) for w in work]


def model_flop_per_token(model: ModelSpec, seq_len: int) -> float:
    """FLOP of one token's forward and backward pass, the numerator of MFU: 6 per active matrix parameter + attention.

    6 (attention + router + active experts + dense + head) + 6 (q + v) s / 2 per layer for the causal half of scores and
    values, with a window w its pairs (`attention.pairs_per_token`); every layer counts as what it is. The embedding
    lookup and all recomputation are left out (Megatron-LM's convention of 2025, with the router counted).
    """
    load = Load(tokens=1.0, rows=float(model.top_k))

    def flop(kind: str, *, moe: bool = True, window: int = 0) -> float:
        return sum(w.flop for w in forward(model, kind, load, seq_len=seq_len, dtype="bf16", moe=moe, window=window))

    alike = Counter((not is_dense(model, layer), window_of(model, layer)) for layer in range(model.num_layers))
    layers = sum(
        number * (flop("attention", moe=moe, window=window) + flop("experts" if moe else "dense"))
        for (moe, window), number in alike.items()
    )
    return 3 * (layers + flop("head"))


def _projections(model: ModelSpec, load: Load, size: int) -> list[Compute]:
    """GEMMs of the attention block; those that every rank holds whole work on a rank's own tokens."""
    work = []
    for _, group in groupby(attention.projections(model), key=lambda p: p.kernel):
        parts = list(group)
        shapes = [attention.rank_shape(p, load.tp) for p in parts]
        rows = load.tokens if parts[0].heads else load.tokens / load.tp
        work.append(_gemm(rows, shapes[0][0], sum(outputs for _, outputs in shapes), size))
    return work


def _core(model: ModelSpec, load: Load, size: int, seq_len: int, window: int) -> Compute:
    """Scores and values of one pass over queries, keys and values (FlashAttention): no score reaches the HBM."""
    widths = attention.core(model, load.tp)
    chunked = isinstance(model.attention, GroupedQuery) and model.attention.chunked
    pairs = load.tokens * attention.pairs_per_token(seq_len, window, chunked=chunked)
    seen = min(window or seq_len, seq_len)
    return Compute("attention", 2 * pairs * (widths.queries + widths.output), load.tokens * sum(widths) * size, seen)


def _moved(model: ModelSpec, load: Load, size: int) -> Compute:
    """Norm and residual, five times hidden; rotary embedding and norms inside, in and out."""
    widths = attention.core(model, load.tp)
    inside = widths.queries + widths.keys + widths.values + attention.narrow(model) / load.tp
    return _stream(load.tokens * size * (5 * model.hidden / load.tp + 2 * inside))


def _routing(model: ModelSpec, load: Load, size: int) -> list[Compute]:
    """Router, with the gate of the shared experts as one more column, and shared experts."""
    hidden, own = model.hidden, load.tokens / load.tp
    work = [
        _gemm(own, hidden, model.experts + model.shared_gate, size),
        _stream(own * size * hidden * (3 + 2 * model.top_k)),
    ]
    if model.shared_experts:
        work += _ffn(model, "gemm", load.tokens, shared_width(model) / load.tp, size)
    return work


def _gemm(rows: float, inner: float, columns: float, size: int) -> Compute:
    moved = (rows * inner + inner * columns + rows * columns) * size
    return Compute("gemm", 2 * rows * inner * columns, moved, rows)


def _ffn(
    model: ModelSpec, kind: Literal["gemm", "grouped_gemm"], rows: float, width: float, size: int, sets: float = 1.0
) -> list[Compute]:
    """Gate and up (or up alone), activation, down; `rows` are spread over `sets` of weights, which are all read."""
    hidden, ups, at = model.hidden, ffn_matrices(model) - 1, rows / max(sets, 1e-9)
    up_bytes = (rows * (hidden + ups * width) + sets * ups * hidden * width) * size
    down_bytes = (rows * (hidden + width) + sets * hidden * width) * size
    return [
        Compute(kind, 2 * ups * rows * hidden * width, up_bytes, at),
        _stream((ups + 1) * rows * width * size),
        Compute(kind, 2 * rows * hidden * width, down_bytes, at),
    ]


def _stream(hbm_bytes: float) -> Compute:
    return Compute("stream", 0.0, hbm_bytes, 0.0)
