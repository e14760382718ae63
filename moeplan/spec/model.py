"""What a model is: its shape, as published. Counts are derived elsewhere, never stored."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
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
    output_gate: bool = False
    """Whether a second projection as wide as the queries weighs the output of every head (Qwen3-Next)."""


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


class Mamba2(Record, tag_field="kind", tag="mamba2"):
    """A state-space mixer: every head keeps a state of head_dim x state, not earlier tokens (arXiv 2405.21060)."""

    heads: Size
    head_dim: Size
    state: Size
    groups: Size = 1
    """Groups of heads that share what is written into the state and read from it."""
    conv: Size = 4
    """Tokens that the convolution before the state spans."""
    conv_bias: bool = True


class GatedDelta(Record, tag_field="kind", tag="gated_delta"):
    """Linear attention by the gated delta rule: every value head keeps a key_head_dim x value_head_dim state.

    Source: Gated Delta Networks (arXiv 2412.06464).
    """

    key_heads: Size
    """Heads of queries and keys."""
    value_heads: Size
    key_head_dim: Size
    value_head_dim: Size
    conv: Size = 4
    """Tokens that the convolution of queries, keys and values spans."""


Mixer = Mamba2 | GatedDelta
"""What mixes tokens in place of attention, by a state; a union tagged by `kind`."""

STATE = -1
"""The window of a layer whose mixer reads a state instead of earlier tokens."""
PATTERN = re.compile("([M*][E-]?)+")
"""What a pattern of layers may be."""


class ModelSpec(Record):
    """A decoder-only transformer whose layers end in routed experts or a dense FFN (`is_dense`)."""

    name: str
    num_layers: Layers
    """Pairs of a mixer (attention, or `mixer`) and an FFN; in a `pattern` the FFN may be missing."""
    hidden: Size
    vocab: Size
    attention: Attention
    mixer: Mixer | None = None
    """What `pattern` has in place of attention in some layers."""
    pattern: str = ""
    """Blocks of the layers, repeated or cut off to `num_layers`: M the mixer, * attention, each followed by E experts,
    - a dense FFN, or nothing ("MEM*E" is three layers; letters as in Nemotron-H). Empty: attention, and an FFN as
    `dense_layers` and `moe_every` say."""
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
    expert_latent: Count = 0
    """Width of the rows that routed experts work on, between two projections that all ranks hold (Nemotron-3 Super);
    0: hidden."""
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
    """Multi-token-prediction modules of the checkpoint beside `num_layers`; in no total of parameters."""
    tied_embeddings: bool = False
    head_bias: bool = False
    norm: Literal["rms", "layer", "layer_bias"] = "rms"
    """Of the hidden state: RMSNorm, or LayerNorm without (DBRX) or with a bias (Phi-3.5-MoE)."""
    rope_theta: Theta = 10000.0
    rope_scaled: bool = False
    """Whether rotary frequencies are rescaled (YaRN and its like): another function at the same cost."""
    norm_eps: Epsilon = 1e-6
    checkpoint: str = ""
    """How a published checkpoint stores its weights, where it is quantised (mxfp4, fp8); training takes the workload's
    element type all the same."""
    assumed: tuple[str, ...] = ()
    """Fields that nobody published: guesses."""


def check_model(model: ModelSpec) -> ModelSpec:
    """`model`, or SpecError with the two numbers that do not go together."""
    for rules in (_attention_rules, _mixer_rules, _pattern_rules, _layer_rules):
        for right, message in rules(model):
            if not right:
                raise SpecError(f"model {model.name}: {message}")
    return model


def _layer_rules(model: ModelSpec) -> tuple[tuple[bool, str], ...]:
    """(holds, message where it does not) of dense layers and experts; the pattern is already known to be right."""
    groups, allowed = model.expert_groups, model.top_k_groups
    reach = model.experts // groups * allowed
    moe = moe_layers(model)
    return (
        (model.mtp_layers <= model.num_layers, f"mtp_layers {model.mtp_layers} > num_layers {model.num_layers}"),
        (model.dense_layers <= model.num_layers, f"dense_layers {model.dense_layers} > num_layers {model.num_layers}"),
        (model.dense_layers == 0 or model.dense_width > 0, f"dense_layers {model.dense_layers} with dense_width 0"),
        (
            bool(model.pattern) or moe == model.num_layers or model.dense_width > 0,
            f"moe_every {model.moe_every} leaves {model.num_layers - moe} dense layers with dense_width 0",
        ),
        (not moe or 1 <= model.top_k <= model.experts, f"top_k {model.top_k} is not within 1..experts {model.experts}"),
        (not moe or model.expert_width > 0, "expert_width 0 with routed experts"),
        (model.shared_experts > 0 or not model.shared_gate, "shared_gate true with shared_experts 0"),
        (model.experts % groups == 0, f"experts {model.experts} % expert_groups {groups} is not 0"),
        (allowed <= groups, f"top_k_groups {allowed} > expert_groups {groups}"),
        (not moe or model.top_k <= reach, f"top_k {model.top_k} > {reach} experts of top_k_groups {allowed}"),
    )


def _attention_rules(model: ModelSpec) -> tuple[tuple[bool, str], ...]:
    """(holds, message where it does not) of one attention kind."""
    shape = model.attention
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


def _mixer_rules(model: ModelSpec) -> tuple[tuple[bool, str], ...]:
    """(holds, message where it does not) of a mixer's heads: each of its groups serves as many."""
    mixer = model.mixer
    if isinstance(mixer, Mamba2):
        return ((mixer.heads % mixer.groups == 0, f"mixer heads {mixer.heads} % groups {mixer.groups} is not 0"),)
    if isinstance(mixer, GatedDelta):
        values, keys = mixer.value_heads, mixer.key_heads
        return ((values % keys == 0, f"mixer value_heads {values} % key_heads {keys} is not 0"),)
    return ()


