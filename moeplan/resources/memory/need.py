"""What one virtual stage keeps of a micro-batch, and what the moments of its backward have beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan.layout import Piece, PieceKind, Recompute, StageGraph, pieces_of, rides
from moeplan.program import keeps
from moeplan.resources.memory.kept import Parts, piece_parts
from moeplan.resources.memory.spare import nodes_around, spare
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import ELEMENT_BYTES, Load
from moeplan.spec.case import Case
from moeplan.spec.model import ModelSpec, has_ffn, has_state, is_dense, moe_layers, row_width


class Live(NamedTuple):
    """Bytes of one rank at the moment of a step when they are most."""

    activations: float
    """Kept from forwards for their backwards, without the next two."""
    routing: float
    """Kept by router and permutation."""
    logits: float
    """Logits, loss and their gradients."""
    working: float
    """What the running backward needs beside: recomputed activations and gradients."""
    buffers: float
    """Rows in flight."""


NOTHING = Live(0.0, 0.0, 0.0, 0.0, 0.0)


BEGUN = 0.1
"""Of one piece's forward, how long its backward has run when it is fullest (assumed)."""


class Need(NamedTuple):
    """What one virtual stage keeps of a micro-batch, and what moments of its backward have beside."""

    alive: float
    routing: float
    logits: float
    first: Live
    """While its backward begins; beside what is kept."""
    later: Live
    """The fullest moment after that: less is kept, where later pieces have gone back already."""
    late: float
    """Share of its backward that has passed by then."""
    again: bool
    """Whether its backward begins with a forward, which does not wait for the gradient."""
    passing: float
    """Rows in flight in its forward."""
    arriving: tuple[float, float]
    """Bytes that its forward and its backward start from, where another position sends them."""
    leaving: tuple[float, float]
    """Bytes that its forward and its backward send to another position."""

    @property
    def most(self) -> float:
        """Bytes beside what is kept at the fullest moment."""
        return max(sum(self.first), sum(self.later), self.passing)


def needs(case: Case, graph: StageGraph, recompute: Recompute, loads: Sequence[Load]) -> list[Need]:
    """What each virtual stage keeps of a micro-batch, and what its backward needs beside."""
    known: dict[tuple[object, ...], Parts] = {}
    met: dict[tuple[object, ...], Need] = {}
    result, around = [], nodes_around(case, graph)
    for stage, homes in enumerate(graph.stages):
        load = loads[homes[0]]
        key = (_looks(case.model, graph, stage), load, around[homes[0]])
        if key not in met:
            met[key] = _stage(case, graph, stage, recompute, load, around[homes[0]], known)
        result.append(met[key])
    return result


def _looks(model: ModelSpec, graph: StageGraph, stage: int) -> tuple[object, ...]:
    """What the need of `stage` depends on beside its load: its pieces with their neighbours, and whether it is last."""
    numbers = pieces_of(graph, stage)
    around = range(max(0, numbers[0] - 1), min(len(graph.pieces), numbers[-1] + 2))
    pieces = [graph.pieces[i] for i in around]
    inside = [(p.kind, p.kind == "attention" and (is_dense(model, p.layer), has_state(model, p.layer))) for p in pieces]
    edges = [(e.kind, e.algorithm) for e in graph.edges[around[0] : around[-1]]]
    return (*inside, *edges, numbers[0] > 0, stage == len(graph.stages) - 1)


