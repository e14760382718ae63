"""Mixtral: `model_type` mixtral."""

from __future__ import annotations

from typing import Any

from moeplan.spec.huggingface.common import Routed, grouped_query, model_of, refuse_bias, refuse_window
from moeplan.spec.model import Epsilon, ModelSpec, Size
from moeplan.spec.record import convert


class _Mixtral(Routed, kw_only=True):
    num_local_experts: Size
    intermediate_size: Size
    max_position_embeddings: Size
    sliding_window: Size | None = None
    rms_norm_eps: Epsilon = 1e-5


def mixtral(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Mixtral: every layer has experts of width `intermediate_size`; gate weights are normalized."""
    config = convert(raw, _Mixtral, where=where)
    refuse_bias(config, where)
    refuse_window(config.sliding_window, config.max_position_embeddings, where)
    return model_of(
        config,
        grouped_query(config, where),
        name,
        where,
        {"experts": config.num_local_experts, "expert_width": config.intermediate_size},
    )
