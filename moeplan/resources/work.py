"""What one piece of the chain computes for one micro-batch on one rank: FLOP and HBM bytes, no seconds.

T tokens of a rank lie in sequences of s tokens; R rows are token copies that its experts receive. FLOP are 2 per
multiply-add; attention is causal. Left out: softmax, rotary embedding, top-k and the optimizer's arithmetic, all bound
by the bytes counted as stream.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from moeplan.spec.model import ModelSpec

ELEMENT_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}


class Compute(NamedTuple):
    """One kernel's demand."""

    kind: Literal["gemm", "grouped_gemm", "attention", "stream"]
    flop: float
    hbm_bytes: float
    size: float
    """What the efficiency curve is read at: rows of a GEMM, tokens per expert, sequence length."""


class Load(NamedTuple):
    """What one rank has to do for one micro-batch."""

    tokens: float
    rows: float
    """Token copies that reach the rank's experts; balanced routing."""
    tp: int = 1
    etp: int = 1
    local_experts: float = 1.0


def forward(model: ModelSpec, kind: str, load: Load, *, seq_len: int, dtype: str, moe: bool = True) -> list[Compute]:
    """Kernels of the forward pass of one piece of `kind`; `moe` tells attention whether a router follows it."""
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
        return [
            *_ffn("gemm", tokens, tokens, hidden, model.dense_width / load.tp, size, 1),
            _stream(5 * tokens * hidden * size),
        ]
    if kind == "experts":
        per_expert = load.rows / max(load.local_experts, 1e-9)
        width = model.expert_width / load.etp
        parts = _ffn("grouped_gemm", load.rows, per_expert, hidden, width, size, load.local_experts)
        return [*parts, _stream(3 * load.rows * hidden * size)]
    return _attention(model, load, seq_len, size, moe=moe)


def backward(work: list[Compute]) -> list[Compute]:
    """Kernels of the backward pass: twice the GEMMs (input and weight gradients), 2.5 times the attention core.

    The attention factor is FlashAttention's, whose backward recomputes the scores (FlashAttention-2, arXiv 2307.08691).
    """
    factor = {"gemm": 2.0, "grouped_gemm": 2.0, "attention": 2.5, "stream": 2.0}
    return [w._replace(flop=w.flop * factor[w.kind], hbm_bytes=w.hbm_bytes * factor[w.kind]) for w in work]


def model_flop_per_token(model: ModelSpec, seq_len: int) -> float:
    """FLOP of one token's forward and backward pass, the numerator of MFU: 6 per active matrix parameter + attention.

    6 (attention + router + active experts + dense + head) + 6 layers q seq_len for the causal half of the scores; the
    embedding lookup and all recomputation are left out (Megatron-LM's convention of 2025, with the router counted).
    """
    load = Load(tokens=1.0, rows=float(model.top_k))
    per_layer = 0.0
    for layer in range(model.num_layers):
        moe = layer >= model.dense_layers
        kinds = ("attention", "experts" if moe else "dense")
        per_layer += sum(w.flop for k in kinds for w in forward(model, k, load, seq_len=seq_len, dtype="bf16", moe=moe))
    head = sum(w.flop for w in forward(model, "head", load, seq_len=seq_len, dtype="bf16"))
    return 3 * (per_layer + head)


def _attention(model: ModelSpec, load: Load, seq_len: int, size: int, *, moe: bool) -> list[Compute]:
    shape, hidden, tokens = model.attention, model.hidden, load.tokens
    queries = shape.heads * shape.head_dim / load.tp
    keys = shape.kv_heads * shape.head_dim / min(load.tp, shape.kv_heads)
    core = Compute("attention", 2 * tokens * seq_len * queries, tokens * (2 * queries + 2 * keys) * size, seq_len)
    work = [
        _gemm(tokens, hidden, queries + 2 * keys, size),
        core,
        _gemm(tokens, queries, hidden, size),
        _stream(tokens * size * (5 * hidden / load.tp + 2 * queries + 4 * keys)),
    ]
    if moe:
        own = tokens / load.tp
        work += [_gemm(own, hidden, model.experts, size), _stream(own * size * hidden * (3 + 2 * model.top_k))]
        if model.shared_experts:
            width = model.shared_experts * model.expert_width / load.tp
            work += _ffn("gemm", tokens, tokens, hidden, width, size, 1)
    return work


def _gemm(rows: float, inner: float, columns: float, size: int) -> Compute:
    moved = (rows * inner + inner * columns + rows * columns) * size
    return Compute("gemm", 2 * rows * inner * columns, moved, rows)


def _ffn(
    kind: Literal["gemm", "grouped_gemm"],
    rows: float,
    at: float,
    hidden: float,
    width: float,
    size: int,
    matrices: float,
) -> list[Compute]:
    """Gate and up, activation, down; `matrices` sets of weights are read."""
    up = Compute(
        kind, 4 * rows * hidden * width, (rows * (hidden + 2 * width) + matrices * 2 * hidden * width) * size, at
    )
    down = Compute(kind, 2 * rows * hidden * width, (rows * (hidden + width) + matrices * hidden * width) * size, at)
    return [up, _stream(3 * rows * width * size), down]


def _stream(hbm_bytes: float) -> Compute:
    return Compute("stream", 0.0, hbm_bytes, 0.0)
