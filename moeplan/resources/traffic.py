"""Bytes that one rank sends over one edge for one micro-batch; no seconds."""

from __future__ import annotations

from moeplan.layout import StageGraph, rides
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.spec.model import ModelSpec

ROUTE_BYTES = 16
"""Beside each routed row: token number (8) and expert number (4), gate weight (4)."""


def edge_bytes(model: ModelSpec, graph: StageGraph, edge: int, phase: str, load: Load, *, dtype: str) -> float:
    """Bytes that a rank of the sending side with `load` gives to `edge` in `phase` (F and R rows, B their gradient).

    Routed rows: k copies of hidden elements, and what routes them; where the residual rides and shared experts sit on
    the attention side, the first copy carries hidden elements more. Dense rows: one copy. `load.tokens` are tokens of
    the attention side's rank, whichever side sends.
    """
    size = ELEMENT_BYTES[dtype]
    kind = graph.edges[edge].kind
    row = model.hidden * size
    if kind == "local":
        return 0.0
    if kind == "send":
        return load.tokens / load.tp * row
    ffn = edge + 1 if kind in ("dispatch", "m2n") else edge
    routed = graph.pieces[ffn].kind == "experts"
    copies = model.top_k if routed else 1
    total = load.tokens / load.tp * copies * row
    if kind in ("dispatch", "m2n"):
        total += load.tokens / load.tp * copies * (ROUTE_BYTES if phase != "B" else 4)
        if routed and rides(graph, ffn) and model.shared_experts and graph.shared_side == "attention":
            total += load.tokens / load.tp * row
    return total