def _stage(
    case: Case,
    graph: StageGraph,
    stage: int,
    recompute: Recompute,
    load: Load,
    nodes: int,
    known: dict[tuple[object, ...], Parts],
) -> Need:
    """What a stage keeps; its backward needs one piece's transient at a time. `known`: parts of alike pieces."""
    numbers, model, parts = pieces_of(graph, stage), case.model, []
    for i in numbers:
        piece = graph.pieces[i]
        ride = rides(graph, i + (piece.kind == "attention"))
        mixed = piece.kind == "attention" and (is_dense(model, piece.layer), has_state(model, piece.layer))
        key = (piece.kind, mixed, ride, load)
        if key not in known:
            known[key] = piece_parts(case, piece, recompute, load, ride=ride)
        parts.append(known[key])
    rows = [_rows(case, graph, i, load, nodes) for i in numbers]
    back = [_going_back(case, graph, i, load, nodes) for i in numbers]
    again = [_again(case, graph, i, load) for i in numbers]
    (_, first), *others = _moments(graph, numbers, parts, again, back, recompute)
    late, later = max(others, key=lambda moment: sum(moment[1]), default=(0.0, NOTHING))
    alive, routing, logits = (sum(part[i] for part in parts) for i in range(3))
    alive += _output(case, graph, numbers[-1], recompute, load)
    if stage == len(graph.stages) - 1:
        more, sorted_ = further_kept(case, recompute, load)
        alive, routing = alive + more, routing + sorted_
    return Need(
        alive,
        routing,
        logits,
        first,
        later,
        late,
        keeps(graph.pieces[numbers[-1]], recompute) != "activations",
        max(rows),
        _between(case, graph, ((numbers[0] - 1, "F"), (numbers[-1], "B")), load),
        _between(case, graph, ((numbers[-1], "F"), (numbers[0] - 1, "B")), load),
    )


def _output(case: Case, graph: StageGraph, number: int, recompute: Recompute, load: Load) -> float:
    """Bytes of what a stage that ends in a dense FFN has sent on, which plain PyTorch keeps until the backward.

    No other piece ends a stage with an output that is nobody's input there; where the residual rides, it is a term.
    """
    piece = graph.pieces[number]
    counts = piece.kind == "dense" and not rides(graph, number) and case.execution.kernels != "fused"
    if not counts or keeps(piece, recompute) != "activations" or case.memory.activations == "piper":
        return 0.0
    return ELEMENT_BYTES[case.workload.dtype] * case.model.hidden * load.own


def further_kept(case: Case, recompute: Recompute, load: Load) -> tuple[float, float]:
    """What the modules for further tokens keep of one micro-batch, and how much of it is routing; logits stand apart.

    Each: one layer, with experts where the model has some, and the joined hidden state and embedding, 2 hidden wide.
    Left out: their gradients while their own backward runs, which are no more than the head's.
    """
    model = case.model
    if not case.memory.mtp or not model.mtp_layers or case.memory.activations == "piper":
        return 0.0, 0.0
    layers, routed = range(model.num_layers), moe_layers(model) > 0
    like = next((layer for layer in layers if has_ffn(model, layer) and is_dense(model, layer) != routed), 0)
    kinds: tuple[PieceKind, ...] = ("attention", "experts" if routed else "dense")
    parts = [piece_parts(case, Piece(kind=kind, layer=like, stage=0), recompute, load, ride=False) for kind in kinds]
    joined = 2 * model.hidden * ELEMENT_BYTES[case.workload.dtype] * load.own
    kept, routing = (model.mtp_layers * sum(part[i] for part in parts) for i in range(2))
    return kept + model.mtp_layers * joined, routing


def _between(case: Case, graph: StageGraph, ends: Sequence[tuple[int, str]], load: Load) -> tuple[float, float]:
    """Bytes of one rank on the two edges between stages, each with its phase; Piper counts none."""
    if case.memory.activations == "piper":
        return 0.0, 0.0
    first, second = (
        edge_bytes(case.model, graph, edge, phase, load, dtype=case.workload.dtype, rows=case.execution.rows)
        if 0 <= edge < len(graph.edges)
        else 0.0
        for edge, phase in ends
    )
    return first, second


