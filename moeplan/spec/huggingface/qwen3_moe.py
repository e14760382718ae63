"""Qwen3-MoE: `model_type` qwen3_moe."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Config, grouped_query, model_of, refuse_bias
from moeplan.spec.model import ModelSpec, Size
from moeplan.spec.record import convert


class _Qwen3(Config, kw_only=True):
    num_experts: Size
    moe_intermediate_size: Size
    norm_topk_prob: bool = False
    decoder_sparse_step: Literal[1] = 1
    mlp_only_layers: tuple[int, ...] | None = None
    use_sliding_window: bool = False


def qwen3_moe(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Qwen3-MoE: every layer has experts, queries and keys are normalized; `intermediate_size` is not used."""
    config = convert(raw, _Qwen3, where=where)
    refuse_bias(config, where)
    if config.mlp_only_layers:
        raise SpecError(f"{where}: mlp_only_layers {list(config.mlp_only_layers)} is not read; right: [], or left out")
    if config.use_sliding_window:
        raise SpecError(f"{where}: use_sliding_window true is not read; right: false")
    return model_of(
        config,
        structs.replace(grouped_query(config, where), qk_norm=True),
        name,
        where,
        {
            "experts": config.num_experts,
            "expert_width": config.moe_intermediate_size,
            "normalize_top_k": config.norm_topk_prob,
        },
    )
