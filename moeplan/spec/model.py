"""What a model is: its shape, as published. Counts are derived elsewhere, never stored."""

from __future__ import annotations

from math import lcm
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
    qk_norm_weights: Literal["head", "all", "none"] = "head"
    """What that norm's weights span: one head (Qwen3), all heads (MiniMax-M2), nothing (Llama 4: it has none)."""
    bias: bool = False
    """Whether the q, k, v and output projections have biases."""
    output_bias: bool = True
    """With `bias`, whether the output projection has one too (Qwen2-MoE and GLM-4.5: no)."""
    sinks: bool = False
    """Whether every head has one learned logit beside its scores (gpt-oss)."""
    window: Count = 0
    """Tokens that a windowed layer sees, its own included; 0: every layer sees all before it."""
    full_every: Size = 1
    """Layer l sees all tokens before it where (l + 1) % full_every == 0; the others see `window` (gpt-oss: 2)."""
    chunked: bool = False
    """Whether a windowed layer sees its own chunk of `window` tokens, as far as there, instead of a sliding window."""


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
    """A decoder-only transformer whose layers end in routed experts or a dense FFN (`is_dense`)."""

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
    """Experts that every token visits."""
    shared_width: Count = 0
    """Inner width of one shared expert; 0: that of a routed one."""
    shared_gate: bool = False
    """Whether a learned vector weighs the shared experts' output for each token (Qwen2-MoE)."""
    dense_layers: Count = 0
    """Leading layers with a dense FFN instead of experts."""
    moe_every: Size = 1
    """Behind those, layer l has experts where (l + 1) % moe_every == 0, the others a dense FFN (Llama 4: 2)."""
    dense_width: Count = 0
    """Inner width of the dense FFN."""
    normalize_top_k: bool = True
    """Whether the gate weights of a token's choices are scaled to sum to one."""
    gated: bool = True
    """Whether an FFN is gate, up and down; otherwise up and down only."""
    ffn_bias: bool = False
    """Whether router and FFNs have biases (gpt-oss)."""
    scoring: Literal["softmax", "sigmoid", "plain_sigmoid"] = "softmax"
    """Of the router; with sigmoid each expert has a correction bias, which no gradient moves (DeepSeek-V3).

    plain_sigmoid has none, and scales rows before the experts (Llama 4).
    """
    expert_groups: Size = 1
    """Groups of experts of which a token may use `top_k_groups` (DeepSeek-V2)."""
    top_k_groups: Size = 1
    routed_scale: Scale = 1.0
    """Factor on the sum of routed experts."""
    mtp_layers: Count = 0
    """Multi-token-prediction modules of the checkpoint beside `num_layers`; in no total, and not planned."""
    tied_embeddings: bool = False
    head_bias: bool = False
    norm: Literal["rms", "layer", "layer_bias"] = "rms"
    """Of the hidden state: RMSNorm, or LayerNorm without (DBRX) or with a bias (Phi-3.5-MoE)."""
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
    moe = moe_layers(model)
    rules = (
        *_attention_rules(model.attention),
        (model.dense_layers <= model.num_layers, f"dense_layers {model.dense_layers} > num_layers {model.num_layers}"),
        (model.dense_layers == 0 or model.dense_width > 0, f"dense_layers {model.dense_layers} with dense_width 0"),
        (
            moe == model.num_layers or model.dense_width > 0,
            f"moe_every {model.moe_every} leaves {model.num_layers - moe} dense layers with dense_width 0",
        ),
        (not moe or 1 <= model.top_k <= model.experts, f"top_k {model.top_k} is not within 1..experts {model.experts}"),
        (not moe or model.expert_width > 0, "expert_width 0 with routed experts"),
        (model.shared_experts > 0 or not model.shared_gate, "shared_gate true with shared_experts 0"),
        (model.experts % groups == 0, f"experts {model.experts} % expert_groups {groups} is not 0"),
        (allowed <= groups, f"top_k_groups {allowed} > expert_groups {groups}"),
        (not moe or model.top_k <= reach, f"top_k {model.top_k} > {reach} experts of top_k_groups {allowed}"),
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
    """Whether `layer` ends in a dense FFN: one of the first `dense_layers`, or not an n-th layer, n = `moe_every`."""
    return layer < model.dense_layers or (layer + 1) % model.moe_every != 0


def moe_layers(model: ModelSpec, layers: range | None = None) -> int:
    """How many of consecutive `layers` (default: all) have routed experts: `is_dense`, counted."""
    return sum(moe_windows(model, range(model.num_layers) if layers is None else layers).values())


def window_of(model: ModelSpec, layer: int) -> int:
    """Tokens that `layer`'s attention sees, its own included; 0: all before it."""
    shape = model.attention
    if isinstance(shape, Latent) or (layer + 1) % shape.full_every == 0:
        return 0
    return shape.window


def windows(model: ModelSpec, layers: range) -> dict[int, int]:
    """How many of consecutive `layers` see each window (0: all tokens before): `window_of`, counted."""
    return _windows(model.attention, layers, 1)


def moe_windows(model: ModelSpec, layers: range) -> dict[int, int]:
    """As `windows`, of those of `layers` that have routed experts alone."""
    behind = range(max(layers.start, model.dense_layers), layers.stop)
    return _windows(model.attention, behind, model.moe_every)


def _windows(shape: Attention, layers: range, every: int) -> dict[int, int]:
    """Windows of each `every`-th layer, counted."""
    number = _multiples(layers, every)
    if isinstance(shape, Latent) or not shape.window:
        return {0: number} if number else {}
    full = _multiples(layers, lcm(every, shape.full_every))
    return {window: n for window, n in {0: full, shape.window: number - full}.items() if n}


def _multiples(layers: range, every: int) -> int:
    """Layers l with (l + 1) % every == 0."""
    return layers.stop // every - layers.start // every if layers else 0


def shared_width(model: ModelSpec) -> int:
    """Inner width of all shared experts of a layer together."""
    return model.shared_experts * (model.shared_width or model.expert_width)


def kv_heads(shape: Attention) -> int:
    """Heads of keys and values: as many as queries have in latent attention, where each head projects its own."""
    return shape.heads if isinstance(shape, Latent) else shape.kv_heads


def grouped(model: ModelSpec) -> GroupedQuery:
    """The model's grouped-query attention; SpecError where it has another kind."""
    if isinstance(model.attention, Latent):
        raise SpecError(f"model {model.name}: attention of kind 'mla'; 'gqa' is wanted here")
    return model.attention
