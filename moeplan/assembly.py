"""The stage graph of a family's choice: chain, edges and replicas follow from its positions and its cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain as joined
from itertools import pairwise

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.layout import EXCHANGES, Edge, Exchange, Piece, Position, Replica, Side, StageGraph, rides
from moeplan.spec.model import ModelSpec, has_ffn, is_dense


def assemble(  # noqa: PLR0913
    model: ModelSpec,
    *,
    positions: Sequence[Position],
    stages: Sequence[tuple[int, ...]],
    stage_of: Callable[[int, Side], int],
    ep: int,
    tp: int = 1,
    cp: int = 1,
    etp: int = 1,
    deduplicate: bool = False,
    exchange: Exchange = "flat",
    sharded: bool = True,
) -> StageGraph:
    """The stage graph of a family's choice: chain, edges and replicas follow from positions and the cut."""
    pieces = chain(model, stage_of)
    graph = StageGraph(
        positions=tuple(positions),
        stages=tuple(stages),
        pieces=tuple(pieces),
        edges=tuple(join_edges(pieces, stages, deduplicate=deduplicate, exchange=exchange)),
        replicas=(),
        tp=tp,
        cp=cp,
        etp=etp,
        ep=ep,
    )
    graph = structs.replace(graph, replicas=replicas(graph, sharded=sharded, tied=model.tied_embeddings))
    check(model, graph)
    return graph


def grid(first_rank: int, size: int, copies: int, stride: int) -> tuple[tuple[int, ...], ...]:
    """Ranks of one position in every copy: `size` neighbours from `first_rank`, copies `stride` ranks apart."""
    return tuple(tuple(range(first_rank + c * stride, first_rank + c * stride + size)) for c in range(copies))


def chain(model: ModelSpec, stage_of: Callable[[int, Side], int]) -> list[Piece]:
    """The pieces of `model`; `stage_of(layer, "attention" | "ffn")` cuts them into stages.

    An attention piece is what mixes the tokens of a layer, attention or not; a layer may have no FFN.
    Where a stage ends in experts that give their rows back inside the position, a join sums them before they leave.
    """
    pieces = [Piece(kind="embedding", layer=0, stage=stage_of(0, "attention"))]
    for layer in range(model.num_layers):
        attention = stage_of(layer, "attention")
        pieces.append(Piece(kind="attention", layer=layer, stage=attention))
        if not has_ffn(model, layer):
            continue
        ffn = stage_of(layer, "ffn")
        pieces.append(Piece(kind="dense" if is_dense(model, layer) else "experts", layer=layer, stage=ffn))
        last = layer + 1 == model.num_layers
        if attention == ffn and not last and stage_of(layer + 1, "attention") != ffn and not is_dense(model, layer):
            pieces.append(Piece(kind="join", layer=layer, stage=ffn))
    pieces.append(Piece(kind="head", layer=model.num_layers, stage=pieces[-1].stage))
    return pieces


def join_edges(
    pieces: Sequence[Piece],
    stages: Sequence[tuple[int, ...]],
    *,
    deduplicate: bool = False,
    exchange: Exchange = "flat",
) -> list[Edge]:
    """How each two neighbours of the chain communicate.

    Into experts rows fan out, out of experts (and out of a dense FFN on other ranks) they fan in: dispatch and combine
    where both pieces have the same ranks, M2N and N2M where they differ. Other neighbours pass rows one to one.
    """
    edges: list[Edge] = []
    for piece, following in pairwise(pieces):
        same = stages[piece.stage] == stages[following.stage]
        rode = bool(edges) and edges[-1].kind == "m2n"
        if following.kind == "experts" or (following.kind == "dense" and not same):
            once = deduplicate and following.kind == "experts"
            fan_out = Edge(kind="m2n", algorithm="deduplicated" if once else "p2p")
            edges.append(Edge(kind="dispatch", algorithm=exchange) if same else fan_out)
        elif piece.kind == "experts" or (piece.kind == "dense" and rode):
            back = Edge(kind="n2m", algorithm=edges[-1].algorithm)
            edges.append(Edge(kind="combine", algorithm=exchange) if same else back)
        else:
            edges.append(Edge(kind="local") if same else Edge(kind="send", algorithm="p2p"))
    return edges


