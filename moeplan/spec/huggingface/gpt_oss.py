"""gpt-oss: `model_type` gpt_oss."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Routed, grouped_query, model_of
from moeplan.spec.huggingface.layer_types import full_every
from moeplan.spec.model import Epsilon, ModelSpec, Size
from moeplan.spec.record import convert

_WINDOWED = "sliding_attention"


class _GptOss(Routed, kw_only=True):
    num_local_experts: Size
    intermediate_size: Size
    head_dim: Size | None = 64
    rms_norm_eps: Epsilon = 1e-5
    attention_bias: bool = True
    rope_scaling: dict[str, Any] | None = msgspec.field(default_factory=lambda: {"rope_type": "yarn"})
    sliding_window: Size | None = 128
    layer_types: tuple[str, ...] | None = None


def gpt_oss(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """gpt-oss: `intermediate_size` is the width of an expert; sinks, biases in router and experts, windowed layers.

    Gate weights are a softmax over a token's choices: softmax over all, normalized. Its clamped activation costs what
    silu does. Without `layer_types` layers alternate, windowed first, as in GptOssConfig, or are full without a
    `sliding_window`; `assumed` says so.
    """
    config = convert(raw, _GptOss, where=where)
    window, full_every = _windows(config, where)
    attention = structs.replace(
        grouped_query(config, where), bias=config.attention_bias, sinks=True, window=window, full_every=full_every
    )
    model = model_of(
        config,
        attention,
        name,
        where,
        {"experts": config.num_local_experts, "expert_width": config.intermediate_size, "ffn_bias": True},
    )
    return model if config.layer_types else structs.replace(model, assumed=("attention.window",))


def _windows(config: _GptOss, where: str) -> tuple[int, int]:
    """(window, full_every) of the file's `layer_types`; SpecError where no such pair gives them."""
    if config.layer_types is None:
        return (config.sliding_window, 2) if config.sliding_window else (0, 1)
    every = full_every(config.layer_types, _WINDOWED, config.num_hidden_layers, where)
    if every == 1:
        return 0, 1
    if config.sliding_window is None:
        raise SpecError(f"{where}: sliding_window null with {_WINDOWED!r} in layer_types; right: the window's tokens")
    return config.sliding_window, every
