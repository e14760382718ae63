"""What FSDP gathers at once: embedding, every layer, head."""

from __future__ import annotations

from moeplan.layout import StageGraph, experts_of
from moeplan.resources import parameters as count
from moeplan.spec.model import ModelSpec, has_ffn, has_state, is_dense


def fsdp_units(model: ModelSpec, graph: StageGraph, position: int) -> list[float]:
    """Parameters of each unit that one rank of `position` holds when it is gathered."""
    units: dict[tuple[str, int], float] = {}
    for piece in graph.pieces:
        if position in graph.stages[piece.stage]:
            kind = "layer" if piece.kind in ("attention", "dense", "experts") else piece.kind
            units[kind, piece.layer] = _unit(model, graph, kind, piece.layer)
    return [held for held in units.values() if held]


def _unit(model: ModelSpec, graph: StageGraph, kind: str, layer: int) -> float:
    if kind == "embedding":
        return count.embedding_parameters(model) / graph.tp
    if kind == "head":
        return (0 if model.tied_embeddings else count.embedding_parameters(model)) / graph.tp
    return layer_share(model, graph, layer) if kind == "layer" else 0.0


def layer_share(model: ModelSpec, graph: StageGraph, layer: int) -> float:
    """Parameters of one layer on one rank, its share of the experts included."""
    mixed = count.mixer_share(model, graph.tp, state=has_state(model, layer))
    if not has_ffn(model, layer):
        return mixed
    if is_dense(model, layer):
        return mixed + count.norm_parameters(model) + count.ffn_share(model, model.dense_width, graph.tp)
    routed = len(experts_of(model, graph, 0)) * count.expert_share(model, graph.etp)
    beside = count.router_parameters(model) + count.shared_share(model, graph.tp) + count.norm_parameters(model)
    return mixed + beside + routed
