"""Phi-3.5-MoE: `model_type` phimoe."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from moeplan.spec.huggingface.common import Routed, grouped_query, model_of, refuse_window
from moeplan.spec.model import Epsilon, ModelSpec, Size
from moeplan.spec.record import convert


class _Phi(Routed, kw_only=True):
    num_local_experts: Size
    intermediate_size: Size
    max_position_embeddings: Size
    sliding_window: Size | None = None
    rms_norm_eps: Epsilon = 1e-5
    lm_head_bias: bool = False


def phimoe(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Phi-3.5-MoE: experts of width `intermediate_size`, LayerNorms with a bias, biases in attention and head.

    Its router (SparseMixer) gives each choice a softmax of its own, so that gate weights do not sum to one.
    """
    config = convert(raw, _Phi, where=where)
    refuse_window(config.sliding_window, config.max_position_embeddings, where)
    return model_of(
        config,
        structs.replace(grouped_query(config, where), bias=config.attention_bias),
        name,
        where,
        {
            "experts": config.num_local_experts,
            "expert_width": config.intermediate_size,
            "normalize_top_k": False,
            "head_bias": config.lm_head_bias,
            "norm": "layer_bias",
        },
    )
