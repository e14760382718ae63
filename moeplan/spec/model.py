"""What a model is: its shape, as published. Counts are derived elsewhere, never stored."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.record import Record

Size = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**8)]
Theta = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Scale = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Epsilon = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class GroupedQuery(Record, tag_field="kind", tag="gqa"):
    """Multi-head attention whose query heads share `kv_heads` keys and values."""

    heads: Size
    kv_heads: Size
    head_dim: Size
    qk_norm: bool = False
    bias: bool = False
    """Whether the q, k, v and output projections have biases."""
    sinks: bool = False
    """Whether every head has one learned logit beside its scores (gpt-oss)."""
    window: Count = 0
    """Tokens that a windowed layer sees, its own included; 0: every layer sees all before it."""
    full_every: Size = 1
    """Layer l sees all tokens before it where (l + 1) % full_every == 0; the others see `window` (gpt-oss: 2)."""


class Latent(Record, tag_field="kind", tag="mla"):
    """Multi-head latent attention: queries, keys and values are projected up from narrow vectors (DeepSeek-V2)."""

    heads: Size
    q_lora_rank: Count
    """Width of the narrow query; 0: queries are projected from the hidden state at once."""
    kv_lora_rank: Size
    """Width of the narrow vector of keys and values."""
    nope_head_dim: Size
    """Part of a query or key without rotary embedding."""
    rope_head_dim: Size
    """Part of a query or key with rotary embedding; all heads share this part of the key."""
    v_head_dim: Size


Attention = GroupedQuery | Latent
"""The attention kinds a model may have; a union tagged by `kind`."""


class ModelSpec(Record):
    """A decoder-only transformer whose layers end in routed experts or, for the first `dense_layers`, a dense FFN."""

    name: str
    num_layers: Layers
    hidden: Size
    vocab: Size
    attention: Attention
    experts: Annotated[int, msgspec.Meta(ge=0, le=65_536)]
    """Routed experts per MoE layer."""
    top_k: Count
    """Routed experts that each token visits."""
    expert_width: Count
    """Inner width of one routed expert."""
    shared_experts: Count = 0
    """Experts of the same width that every token visits."""
    dense_layers: Count = 0
    """Leading layers with a dense FFN instead of experts."""
    dense_width: Count = 0
    """Inner width of the dense FFN."""
    normalize_top_k: bool = True
    """Whether the gate weights of a token's choices are scaled to sum to one."""
    gated: bool = True
    """Whether an FFN is gate, up and down; otherwise up and down only."""
    ffn_bias: bool = False
    """Whether router and FFNs have biases (gpt-oss)."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """Of the router; with sigmoid each expert has a correction bias, which no gradient moves (DeepSeek-V3)."""
    expert_groups: Size = 1
    """Groups of experts of which a token may use `top_k_groups` (DeepSeek-V2)."""
    top_k_groups: Size = 1
    routed_scale: Scale = 1.0
    """Factor on the sum of routed experts."""
    mtp_layers: Count = 0
    """Multi-token-prediction modules of the checkpoint beside `num_layers`; in no total, and not planned."""
    tied_embeddings: bool = False
    rope_theta: Theta = 10000.0
    rope_scaled: bool = False
    """Whether rotary frequencies are rescaled (YaRN and its like): another function at the same cost."""
    norm_eps: Epsilon = 1e-6
    assumed: tuple[str, ...] = ()
    """Fields that nobody published: guesses."""


def check_model(model: ModelSpec) -> ModelSpec:
    """`model`, or SpecError with the two numbers that do not go together."""
    groups, allowed = model.expert_groups, model.top_k_groups
    reach = model.experts // groups * allowed
    rules = (
        *_attention_rules(model.attention),
        (model.dense_layers <= model.num_layers, f"dense_layers {model.dense_layers} > num_layers {model.num_layers}"),
        (model.dense_layers == 0 or model.dense_width > 0, f"dense_layers {model.dense_layers} with dense_width 0"),
        (
            model.dense_layers == model.num_layers or 1 <= model.top_k <= model.experts,
            f"top_k {model.top_k} is not within 1..experts {model.experts}",
        ),
        (model.dense_layers == model.num_layers or model.expert_width > 0, "expert_width 0 with routed experts"),
        (model.experts % groups == 0, f"experts {model.experts} % expert_groups {groups} is not 0"),
        (allowed <= groups, f"top_k_groups {allowed} > expert_groups {groups}"),
        (
            model.dense_layers == model.num_layers or model.top_k <= reach,
            f"top_k {model.top_k} > {reach} experts of top_k_groups {allowed}",
        ),
    )
    for right, message in rules:
        if not right:
            raise SpecError(f"model {model.name}: {message}")
    return model


def _attention_rules(shape: Attention) -> tuple[tuple[bool, str], ...]:
    """(holds, message where it does not) of one attention kind."""
    if isinstance(shape, Latent):
        turned = shape.rope_head_dim
        return ((turned % 2 == 0, f"rope_head_dim {turned} is odd; rotary embedding turns pairs"),)
    return (
        (shape.heads % shape.kv_heads == 0, f"heads {shape.heads} % kv_heads {shape.kv_heads} is not 0"),
        (shape.head_dim % 2 == 0, f"head_dim {shape.head_dim} is odd; rotary embedding turns pairs"),
        (
            shape.window == 0 or shape.full_every > 1,
            f"window {shape.window} with full_every 1 is seen by no layer; full_every 2 and more leaves it some",
        ),
    )


def is_dense(model: ModelSpec, layer: int) -> bool:
    """Whether `layer` ends in a dense FFN."""
    return layer < model.dense_layers


def window_of(model: ModelSpec, layer: int) -> int:
    """Tokens that `layer`'s attention sees, its own included; 0: all before it."""
    shape = model.attention
    if isinstance(shape, Latent) or (layer + 1) % shape.full_every == 0:
        return 0
    return shape.window


def windows(model: ModelSpec, layers: range) -> dict[int, int]:
    """How many of consecutive `layers` see each window (0: all tokens before): `window_of`, counted."""
    shape = model.attention
    if isinstance(shape, Latent) or not shape.window:
        return {0: len(layers)} if layers else {}
    full = max(0, layers.stop // shape.full_every - layers.start // shape.full_every) if layers else 0
    found = {0: full, shape.window: len(layers) - full}
    return {window: number for window, number in found.items() if number}


def kv_heads(shape: Attention) -> int:
    """Heads of keys and values: as many as queries have in latent attention, where each head projects its own."""
    return shape.heads if isinstance(shape, Latent) else shape.kv_heads


def grouped(model: ModelSpec) -> GroupedQuery:
    """The model's grouped-query attention; SpecError where it has another kind."""
    if isinstance(model.attention, Latent):
        raise SpecError(f"model {model.name}: attention of kind 'mla'; 'gqa' is wanted here")
    return model.attention