def _moments(
    graph: StageGraph,
    numbers: Sequence[int],
    parts: Sequence[Parts],
    rows: Sequence[float],
    back: Sequence[float],
    recompute: Recompute,
) -> list[tuple[float, Live]]:
    """When each piece's backward begins, as a share of all, and what is there while it runs: what it needs, less what
    the pieces after it kept of this micro-batch. All pieces' forwards take equally long, and backwards twice that.

    Where rows are dispatched again, the recomputed attention before them is there too; where a piece is recomputed, so
    it is while the gradients' rows arrive for it. `rows` and `back` are those in flight of its forward, and of its
    backward where exchanges have spare buffers: a moment of their own, before it runs.
    """
    result, gone, passed = [], (0.0, 0.0, 0.0), 0
    for place in reversed(range(len(numbers))):
        part, (alive, routing, logits) = parts[place], gone
        kept, before = keeps(graph.pieces[numbers[place]], recompute), 0.0
        if place and kept == "nothing" and keeps(graph.pieces[numbers[place - 1]], recompute) != "activations":
            before = parts[place - 1].again
        left = Live(routing + logits - alive, -routing, -logits, before, 0.0)
        running = part.transient - part.loss - part.rows
        again = part.again if kept != "activations" else 0.0
        if kept != "activations":
            result.append((passed, left._replace(working=before + again, buffers=rows[place])))
            passed += 1
        result.append((passed, left._replace(logits=part.loss - logits, working=before + running, buffers=part.rows)))
        if back[place]:
            result.append((passed, left._replace(working=before + again, buffers=back[place])))
        passed += 2
        gone = (alive + part.alive, routing + part.routing, logits + part.logits)
    return [((when + BEGUN) / passed, moment) for when, moment in result]


def _again(case: Case, graph: StageGraph, number: int, load: Load) -> float:
    """Bytes beside what a piece that is computed again keeps: an expert's outputs (three where the residual rides), or
    the shared experts' before they join the residual.

    The gradient's rows are there as well, where they come from inside the position.
    """
    if case.memory.activations == "piper":
        return 0.0
    piece, model, size = graph.pieces[number], case.model, ELEMENT_BYTES[case.workload.dtype]
    copies = (3 if rides(graph, number) else 1) * size * load.rows * row_width(model) * (piece.kind == "experts")
    if piece.kind == "attention" and model.shared_experts and not is_dense(model, piece.layer):
        copies = size * model.hidden * load.own
    inside = number + 1 < len(graph.pieces) and graph.pieces[number + 1].stage == piece.stage
    return copies + (edge_bytes(model, graph, number, "B", load, dtype=case.workload.dtype) if inside else 0.0)


def _rows(case: Case, graph: StageGraph, number: int, load: Load, nodes: int) -> float:
    """Bytes of the rows in flight between pieces: the larger edge of one, as sent and as received, with its spare."""
    if case.memory.activations == "piper":
        return 0.0
    types = {"dtype": case.workload.dtype, "rows": case.execution.rows}
    edges = [e for e in (number - 1, number) if 0 <= e < len(graph.edges)]
    sent = [
        (2 + spare(graph.edges[e].algorithm, nodes)) * edge_bytes(case.model, graph, e, "F", load, **types)
        for e in edges
    ]
    return (case.execution.capacity or 1.0) * max(sent, default=0.0)


def _going_back(case: Case, graph: StageGraph, number: int, load: Load, nodes: int) -> float:
    """Bytes of the gradients' rows in flight around an experts piece by exchanges with spare buffers; 0 by others."""
    if case.memory.activations == "piper" or graph.pieces[number].kind != "experts":
        return 0.0
    edges = [e for e in (number - 1, number) if 0 <= e < len(graph.edges)]
    more = {e: spare(graph.edges[e].algorithm, nodes) for e in edges}
    types = {"dtype": case.workload.dtype, "rows": case.execution.rows}
    sent = [(2 + more[e]) * edge_bytes(case.model, graph, e, "B", load, **types) for e in edges if more[e]]
    return (case.execution.capacity or 1.0) * max(sent, default=0.0)
