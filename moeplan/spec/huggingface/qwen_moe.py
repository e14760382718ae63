"""Qwen MoE: `model_type` qwen2_moe and qwen3_moe."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Fields, Routed, grouped_query, model_of, refuse_bias
from moeplan.spec.model import ModelSpec, Size
from moeplan.spec.record import convert


class _Qwen(Routed, kw_only=True):
    num_experts: Size
    moe_intermediate_size: Size
    norm_topk_prob: bool = False
    decoder_sparse_step: Size = 1
    intermediate_size: Size | None = None
    mlp_only_layers: tuple[int, ...] | None = None
    use_sliding_window: bool = False


class _Qwen2(_Qwen, kw_only=True):
    shared_expert_intermediate_size: Size
    qkv_bias: bool = True


def qwen3_moe(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Qwen3-MoE: queries and keys are normalized.

    Every `decoder_sparse_step`-th layer has experts, the others are dense of width `intermediate_size`, which is not
    used where the step is 1.
    """
    config = convert(raw, _Qwen, where=where)
    attention = structs.replace(grouped_query(config, where), qk_norm=True)
    return model_of(config, attention, name, where, _experts(config, where))


def qwen2_moe(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Qwen2-MoE, Qwen1.5-MoE: q, k and v have biases; one shared expert of its own width, weighed by a gate."""
    config = convert(raw, _Qwen2, where=where)
    attention = structs.replace(grouped_query(config, where), bias=config.qkv_bias, output_bias=False)
    fields, width = _experts(config, where), config.shared_expert_intermediate_size
    shared: Fields = {"shared_experts": 1, "shared_width": width, "shared_gate": True}
    return model_of(config, attention, name, where, {**fields, **shared})


def _experts(config: _Qwen, where: str) -> Fields:
    refuse_bias(config, where)
    if config.mlp_only_layers:
        raise SpecError(f"{where}: mlp_only_layers {list(config.mlp_only_layers)} is not read; right: [], or left out")
    if config.use_sliding_window:
        raise SpecError(f"{where}: use_sliding_window true is not read; right: false")
    fields: Fields = {
        "experts": config.num_experts,
        "expert_width": config.moe_intermediate_size,
        "normalize_top_k": config.norm_topk_prob,
    }
    step, width = config.decoder_sparse_step, config.intermediate_size
    if step == 1:
        return fields
    if width is None:
        raise SpecError(f"{where}: decoder_sparse_step {step} without intermediate_size; right: the dense width")
    return {**fields, "moe_every": step, "dense_width": width}
