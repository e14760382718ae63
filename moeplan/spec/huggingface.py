"""HuggingFace `config.json` files: one function per model family, matched by the exact `model_type`.

Key names and defaults are those of the configuration classes in `transformers` (DeepSeek-MoE: the published
configuration_deepseek.py). Not read, since no count, byte or FLOP depends on them: rope scaling, dropout,
auxiliary loss, checkpoint precision. Remote code (`auto_map`) is never loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.model import Count, Epsilon, GroupedQuery, ModelSpec, Size, Theta, check_model
from moeplan.spec.record import convert, read_json


class _Rope(msgspec.Struct):
    """Where newer files keep the base of the rotary embedding."""

    rope_theta: Theta
    rope_type: str = "default"


class _Config(msgspec.Struct, kw_only=True):
    """The keys that every family shares; others are passed over."""

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    num_experts_per_tok: Size
    head_dim: Size | None = None
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Theta | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: dict[str, Any] | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False


class _Mixtral(_Config, kw_only=True):
    num_local_experts: Size
    intermediate_size: Size
    max_position_embeddings: Size
    sliding_window: Size | None = None


class _Qwen3(_Config, kw_only=True):
    num_experts: Size
    moe_intermediate_size: Size
    norm_topk_prob: bool = False
    decoder_sparse_step: Literal[1] = 1
    mlp_only_layers: Annotated[tuple[int, ...], msgspec.Meta(max_length=0)] | None = None
    use_sliding_window: bool = False


class _DeepSeek(_Config, kw_only=True):
    n_routed_experts: Size
    moe_intermediate_size: Size
    intermediate_size: Size
    n_shared_experts: Count | None = None
    first_k_dense_replace: Count = 0
    moe_layer_freq: Literal[1] = 1
    norm_topk_prob: bool = False
    scoring_func: Literal["softmax"] = "softmax"


def mixtral(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Mixtral: every layer has experts of width `intermediate_size`; gate weights are normalized."""
    config = convert(raw, _Mixtral, where=where)
    window, longest = config.sliding_window, config.max_position_embeddings
    if window is not None and window < longest:
        raise SpecError(f"{where}: sliding_window {window} is not read; right: null, or {longest} and more")
    return _model(config, name, where, experts=config.num_local_experts, expert_width=config.intermediate_size)


def qwen3_moe(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Qwen3-MoE: every layer has experts, queries and keys are normalized; `intermediate_size` is not used."""
    config = convert(raw, _Qwen3, where=where)
    if config.use_sliding_window:
        raise SpecError(f"{where}: use_sliding_window true is not read; right: false")
    return _model(
        config,
        name,
        where,
        qk_norm=True,
        experts=config.num_experts,
        expert_width=config.moe_intermediate_size,
        normalize_top_k=config.norm_topk_prob,
    )


def deepseek(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """DeepSeek-MoE: `first_k_dense_replace` dense layers first, then routed and shared experts of one width."""
    config = convert(raw, _DeepSeek, where=where)
    return _model(
        config,
        name,
        where,
        experts=config.n_routed_experts,
        expert_width=config.moe_intermediate_size,
        shared_experts=config.n_shared_experts or 0,
        dense_layers=config.first_k_dense_replace,
        dense_width=config.intermediate_size if config.first_k_dense_replace else 0,
        normalize_top_k=config.norm_topk_prob,
    )


FAMILIES: dict[str, Callable[[dict[str, Any], str, str], ModelSpec]] = {
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "deepseek": deepseek,
}
"""Reader by `model_type`."""


def read_config(path: Path) -> ModelSpec:
    """The model in `path`, a config.json or the folder that holds one; named after its folder, or the file's stem.

    SpecError names the file and the key: a family that is not read, a missing key, a wrong type, a size out of range.
    """
    file = path / "config.json" if path.is_dir() else path
    raw = read_json(file)
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        raise SpecError(f"{file}: model_type is missing; read: {', '.join(FAMILIES)}")
    if kind not in FAMILIES:
        raise SpecError(f"{file}: model_type {kind!r} is not read; read: {', '.join(FAMILIES)}")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return FAMILIES[kind](raw, name, str(file))


def _model(
    config: _Config,
    name: str,
    where: str,
    *,
    qk_norm: bool = False,
    normalize_top_k: bool = True,
    **experts: int,
) -> ModelSpec:
    """The part that families share, with the counts and widths of their experts and dense layers put in."""
    if config.attention_bias:
        raise SpecError(f"{where}: attention_bias true is not read; right: false")
    scaling = config.rope_scaling or {}
    kinds = {str(scaling.get("rope_type", scaling.get("type", "default")))}
    kinds |= {config.rope_parameters.rope_type} if config.rope_parameters else set()
    if kinds - {"default"}:
        raise SpecError(f"{where}: rope_scaling {sorted(kinds)[-1]!r} is not read; right: null (it changes no cost)")
    try:
        return check_model(
            ModelSpec(
                name=name,
                num_layers=config.num_hidden_layers,
                hidden=config.hidden_size,
                vocab=config.vocab_size,
                attention=_attention(config, qk_norm, where),
                top_k=config.num_experts_per_tok,
                normalize_top_k=normalize_top_k,
                tied_embeddings=config.tie_word_embeddings,
                rope_theta=_rope_theta(config, where),
                norm_eps=config.rms_norm_eps,
                **experts,
            )
        )
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _attention(config: _Config, qk_norm: bool, where: str) -> GroupedQuery:
    """An explicit `head_dim` wins over hidden_size / num_attention_heads."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    if config.head_dim is None and hidden % heads:
        raise SpecError(
            f"{where}: hidden_size {hidden} % num_attention_heads {heads} is not 0, and no head_dim is given"
        )
    head_dim = config.head_dim or hidden // heads
    return GroupedQuery(heads=heads, kv_heads=config.num_key_value_heads, head_dim=head_dim, qk_norm=qk_norm)


def _rope_theta(config: _Config, where: str) -> float:
    if config.rope_theta is not None:
        return config.rope_theta
    if config.rope_parameters is not None:
        return config.rope_parameters.rope_theta
    raise SpecError(f"{where}: rope_theta is missing")
