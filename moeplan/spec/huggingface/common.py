"""What the configuration files of all families share: keys, their defaults, and how they make a model."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.model import (
    Attention,
    Count,
    Epsilon,
    GroupedQuery,
    Layers,
    Mixer,
    ModelSpec,
    Size,
    Theta,
    check_model,
)
from moeplan.spec.record import validated


class Rope(msgspec.Struct):
    """Where newer files keep the base of the rotary embedding."""

    rope_theta: Theta
    rope_type: str = "default"


class Config(msgspec.Struct, kw_only=True):
    """The keys that every family shares; others are passed over."""

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size | None = None
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Theta | None = None
    rope_parameters: Rope | None = None
    rope_scaling: dict[str, Any] | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    quantization_config: dict[str, Any] | None = None


class Routed(Config, kw_only=True):
    """The keys that every family with routed experts shares."""

    num_experts_per_tok: Size


class Fields(TypedDict, total=False):
    """Fields of a model that its family sets."""

    experts: int
    top_k: int
    expert_width: int
    expert_latent: int
    gated: bool
    pattern: str
    mixer: Mixer | None
    shared_experts: int
    shared_width: int
    shared_gate: bool
    dense_layers: int
    moe_every: int
    dense_width: int
    normalize_top_k: bool
    ffn_bias: bool
    head_bias: bool
    norm: Literal["rms", "layer", "layer_bias"]
    scoring: Literal["softmax", "sigmoid", "plain_sigmoid"]
    expert_groups: int
    top_k_groups: int
    routed_scale: float
    mtp_layers: Count


def model_of(config: Config, attention: Attention, name: str, where: str, fields: Fields) -> ModelSpec:
    """The model that the shared keys of `config`, its attention and the family's own `fields` make."""
    given: Fields = {"experts": 0, "expert_width": 0, "top_k": 0}
    if isinstance(config, Routed):
        given["top_k"] = config.num_experts_per_tok
    given.update(fields)
    try:
        model = ModelSpec(
            name=name,
            num_layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            vocab=config.vocab_size,
            attention=attention,
            tied_embeddings=config.tie_word_embeddings,
            rope_theta=_rope_theta(config),
            rope_scaled=_rope_scaled(config),
            norm_eps=config.rms_norm_eps,
            checkpoint=_quantised(config),
            **given,
        )
        return check_model(validated(model, "model"))
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _quantised(config: Config) -> str:
    """How the checkpoint stores its weights, where that is no plain element type."""
    told = config.quantization_config
    return str(told.get("quant_method") or "by no named method") if told else ""


def grouped_query(config: Config, where: str) -> GroupedQuery:
    """Grouped-query attention; an explicit `head_dim` wins over hidden_size / num_attention_heads."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    if config.head_dim is None and hidden % heads:
        raise SpecError(
            f"{where}: hidden_size {hidden} % num_attention_heads {heads} is not 0, and no head_dim is given"
        )
    return GroupedQuery(heads=heads, kv_heads=config.num_key_value_heads, head_dim=config.head_dim or hidden // heads)


def refuse_bias(config: Config, where: str) -> None:
    """SpecError where the file wants biases in a family whose published models have none."""
    if config.attention_bias:
        raise SpecError(f"{where}: attention_bias true is not read; right: false")


def refuse_window(window: int | None, longest: int, where: str) -> None:
    """SpecError where a window is shorter than the longest sequence of a family that is read as full attention."""
    if window is not None and window < longest:
        raise SpecError(f"{where}: sliding_window {window} is not read; right: null, or {longest} and more")


def _rope_theta(config: Config) -> float:
    if config.rope_theta is not None:
        return config.rope_theta
    if config.rope_parameters is not None:
        return config.rope_parameters.rope_theta
    raise SpecError("rope_theta is missing")


def _rope_scaled(config: Config) -> bool:
    scaling = config.rope_scaling or {}
    kinds = {str(scaling.get("rope_type", scaling.get("type", "default")))}
    kinds |= {config.rope_parameters.rope_type} if config.rope_parameters else set()
    return bool(kinds - {"default"})