def replicas(graph: StageGraph, *, sharded: bool, tied: bool) -> tuple[Replica, ...]:
    """Who sums which gradient, derived from the pieces at each position.

    Dense parameters are held by all ranks of a position with the same tensor-parallel index, in every copy; experts by
    the ranks with the same expert share. A norm applied on both sides of an M2N is held by both; a tied embedding by
    the first and the last position.
    """
    holders = _holders(graph, tied=tied)
    result = []
    for (parameters, positions), _ in sorted(holders.items(), key=lambda item: (item[0][1], item[0][0])):
        period = graph.etp * graph.ep if parameters == "experts" else graph.tp
        lists = [group for position in positions for group in graph.positions[position].ranks]
        period = min(period, max(map(len, lists)))
        groups = tuple(tuple(joined.from_iterable(ranks[share::period] for ranks in lists)) for share in range(period))
        result.append(Replica(parameters=parameters, positions=positions, groups=groups, sharded=sharded))  # type: ignore[arg-type]
    return tuple(result)


def _holders(graph: StageGraph, *, tied: bool) -> dict[tuple[str, tuple[int, ...]], None]:
    holders: dict[tuple[str, tuple[int, ...]], None] = {}
    embedding: set[int] = set()
    for number, piece in enumerate(graph.pieces):
        for position in graph.stages[piece.stage]:
            if piece.kind == "embedding" or (piece.kind == "head" and tied):
                embedding.add(position)
            if piece.kind == "experts":
                holders[("experts", (position,))] = None
                if rides(graph, number):
                    sender = graph.stages[graph.pieces[number - 1].stage][0]
                    holders[("ffn_norm", tuple(sorted((sender, position))))] = None
            if piece.kind in ("attention", "dense", "head") or graph.shared_side == "ffn":
                holders[("dense", (position,))] = None
    holders[("embedding", tuple(sorted(embedding)))] = None
    return holders


def check(model: ModelSpec, graph: StageGraph) -> None:
    """SpecError unless the chain is whole: each layer's pieces once and in order, edges between all neighbours."""
    layers = [p for p in graph.pieces if p.kind in ("attention", "experts", "dense")]
    at: dict[tuple[Side, int], int] = {
        ("attention" if p.kind == "attention" else "ffn", p.layer): p.stage for p in layers
    }
    sides: tuple[Side, ...] = ("attention", "ffn")
    whole = all(
        (side, layer) in at
        for layer in range(model.num_layers)
        for side in sides
        if side == "attention" or has_ffn(model, layer)
    )
    expected = chain(model, lambda layer, side: at[(side, layer)]) if whole else []
    if list(graph.pieces) != expected:
        raise SpecError(f"layout: {len(graph.pieces)} pieces are not the chain of {model.num_layers} layers")
    stages = [p.stage for p in graph.pieces]
    if stages != sorted(stages) or set(stages) != set(range(len(graph.stages))):
        raise SpecError(f"layout: {len(graph.stages)} stages do not cut the chain in order")
    deduplicate = any(edge.algorithm == "deduplicated" for edge in graph.edges)
    usual = [
        structs.replace(edge, algorithm="flat")
        if edge.kind in ("dispatch", "combine") and edge.algorithm in EXCHANGES
        else edge
        for edge in graph.edges
    ]
    if usual != join_edges(graph.pieces, graph.stages, deduplicate=deduplicate):
        raise SpecError("layout: edges do not join the pieces as their ranks demand")
    ranks = [rank for position in graph.positions for group in position.ranks for rank in group]
    if sorted(ranks) != list(range(len(ranks))):
        raise SpecError(f"layout: {len(ranks)} places do not hold ranks 0..{len(ranks) - 1} once each")
