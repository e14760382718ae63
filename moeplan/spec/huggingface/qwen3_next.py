"""Qwen3-Next: `model_type` qwen3_next."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Fields, Routed, grouped_query, model_of, refuse_bias
from moeplan.spec.huggingface.layer_types import full_every
from moeplan.spec.model import Count, GatedDelta, ModelSpec, Size
from moeplan.spec.record import convert


class _Qwen3Next(Routed, kw_only=True):
    num_experts: Size
    head_dim: Size | None = 256
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Count
    linear_num_key_heads: Size
    linear_num_value_heads: Size
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    linear_conv_kernel_dim: Size = 4
    full_attention_interval: Size = 4
    layer_types: tuple[str, ...] | None = None
    decoder_sparse_step: Size = 1
    mlp_only_layers: tuple[int, ...] | None = None
    norm_topk_prob: bool = True


def qwen3_next(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Qwen3-Next: each `full_attention_interval`-th layer has attention with an output gate, others a gated delta rule.

    Every layer has experts and a shared one with a gate. The file does not name the checkpoint's module that predicts
    a further token; `mtp_layers` stays 0.
    """
    config = convert(raw, _Qwen3Next, where=where)
    refuse_bias(config, where)
    if config.decoder_sparse_step != 1 or config.mlp_only_layers:
        raise SpecError(
            f"{where}: decoder_sparse_step other than 1 and mlp_only_layers are not read; right: all layers"
        )
    every = config.full_attention_interval
    if config.layer_types is not None:
        every = full_every(config.layer_types, "linear_attention", config.num_hidden_layers, where)
    shared = config.shared_expert_intermediate_size
    fields: Fields = {
        "experts": config.num_experts,
        "expert_width": config.moe_intermediate_size,
        "normalize_top_k": config.norm_topk_prob,
        "shared_experts": 1 if shared else 0,
        "shared_width": shared,
        "shared_gate": shared > 0,
        "pattern": "ME" * (every - 1) + "*E",
        "mixer": _mixer(config) if every > 1 else None,
    }
    attention = structs.replace(grouped_query(config, where), qk_norm=True, output_gate=True)
    return model_of(config, attention, name, where, fields)


def _mixer(config: _Qwen3Next) -> GatedDelta:
    return GatedDelta(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_head_dim=config.linear_key_head_dim,
        value_head_dim=config.linear_value_head_dim,
        conv=config.linear_conv_kernel_dim,
    )
