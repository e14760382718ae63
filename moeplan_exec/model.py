"""The pieces of a MoE transformer as functions of their weights and inputs.

Every piece takes and gives tuples of tensors, rows first: T tokens at home, n rows that arrived, H hidden, k choices.
Integer tensors pass beside the rows and have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from moeplan.layout import StageGraph, rides
from moeplan.spec.model import ModelSpec, grouped

Weights = Mapping[str, Tensor]
Tensors = tuple[Tensor, ...]
Forward = Callable[..., Tensors]


def swiglu(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x)) of rows [n, H]."""
    gate, up = x @ weights[f"{prefix}.gate"].T, x @ weights[f"{prefix}.up"].T
    return (functional.silu(gate) * up) @ weights[f"{prefix}.down"].T


def norm(model: ModelSpec, x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last dimension."""
    return functional.rms_norm(x, weight.shape, weight, model.norm_eps)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotary embedding, halves paired, of [sequences, heads, length, head_dim]."""
    length, width = x.shape[-2:]
    frequencies = theta ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angles = torch.arange(length, device=x.device, dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def embed(weights: Weights, tokens: Tensor) -> Tensors:
    """Rows [T, H] of tokens [sequences, length]."""
    return (functional.embedding(tokens.flatten(), weights["embedding"]),)


def attend(model: ModelSpec, layer: int, seq_len: int, weights: Weights, x: Tensor) -> Tensor:
    """x + causal grouped-query attention of its norm [T, H]; T is whole sequences."""
    prefix, a = f"layers.{layer}.attention", grouped(model)
    h = norm(model, x, weights[f"{prefix}.norm"])

    def heads(name: str) -> Tensor:
        y = (h @ weights[f"{prefix}.{name}"].T).view(
            -1, seq_len, weights[f"{prefix}.{name}"].shape[0] // a.head_dim, a.head_dim
        )
        y = norm(model, y, weights[f"{prefix}.{name}_norm"]) if a.qk_norm and name != "v" else y
        return y.transpose(1, 2)

    q, k = rotate(heads("q"), model.rope_theta), rotate(heads("k"), model.rope_theta)
    y = functional.scaled_dot_product_attention(q, k, heads("v"), is_causal=True, enable_gqa=True)
    return x + y.transpose(1, 2).reshape(-1, a.heads * a.head_dim) @ weights[f"{prefix}.o"].T


def attention(model: ModelSpec, layer: int, seq_len: int, weights: Weights, x: Tensor) -> Tensors:
    """Attention before a dense FFN."""
    return (attend(model, layer, seq_len, weights, x),)


def route(model: ModelSpec, weights: Weights, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
    """Gate weights and expert numbers of each token's choices [T, k]."""
    probabilities = torch.softmax(h @ weights[f"layers.{layer}.router"].T, dim=-1)
    gate, choice = probabilities.topk(model.top_k, dim=-1)
    return (gate / gate.sum(dim=-1, keepdim=True) if model.normalize_top_k else gate), choice


def routed_attention(model: ModelSpec, layer: int, seq_len: int, ride: bool, weights: Weights, x: Tensor) -> Tensors:
    """Attention and router: (rows, gate weights, choices, residual).

    Where the residual rides, rows are un-normalised and are their own residual unless shared experts add to it;
    otherwise rows are normalised and the residual stays at home.
    """
    y = attend(model, layer, seq_len, weights, x)
    h = norm(model, y, weights[f"layers.{layer}.ffn_norm"])
    gate, choice = route(model, weights, layer, h)
    residual = y + swiglu(weights, f"layers.{layer}.shared", h) if model.shared_experts else y
    if not ride:
        return h, gate, choice, residual
    return (y, gate, choice, residual) if model.shared_experts else (y, gate, choice)


def experts(
    model: ModelSpec,
    layer: int,
    own: range,
    ride: bool,
    weights: Weights,
    meta: Tensor,
    rows: Tensor,
    *residual: Tensor,
) -> Tensors:
    """Weighted expert outputs [n, H] of rows [n, H + 1], whose last column is the gate weight, with their token ids.

    `meta` [n, 3] holds token id, slot of the choice, and the expert counted from this rank's first. Where the residual
    rides, the norm is applied here, and the row of each first choice adds the residual: its own, or the one beside it.
    """
    ids, slot, expert = meta.unbind(dim=1)
    x, gate = rows[:, :-1], rows[:, -1:]
    h = norm(model, x, weights[f"layers.{layer}.ffn_norm"]) if ride else x
    order = expert.argsort(stable=True)
    chunks = torch.split(h[order], expert.bincount(minlength=len(own)).tolist())
    done = [swiglu(weights, f"layers.{layer}.experts.{e}", c) for e, c in zip(own, chunks, strict=True) if len(c)]
    out = gate * torch.cat(done)[order.argsort()] if done else gate * h
    if ride:
        first = (slot == 0).nonzero().flatten()
        out = out.index_add(0, first, residual[0] if residual else x[first])
    return out, ids[:, None]


def dense(model: ModelSpec, layer: int, weights: Weights, *inputs: Tensor) -> Tensors:
    """x + SwiGLU of its norm [n, H]; token ids that came with the rows go on with them."""
    *ids, x = inputs
    h = norm(model, x, weights[f"layers.{layer}.ffn_norm"])
    return (x + swiglu(weights, f"layers.{layer}.dense", h), *ids)


def join(weights: Weights, x: Tensor) -> Tensors:
    """Rows as they are: the edge before has summed them."""
    return (x,)


def head(model: ModelSpec, total_tokens: int, weights: Weights, x: Tensor, labels: Tensor) -> Tensors:
    """This rank's share of the mean cross entropy over the `total_tokens` of a step []."""
    h = norm(model, x, weights["head.norm"])
    logits = h @ weights["embedding" if model.tied_embeddings else "head.weight"].T
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (functional.cross_entropy(wide, labels, reduction="sum") / total_tokens,)


def forward_of(model: ModelSpec, graph: StageGraph, number: int, *, seq_len: int, batch: int, own: range) -> Forward:
    """The function of piece `number` on a rank that holds the experts `own`: (weights, *inputs) to outputs."""
    piece = graph.pieces[number]
    layer = piece.layer
    if piece.kind == "attention" and graph.pieces[number + 1].kind == "experts":
        return partial(routed_attention, model, layer, seq_len, rides(graph, number + 1))
    forwards: dict[str, Forward] = {
        "embedding": embed,
        "attention": partial(attention, model, layer, seq_len),
        "experts": partial(experts, model, layer, own, rides(graph, number)),
        "dense": partial(dense, model, layer),
        "join": join,
        "head": partial(head, model, batch * seq_len),
    }
    return forwards[piece.kind]
