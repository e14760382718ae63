"""Hunyuan: `model_type` hunyuan_v1_moe."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import structs

from moeplan.spec.huggingface.common import Config, Fields, Routed, grouped_query, model_of, refuse_bias
from moeplan.spec.huggingface.layer_types import uniform
from moeplan.spec.model import Count, ModelSpec, Size
from moeplan.spec.record import convert


class _Hunyuan(Config, kw_only=True):
    num_experts: Size | tuple[Size, ...]
    moe_topk: Size | tuple[Size, ...]
    intermediate_size: Size
    moe_intermediate_size: Size | tuple[Size, ...] | None = None
    num_shared_expert: Count | tuple[Count, ...] = 1
    use_mixed_mlp_moe: bool = True
    moe_layer_num_skipped: Count = 0
    attention_head_dim: Size | None = None
    use_qk_norm: bool = True
    use_cla: Literal[False] = False
    use_mla: Literal[False] = False
    mlp_bias: Literal[False] = False


def hunyuan(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Hunyuan-A13B: routed and shared experts; lists with one entry per layer must be alike in all.

    Attention that shares keys and values between layers (`use_cla`) is refused.
    """
    file = convert(raw, _Hunyuan, where=where)
    refuse_bias(file, where)
    top_k = uniform(file.moe_topk, file.num_hidden_layers, "moe_topk", where)
    config = convert({"rms_norm_eps": 1e-5} | raw | {"num_experts_per_tok": top_k}, Routed, where=where)
    if config.head_dim is None:
        config.head_dim = file.attention_head_dim
    attention = structs.replace(grouped_query(config, where), qk_norm=file.use_qk_norm)
    return model_of(config, attention, name, where, _experts(file, where))


def _experts(file: _Hunyuan, where: str) -> Fields:
    layers, skipped = file.num_hidden_layers, file.moe_layer_num_skipped
    width = file.moe_intermediate_size or file.intermediate_size
    shared = uniform(file.num_shared_expert, layers, "num_shared_expert", where)
    return {
        "experts": uniform(file.num_experts, layers, "num_experts", where),
        "expert_width": uniform(width, layers, "moe_intermediate_size", where),
        "shared_experts": shared if file.use_mixed_mlp_moe else 0,
        "dense_layers": skipped,
        "dense_width": file.intermediate_size if skipped else 0,
    }