def _pattern_rules(model: ModelSpec) -> tuple[tuple[bool, str], ...]:
    """(holds, message where it does not) of the pattern and the mixer that it names."""
    pattern = model.pattern
    if not pattern:
        return ((model.mixer is None, "mixer without a pattern that says which layers have it"),)
    return (
        (
            PATTERN.fullmatch(pattern) is not None,
            f"pattern {pattern!r}: right: M or *, each followed by E, - or nothing",
        ),
        (
            model.num_layers <= len(_blocks(pattern)) or model.num_layers % max(len(_blocks(pattern)), 1) == 0,
            f"num_layers {model.num_layers} is no multiple of the pattern's {len(_blocks(pattern))}, nor less",
        ),
        (model.dense_layers == 0, f"dense_layers {model.dense_layers} beside a pattern, which says it by -"),
        (model.moe_every == 1, f"moe_every {model.moe_every} beside a pattern, which says it by E"),
        (("M" in pattern) == (model.mixer is not None), "pattern and mixer: M in the one needs the other"),
        ("-" not in pattern or model.dense_width > 0, "pattern with - and dense_width 0"),
    )


@lru_cache
def _blocks(pattern: str) -> tuple[str, ...]:
    """The layers of `pattern`: a mixer's letter, and its FFN's where it has one."""
    return tuple(re.findall("[M*][E-]?", pattern))


def _block(model: ModelSpec, layer: int) -> str:
    """Letters of `layer` in the model's pattern."""
    blocks = _blocks(model.pattern)
    return blocks[layer % len(blocks)]


def is_dense(model: ModelSpec, layer: int) -> bool:
    """Whether `layer` has no routed experts: its FFN is dense, or it has none (`has_ffn`).

    Dense is one of the first `dense_layers`, what is not an n-th layer, n = `moe_every`, or what the pattern says.
    """
    if model.pattern:
        return not _block(model, layer).endswith("E")
    return layer < model.dense_layers or (layer + 1) % model.moe_every != 0


def has_ffn(model: ModelSpec, layer: int) -> bool:
    """Whether `layer` has an FFN at all: experts or a dense one."""
    return not model.pattern or len(_block(model, layer)) > 1


def has_state(model: ModelSpec, layer: int) -> bool:
    """Whether `layer` mixes tokens by the model's `mixer` instead of attention."""
    return bool(model.pattern) and _block(model, layer)[0] == "M"


def moe_layers(model: ModelSpec, layers: range | None = None) -> int:
    """How many of consecutive `layers` (default: all) have routed experts: `is_dense`, counted."""
    return sum(moe_windows(model, range(model.num_layers) if layers is None else layers).values())


def window_of(model: ModelSpec, layer: int) -> int:
    """Tokens that `layer`'s attention sees, its own included; 0: all before it; `STATE`: it has a mixer instead."""
    shape = model.attention
    if has_state(model, layer):
        return STATE
    if isinstance(shape, Latent) or (layer + 1) % shape.full_every == 0:
        return 0
    return shape.window


def windows(model: ModelSpec, layers: range) -> dict[int, int]:
    """How many of consecutive `layers` see each window (0: all tokens before): `window_of`, counted."""
    if model.pattern:
        return dict(Counter(window_of(model, layer) for layer in layers))
    return _windows(model.attention, layers, 1)


def moe_windows(model: ModelSpec, layers: range) -> dict[int, int]:
    """As `windows`, of those of `layers` that have routed experts alone."""
    if model.pattern:
        return dict(Counter(window_of(model, layer) for layer in layers if not is_dense(model, layer)))
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


def row_width(model: ModelSpec) -> int:
    """Width of the rows that travel to routed experts and back: hidden, or `expert_latent`."""
    return model.expert_latent or model.hidden


def kv_heads(shape: Attention) -> int:
    """Heads of keys and values: as many as queries have in latent attention, where each head projects its own."""
    return shape.heads if isinstance(shape, Latent) else shape.kv_heads


def grouped(model: ModelSpec) -> GroupedQuery:
    """The model's grouped-query attention; SpecError where it has another kind."""
    if isinstance(model.attention, Latent):
        raise SpecError(f"model {model.name}: attention of kind 'mla'; 'gqa' is wanted here")
    return model.attention
