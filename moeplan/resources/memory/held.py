"""Parameters that one rank holds of each class that replicas name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moeplan.layout import Replica, StageGraph, experts_of
from moeplan.resources import parameters as count
from moeplan.spec.model import ModelSpec, has_state, is_dense


def pieces_at(graph: StageGraph) -> list[list[int]]:
    """Numbers of the pieces of each position."""
    found: list[list[int]] = [[] for _ in graph.positions]
    for number, piece in enumerate(graph.pieces):
        for position in graph.stages[piece.stage]:
            found[position].append(number)
    return found


def pieces_on(graph: StageGraph, position: int) -> list[int]:
    """Numbers of the pieces of one position."""
    return [number for number, piece in enumerate(graph.pieces) if position in graph.stages[piece.stage]]


def replica_parameters(
    model: ModelSpec, graph: StageGraph, replica: Replica, position: int, here: Sequence[int] | None = None
) -> float:
    """Parameters of the class `replica` that one rank at `position` holds; `here` are its `pieces_at`, where known."""
    if here is None:
        here = pieces_on(graph, position)
    if replica.parameters == "embedding":
        return count.embedding_parameters(model) / graph.tp
    if replica.parameters == "ffn_norm":
        other = {q for q in replica.positions if q != position}
        return sum(count.norm_parameters(model) for _ in _shared_norms(graph, position, other))
    if replica.parameters == "experts":
        held = len(experts_of(model, graph, 0)) * count.expert_share(model, graph.etp)
        return held * sum(graph.pieces[i].kind == "experts" for i in here)
    alike = Counter(_kind(model, graph, i) for i in here)
    return sum(number * _dense_parameters(model, graph.tp, *kind) for kind, number in alike.items())


def _kind(model: ModelSpec, graph: StageGraph, number: int) -> tuple[str, bool, bool, bool]:
    """What the dense parameters of a piece depend on: its kind, no experts behind it, an M2N behind it, a mixer."""
    piece = graph.pieces[number]
    inside = piece.layer < model.num_layers
    state = inside and piece.kind == "attention" and has_state(model, piece.layer)
    return piece.kind, inside and is_dense(model, piece.layer), _leaves(graph, number), state


def _shared_norms(graph: StageGraph, position: int, others: set[int]) -> list[int]:
    """Experts pieces whose norm is applied on both sides of an M2N between `position` and one of `others`."""
    result = []
    for i, piece in enumerate(graph.pieces):
        if piece.kind == "experts" and graph.edges[i - 1].kind == "m2n":
            ends = {graph.stages[graph.pieces[i - 1].stage][0], graph.stages[piece.stage][0]}
            if position in ends and ends & others:
                result.append(i)
    return result


def _leaves(graph: StageGraph, piece: int) -> bool:
    """Whether the rows of `piece` go over an M2N."""
    return piece < len(graph.edges) and graph.edges[piece].kind == "m2n"


def _dense_parameters(model: ModelSpec, tp: int, kind: str, dense: bool, leaves: bool, state: bool) -> float:
    """Parameters of one piece without routed experts and embedding; `leaves`: over an M2N, as does its norm."""
    norm = count.norm_parameters(model)
    if kind == "attention":
        mixed = count.mixer_share(model, tp, state=state)
        if dense:
            return mixed
        return mixed + count.router_parameters(model) + count.shared_share(model, tp) + (0 if leaves else norm)
    if kind == "dense":
        return norm + count.ffn_share(model, model.dense_width, tp)
    return norm + count.head_parameters(model) / tp if kind == "head" else 0.0
