"""DeepSeek: `model_type` deepseek (DeepSeek-MoE), deepseek_v2, deepseek_v3; kimi_k2 has the keys of the last."""

from __future__ import annotations

from typing import Any, Literal

from moeplan.spec.huggingface.common import Fields, Routed, grouped_query, model_of, refuse_bias
from moeplan.spec.model import Count, Latent, ModelSpec, Scale, Size
from moeplan.spec.record import convert


class Experts(Routed, kw_only=True):
    """Keys of routed and shared experts behind the first, dense layers."""

    n_routed_experts: Size
    moe_intermediate_size: Size
    intermediate_size: Size
    n_shared_experts: Count | None = None
    first_k_dense_replace: Count = 0
    moe_layer_freq: Literal[1] = 1
    norm_topk_prob: bool = False


class _DeepSeek(Experts, kw_only=True):
    scoring_func: Literal["softmax"] = "softmax"


class Grouped(Experts, kw_only=True):
    """Keys of experts in groups, and of modules that predict further tokens."""

    n_group: Size | None = None
    topk_group: Size | None = None
    routed_scaling_factor: Scale = 1.0
    num_nextn_predict_layers: Count = 0


class _Latent(Grouped, kw_only=True):
    q_lora_rank: Size | None
    """Must be given, null for none: left out, its default is a rank that the smaller models do not have."""
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size


class _DeepSeekV2(_Latent, kw_only=True):
    scoring_func: Literal["softmax"] = "softmax"
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    n_shared_experts: Count | None = 2


class _DeepSeekV3(_Latent, kw_only=True):
    scoring_func: Literal["sigmoid"] = "sigmoid"
    topk_method: Literal["noaux_tc"] = "noaux_tc"
    n_shared_experts: Count | None = 1
    n_group: Size | None = 8
    topk_group: Size | None = 4
    first_k_dense_replace: Count = 3
    norm_topk_prob: bool = True
    routed_scaling_factor: Scale = 2.5


def deepseek(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """DeepSeek-MoE: `first_k_dense_replace` dense layers first, then routed and shared experts of one width."""
    config = convert(raw, _DeepSeek, where=where)
    refuse_bias(config, where)
    return model_of(config, grouped_query(config, where), name, where, _experts(config))


def deepseek_v2(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """DeepSeek-V2: latent attention; groups of experts count only where `topk_method` chooses by group."""
    config = convert(raw, _DeepSeekV2, where=where)
    refuse_bias(config, where)
    return model_of(config, _latent(config), name, where, routed(config, config.topk_method != "greedy"))


def deepseek_v3(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """DeepSeek-V3: as V2, with sigmoid scores, a correction bias per expert, and modules that predict further tokens.

    The published file's `quantization_config` (fp8) says how weights are stored, not what is trained.
    """
    config = convert(raw, _DeepSeekV3, where=where)
    refuse_bias(config, where)
    fields = routed(config, True)
    fields["scoring"] = "sigmoid"
    return model_of(config, _latent(config), name, where, fields)


def _experts(config: Experts) -> Fields:
    return {
        "experts": config.n_routed_experts,
        "expert_width": config.moe_intermediate_size,
        "shared_experts": config.n_shared_experts or 0,
        "dense_layers": config.first_k_dense_replace,
        "dense_width": config.intermediate_size if config.first_k_dense_replace else 0,
        "normalize_top_k": config.norm_topk_prob,
    }


def routed(config: Grouped, by_group: bool) -> Fields:
    """Fields of the experts; groups of them where the router chooses by group."""
    fields = _experts(config)
    fields["routed_scale"] = config.routed_scaling_factor
    fields["mtp_layers"] = config.num_nextn_predict_layers
    if by_group:
        fields["expert_groups"], fields["top_k_groups"] = config.n_group or 1, config.topk_group or 1
    return fields


def _latent(config: _Latent) -> Latent:
    return Latent(
        heads=config.num_attention_heads,
        q_lora_rank=config.q_lora_rank or 0,
        kv_lora_rank=config.kv_lora_rank,
        nope_head_dim=config.qk_nope_head_dim,
        rope_head_dim=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
    )
