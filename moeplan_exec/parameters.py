"""The parameters of each piece: names, shapes and first values, none of which depends on the layout."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moeplan.layout import Piece, Replica, StageGraph, experts_of, rides
from moeplan.spec.model import ModelSpec, grouped, is_dense, shared_width
from moeplan_exec.data import generator

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
Initialise = Callable[[str, Tensor], Tensor]
"""A change of the first values: (name, values) to values."""


def swiglu_shapes(prefix: str, hidden: int, width: int) -> Shapes:
    """Gate and up [width, hidden], down [hidden, width]."""
    return {f"{prefix}.gate": (width, hidden), f"{prefix}.up": (width, hidden), f"{prefix}.down": (hidden, width)}


def attention_shapes(model: ModelSpec, layer: int) -> Shapes:
    """Norm and projections of one attention."""
    a, hidden, prefix = grouped(model), model.hidden, f"layers.{layer}.attention"
    shapes: Shapes = {f"{prefix}.norm": (hidden,), f"{prefix}.q": (a.heads * a.head_dim, hidden)}
    shapes |= {f"{prefix}.{name}": (a.kv_heads * a.head_dim, hidden) for name in "kv"}
    shapes[f"{prefix}.o"] = (hidden, a.heads * a.head_dim)
    return shapes | ({f"{prefix}.{name}_norm": (a.head_dim,) for name in "qk"} if a.qk_norm else {})


def router_shapes(model: ModelSpec, layer: int) -> Shapes:
    """Router and shared experts of one MoE layer."""
    shapes: Shapes = {f"layers.{layer}.router": (model.experts, model.hidden)}
    width = shared_width(model)
    return shapes | (swiglu_shapes(f"layers.{layer}.shared", model.hidden, width) if width else {})


def expert_shapes(model: ModelSpec, layer: int, experts: range) -> Shapes:
    """Some routed experts of one layer."""
    shapes: Shapes = {}
    for expert in experts:
        shapes |= swiglu_shapes(f"layers.{layer}.experts.{expert}", model.hidden, model.expert_width)
    return shapes


def norm_shapes(model: ModelSpec, layer: int) -> Shapes:
    """The norm before the FFN of one layer."""
    return {f"layers.{layer}.ffn_norm": (model.hidden,)}


def embedding_shapes(model: ModelSpec) -> Shapes:
    """The embedding [vocab, hidden]."""
    return {"embedding": (model.vocab, model.hidden)}


def head_shapes(model: ModelSpec) -> Shapes:
    """Final norm and, unless it is the embedding, the language model head."""
    shapes: Shapes = {"head.norm": (model.hidden,)}
    return shapes if model.tied_embeddings else shapes | {"head.weight": (model.vocab, model.hidden)}


def piece_shapes(model: ModelSpec, graph: StageGraph, number: int, index: int) -> dict[str, Shapes]:
    """Parameters of piece `number` on the rank at `index` of its position, by the class that replicas name."""
    piece = graph.pieces[number]
    layer = piece.layer
    if piece.kind == "embedding":
        return {"embedding": embedding_shapes(model)}
    if piece.kind == "head":
        return {"dense": head_shapes(model), "embedding": embedding_shapes(model) if model.tied_embeddings else {}}
    if piece.kind == "dense":
        width = swiglu_shapes(f"layers.{layer}.dense", model.hidden, model.dense_width)
        return {"dense": norm_shapes(model, layer) | width}
    if piece.kind == "experts":
        own = expert_shapes(model, layer, experts_of(model, graph, index))
        return {"experts": own, "ffn_norm": norm_shapes(model, layer) if rides(graph, number) else {}}
    return _attention_piece(model, graph, number, piece) if piece.kind == "attention" else {}


def _attention_piece(model: ModelSpec, graph: StageGraph, number: int, piece: Piece) -> dict[str, Shapes]:
    own = attention_shapes(model, piece.layer)
    if is_dense(model, piece.layer):
        return {"dense": own}
    own |= router_shapes(model, piece.layer)
    norm = norm_shapes(model, piece.layer)
    return {"dense": own, "ffn_norm": norm} if rides(graph, number + 1) else {"dense": own | norm}


def replica_shapes(model: ModelSpec, graph: StageGraph, replica: Replica, index: int) -> Shapes:
    """Parameters of `replica` in chain order: the same on all ranks of one of its groups."""
    shapes: Shapes = {}
    for number, piece in enumerate(graph.pieces):
        homes = set(graph.stages[piece.stage])
        if replica.parameters == "ffn_norm" and piece.kind == "experts":
            homes |= set(graph.stages[graph.pieces[number - 1].stage])
        if (homes <= set(replica.positions)) if replica.parameters == "ffn_norm" else homes & set(replica.positions):
            shapes |= piece_shapes(model, graph, number, index).get(replica.parameters, {})
    return shapes


def all_shapes(model: ModelSpec) -> Shapes:
    """Every parameter of the model, in one process."""
    shapes = embedding_shapes(model)
    for layer in range(model.num_layers):
        shapes |= attention_shapes(model, layer) | norm_shapes(model, layer)
        if is_dense(model, layer):
            shapes |= swiglu_shapes(f"layers.{layer}.dense", model.hidden, model.dense_width)
        else:
            shapes |= router_shapes(model, layer) | expert_shapes(model, layer, range(model.experts))
    return shapes | head_shapes(model)


def first_values(seed: int, name: str, shape: Shape, initialise: Initialise | None = None) -> Tensor:
    """Norms are one; matrices are normal with standard deviation 1 / sqrt(columns), drawn in float64 by name."""
    values = torch.ones(shape, dtype=torch.float64)
    if len(shape) > 1:
        values = torch.randn(shape, generator=generator("parameter", seed, name), dtype=torch.float64)
        values *= shape[-1] ** -0.5
    return initialise(name, values) if initialise else values
