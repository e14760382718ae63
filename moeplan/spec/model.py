"""What a model is: its shape, as published. Counts are derived elsewhere, never stored."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.record import Record

Size = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**8)]
Theta = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Epsilon = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class GroupedQuery(Record, tag_field="kind", tag="gqa"):
    """Multi-head attention whose query heads share `kv_heads` keys and values."""

    heads: Size
    kv_heads: Size
    head_dim: Size
    qk_norm: bool = False


Attention = GroupedQuery
"""The attention kinds a model may have; a union tagged by `kind` as kinds are added."""


class ModelSpec(Record):
    """A decoder-only transformer whose layers end in routed experts or, for the first `dense_layers`, a dense FFN."""

    name: str
    num_layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
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
    tied_embeddings: bool = False
    rope_theta: Theta = 10000.0
    norm_eps: Epsilon = 1e-6


def check_model(model: ModelSpec) -> ModelSpec:
    """`model`, or SpecError with the two numbers that do not go together."""
    attention = model.attention
    rules = (
        (
            attention.heads % attention.kv_heads == 0,
            f"heads {attention.heads} % kv_heads {attention.kv_heads} is not 0",
        ),
        (attention.head_dim % 2 == 0, f"head_dim {attention.head_dim} is odd; rotary embedding turns pairs"),
        (model.dense_layers <= model.num_layers, f"dense_layers {model.dense_layers} > num_layers {model.num_layers}"),
        (model.dense_layers == 0 or model.dense_width > 0, f"dense_layers {model.dense_layers} with dense_width 0"),
        (
            model.dense_layers == model.num_layers or 1 <= model.top_k <= model.experts,
            f"top_k {model.top_k} is not within 1..experts {model.experts}",
        ),
        (model.dense_layers == model.num_layers or model.expert_width > 0, "expert_width 0 with routed experts"),
    )
    for right, message in rules:
        if not right:
            raise SpecError(f"model {model.name}: {message}")
    return model


def is_dense(model: ModelSpec, layer: int) -> bool:
    """Whether `layer` ends in a dense FFN."""
    return layer < model.dense_layers
