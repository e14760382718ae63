"""DBRX: `model_type` dbrx."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Routed, grouped_query, model_of
from moeplan.spec.model import Layers, ModelSpec, Size, Theta
from moeplan.spec.record import convert


class _Activation(msgspec.Struct):
    name: Literal["silu"] = "silu"


class _Ffn(msgspec.Struct, kw_only=True):
    ffn_hidden_size: Size
    moe_num_experts: Size
    moe_top_k: Size
    moe_normalize_expert_weights: float | None = 1.0
    ffn_act_fn: _Activation = msgspec.field(default_factory=_Activation)


class _Attention(msgspec.Struct, kw_only=True):
    kv_n_heads: Size
    rope_theta: Theta = 10000.0


class _Dbrx(msgspec.Struct, kw_only=True):
    d_model: Size
    n_heads: Size
    n_layers: Layers
    vocab_size: Size
    attn_config: _Attention
    ffn_config: _Ffn
    tie_word_embeddings: bool = False
    quantization_config: dict[str, Any] | None = None


def dbrx(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """DBRX: keys of attention and experts are nested; LayerNorms without a bias.

    `clip_qkv`, which bounds queries, keys and values, is passed over: it costs nothing that is counted.
    """
    file = convert(raw, _Dbrx, where=where)
    if file.d_model % file.n_heads:
        raise SpecError(f"{where}: d_model {file.d_model} % n_heads {file.n_heads} is not 0")
    ffn = file.ffn_config
    config = Routed(
        vocab_size=file.vocab_size,
        hidden_size=file.d_model,
        num_hidden_layers=file.n_layers,
        num_attention_heads=file.n_heads,
        num_key_value_heads=file.attn_config.kv_n_heads,
        num_experts_per_tok=ffn.moe_top_k,
        rope_theta=file.attn_config.rope_theta,
        rms_norm_eps=1e-5,
        tie_word_embeddings=file.tie_word_embeddings,
        quantization_config=file.quantization_config,
    )
    return model_of(
        config,
        grouped_query(config, where),
        name,
        where,
        {
            "experts": ffn.moe_num_experts,
            "expert_width": ffn.ffn_hidden_size,
            "normalize_top_k": ffn.moe_normalize_expert_weights is not None,
            "norm": "layer",
        },
    )
