"""Models without experts: `model_type` llama and qwen3."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Config, grouped_query, model_of, refuse_bias
from moeplan.spec.model import GroupedQuery, ModelSpec, Size
from moeplan.spec.record import convert


class _Dense(Config, kw_only=True):
    intermediate_size: Size


class _Llama(_Dense, kw_only=True):
    mlp_bias: bool = False


class _Qwen3(_Dense, kw_only=True):
    head_dim: Size | None = 128
    use_sliding_window: bool = False


def llama(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Llama: every layer is dense; older files leave out key-value heads (as many as heads) and the rotary base."""
    older = dict(raw)
    if older.get("num_key_value_heads") is None and "num_attention_heads" in older:
        older["num_key_value_heads"] = older["num_attention_heads"]
    if older.get("rope_theta") is None and older.get("rope_parameters") is None:
        older["rope_theta"] = 10000.0
    config = convert(older, _Llama, where=where)
    if config.mlp_bias:
        raise SpecError(f"{where}: mlp_bias true is not read; right: false")
    return _model(config, structs.replace(grouped_query(config, where), bias=config.attention_bias), name, where)


def qwen3(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Qwen3 without experts: every layer is dense, queries and keys are normalized."""
    config = convert(raw, _Qwen3, where=where)
    refuse_bias(config, where)
    if config.use_sliding_window:
        raise SpecError(f"{where}: use_sliding_window true is not read; right: false")
    return _model(config, structs.replace(grouped_query(config, where), qk_norm=True), name, where)


def _model(config: _Dense, attention: GroupedQuery, name: str, where: str) -> ModelSpec:
    layers, width = config.num_hidden_layers, config.intermediate_size
    return model_of(config, attention, name, where, {"dense_layers": layers, "dense_width": width})
