"""FLOP of one token by layer and component, as publications count them; recomputation is never counted.

2 per multiply-add. A matrix costs as much forward as for the gradient of its input, and of its weights; scores, values
and states have no weights and cost twice as much backward as forward: a step is three forwards (`STEP`). What
FlashAttention computes again in its backward is no model FLOP.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from moeplan.resources import attention, mixer
from moeplan.resources import parameters as count
from moeplan.spec.model import GroupedQuery, ModelSpec, has_ffn, is_dense, row_width, shared_width, window_of

STEP = 3
"""Forward, input gradient and weight gradient of a matrix; one and two passes of what has no weights."""

Pairs = Literal["half", "full"]
"""Query-key pairs that a layer without a window counts: the causal half, or all."""


def layer_flop(model: ModelSpec, layer: int, seq_len: int, *, pairs: Pairs = "half") -> dict[str, float]:
    """Forward FLOP of one token in `layer` by component; a step has `STEP` times as many."""
    return _mixing(model, window_of(model, layer), seq_len, pairs) | _ffn(
        model, moe=not is_dense(model, layer), there=has_ffn(model, layer)
    )


def head_flop(model: ModelSpec) -> float:
    """Forward FLOP of one token's logits: 2 hidden vocab."""
    return 2.0 * model.hidden * model.vocab


def further_token_flop(model: ModelSpec, seq_len: int, *, pairs: Pairs = "half", router: bool = True) -> float:
    """Forward FLOP of one token in one module that predicts a further token.

    A layer with full attention and experts (dense where the model has none), a matrix 2 hidden x hidden and the logits
    once more (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    parts = _mixing(model, 0, seq_len, pairs) | _ffn(model, moe=model.experts > 0, there=True)
    return _total(parts, router=router) + 4.0 * model.hidden**2 + head_flop(model)


def forward_flop(model: ModelSpec, seq_len: int, *, pairs: Pairs = "half", router: bool = True) -> float:
    """Forward FLOP of one token through all layers and the head, with the router or without.

    Norms, biases, embedding lookup, softmax and rotary embedding are left out, and modules that predict further tokens
    (`further_token_flop`).
    """
    alike = Counter(
        (window_of(model, layer), not is_dense(model, layer), has_ffn(model, layer))
        for layer in range(model.num_layers)
    )
    layers = (
        number * _total(_mixing(model, window, seq_len, pairs) | _ffn(model, moe=moe, there=there), router=router)
        for (window, moe, there), number in alike.items()
    )
    return sum(layers) + head_flop(model)


def by_parameters(model: ModelSpec, seq_len: int, *, pairs: Pairs = "half") -> float:
    """FLOP of one token's step by the rule of thumb: 6 per parameter that it meets beyond the embedding's lookup.

    6 N + 3 (scores and values), N with norms and biases, a tied embedding as the head that it is; scans are added.
    More than `STEP` forwards by norms and biases alone.
    """
    met = count.active_parameters(model) - (0 if model.tied_embeddings else count.embedding_parameters(model))
    windows = Counter(window_of(model, layer) for layer in range(model.num_layers))
    unweighted = sum(number * _unweighted(_mixing(model, window, seq_len, pairs)) for window, number in windows.items())
    return 6.0 * met + STEP * unweighted


def _total(parts: dict[str, float], *, router: bool) -> float:
    return sum(flop for name, flop in parts.items() if router or name != "router")


def _unweighted(parts: dict[str, float]) -> float:
    return parts.get("core", 0.0) + parts.get("scan", 0.0)


def _mixing(model: ModelSpec, window: int, seq_len: int, pairs: Pairs) -> dict[str, float]:
    """Projections and scores of attention, or projections, convolution and scan of a mixer."""
    if window < 0:
        matrices = sum(p.inputs * p.outputs for p in mixer.projections(model))
        return {"projections": 2.0 * matrices, "convolution": mixer.conv_flop(model), "scan": mixer.scan_flop(model)}
    matrices = sum(p.inputs * p.outputs for p in attention.projections(model))
    widths = attention.core(model)
    chunked = isinstance(model.attention, GroupedQuery) and model.attention.chunked
    seen = attention.pairs_per_token(seq_len, window, chunked=chunked)
    seen *= 2 if pairs == "full" and not window else 1
    return {"projections": 2.0 * matrices, "core": 2 * seen * (widths.queries + widths.output)}


def _ffn(model: ModelSpec, *, moe: bool, there: bool) -> dict[str, float]:
    """What follows attention: experts with their router, a dense FFN, or nothing."""
    if not there:
        return {}
    m, hidden = count.ffn_matrices(model), model.hidden
    if not moe:
        return {"dense": 2.0 * m * hidden * model.dense_width}
    return {
        "router": 2.0 * hidden * (model.experts + model.shared_gate),
        "latent": 2.0 * count.latent_parameters(model),
        "experts": 2.0 * m * model.top_k * row_width(model) * model.expert_width,
        "shared": 2.0 * m * hidden * shared_width(model),
    }
