"""Bytes that one rank sends over one edge for one micro-batch; no seconds."""

from __future__ import annotations

from moeplan.layout import StageGraph, rides
from moeplan.resources.kernels import NARROW_BYTES
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.spec.model import Latent, ModelSpec, row_width

ROUTE_BYTES = 24
"""Beside each routed row: token number, slot of the choice and expert number, 8 bytes each; the gate is an element."""
TOKEN_BYTES = 8
"""Beside each row that comes back: its token number."""


def edge_bytes(
    model: ModelSpec, graph: StageGraph, edge: int, phase: str, load: Load, *, dtype: str, rows: str = "same"
) -> float:
    """Bytes that a rank of the sending side with `load` gives to `edge` in `phase` (F and R rows, B their gradient).

    Routed rows: k copies of hidden elements (or `expert_latent`), and what routes them; where the residual rides and
    shared experts sit on the attention side, the first copy carries hidden elements more. Dense rows: one copy.
    `load.tokens` are tokens of the attention side's rank, whichever side sends. On their way to experts, `rows` may be
    "fp8": an element is a byte and its share of a scale per 128; gradients and what comes back are as wide as `dtype`.
    """
    size = ELEMENT_BYTES[dtype]
    kind = graph.edges[edge].kind
    row = float(model.hidden * size)
    tokens = load.tokens / load.tp
    if kind == "local":
        return 0.0
    if kind == "send":
        return load.own * row
    routed = graph.pieces[edge if kind in ("combine", "n2m") else edge + 1].kind == "experts"
    row = row_width(model) * size if routed else row
    if kind in ("combine", "n2m"):
        copies = model.top_k if routed else 1
        return tokens * copies * (row + (TOKEN_BYTES if phase != "B" else 0))
    copies = model.top_k if routed else 1
    if routed and rows == "fp8" and phase != "B":
        row = row_width(model) * NARROW_BYTES["fp8_block"]
    beside = size + (ROUTE_BYTES if phase != "B" else 0)
    return tokens * copies * (row + beside) + residual_bytes(model, graph, edge, load, dtype=dtype)


def residual_bytes(model: ModelSpec, graph: StageGraph, edge: int, load: Load, *, dtype: str) -> float:
    """Of `edge_bytes`, those of the residual that the first copy carries: they cross once, deduplicated or not."""
    ffn = edge + 1
    carried = graph.pieces[ffn].kind == "experts" and rides(graph, ffn) and model.shared_experts > 0
    if not carried or graph.shared_side != "attention":
        return 0.0
    return load.tokens / load.tp * model.hidden * ELEMENT_BYTES[dtype]


def split_elements(model: ModelSpec, kind: str, direction: str, *, moe: bool) -> tuple[int, ...]:
    """Elements per row that each collective around a tensor-parallel piece gathers or scatters in one direction.

    With sequence parallelism a block gathers its rows before and scatters them after, one of each in both directions:
    hidden elements, or for latent attention with narrow queries only the narrow vectors before. Shared experts
    (`moe`) are a second block. The embedding scatters and the head gathers, once per direction. Left out: the second
    gather of the backward, for the weights' gradient, which overlaps (Megatron-LM), and the loss's sums.
    """
    hidden = model.hidden
    if kind == "attention":
        shape = model.attention
        narrow = isinstance(shape, Latent) and shape.q_lora_rank > 0
        before = shape.q_lora_rank + shape.kv_lora_rank + shape.rope_head_dim if narrow else hidden  # type: ignore[union-attr]
        shared = (hidden, hidden) if moe and model.shared_experts else ()
        return (before, hidden, *shared) if direction == "F" else (hidden, before, *shared)
    if kind == "experts":
        return row_width(model), row_width(model)
    if kind == "dense":
        return hidden, hidden
    return (hidden,) if kind in ("embedding", "head") else ()
