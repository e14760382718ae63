"""Llama 4: `model_type` llama4, and llama4_text for its text model alone."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Routed, grouped_query, model_of, refuse_bias
from moeplan.spec.huggingface.layer_types import FULL, full_every
from moeplan.spec.model import Epsilon, GroupedQuery, ModelSpec, Size
from moeplan.spec.record import convert

_CHUNKED = "chunked_attention"


class _Llama4(Routed, kw_only=True):
    num_local_experts: Size
    intermediate_size: Size
    intermediate_size_mlp: Size
    head_dim: Size | None = 128
    rms_norm_eps: Epsilon = 1e-5
    interleave_moe_layer_step: Size = 1
    moe_layers: tuple[int, ...] | None = None
    attention_chunk_size: Size | None = 8192
    layer_types: tuple[str, ...] | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Size = 4
    use_qk_norm: bool = True


def llama4(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Llama 4: the text model inside `text_config`; the parts that read images are left out.

    Tied embeddings and how the checkpoint is quantised stand beside the table.
    """
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise SpecError(f"{where}: text_config is missing; right: the table of the text model")
    beside: dict[str, Any] = {key: raw[key] for key in ("tie_word_embeddings", "quantization_config") if key in raw}
    return llama4_text(beside | text, name, where)


def llama4_text(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Llama 4's text model: experts in every `interleave_moe_layer_step`-th layer, and one shared expert beside them.

    Both are `intermediate_size` wide, dense layers `intermediate_size_mlp`. Layers with rotary embedding see their
    own chunk of tokens, each 4th layer without it sees all. The QK norm, which has no weights, counts in every layer.
    """
    config = convert(raw, _Llama4, where=where)
    refuse_bias(config, where)
    step, layers = config.interleave_moe_layer_step, config.num_hidden_layers
    right = tuple(range(step - 1, layers, step))
    if config.moe_layers is not None and config.moe_layers != right:
        raise SpecError(f"{where}: moe_layers {list(config.moe_layers)} is not read; right: every {step}. layer")
    return model_of(
        config,
        _attention(config, where),
        name,
        where,
        {
            "experts": config.num_local_experts,
            "expert_width": config.intermediate_size,
            "shared_experts": 1,
            "moe_every": step,
            "dense_width": config.intermediate_size_mlp if step > 1 else 0,
            "normalize_top_k": False,
            "scoring": "plain_sigmoid",
        },
    )


def _attention(config: _Llama4, where: str) -> GroupedQuery:
    every = full_every(_types(config), _CHUNKED, config.num_hidden_layers, where)
    chunk = config.attention_chunk_size or 0
    chunks = {"window": chunk, "full_every": every, "chunked": True} if chunk and every > 1 else {}
    norm = {"qk_norm": True, "qk_norm_weights": "none"} if config.use_qk_norm else {}
    return structs.replace(grouped_query(config, where), **chunks, **norm)


def _types(config: _Llama4) -> tuple[str, ...]:
    """Kind of attention of each layer: as listed, or chunked where the layer has rotary embedding (1)."""
    if config.layer_types:
        return config.layer_types
    every = config.no_rope_layer_interval
    turned = config.no_rope_layers or [(layer + 1) % every for layer in range(config.num_hidden_layers)]
    return tuple(_CHUNKED if rope else FULL for rope in turned)
