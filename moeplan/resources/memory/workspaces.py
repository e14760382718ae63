"""What kernels keep beside parameters for good: placeholders of weight gradients, and narrow copies of weights."""

from __future__ import annotations

from itertools import groupby

from moeplan.layout import StageGraph, experts_of
from moeplan.resources import attention, mixer
from moeplan.resources import parameters as count
from moeplan.resources.kernels import ELEMENT_BYTES, NARROW_BYTES
from moeplan.spec.case import Case
from moeplan.spec.model import ModelSpec, has_state, is_dense, row_width, shared_width

COPIES = {"same": 0.0} | {name: 2 * size for name, size in NARROW_BYTES.items()}
"""Bytes per parameter of the two narrow copies of a weight, by rows and by columns, and their scales (Transformer
Engine keeps them from the first micro-batch of a step to the last)."""

Shape = tuple[float, float]


def workspace_bytes(case: Case, graph: StageGraph, position: int) -> float:
    """Placeholders of weight gradients: one per distinct shape of a weight at `position`, in the element type.

    Transformer Engine sums gradients into the main gradient itself and hands autograd a placeholder of the weight's
    shape instead, which it keeps for good (pytorch/module/base.py, get_dummy_wgrad). Unfused kernels keep none.
    """
    if case.execution.kernels != "fused":
        return 0.0
    shapes: set[Shape] = set()
    for kind, dense, state in _layers(case.model, graph, position):
        shapes |= set(_shapes(case.model, graph, kind, dense=dense, state=state))
    return ELEMENT_BYTES[case.workload.dtype] * sum(rows * columns for rows, columns in shapes)


def copies_bytes(case: Case, graph: StageGraph, position: int) -> float:
    """Narrow copies of the weights of linear layers and experts at `position` that fused kernels keep over a step.

    Where weights themselves are narrow (`memory.weight_bytes` 1), they are one of the two.
    """
    kept = case.memory.weight_bytes if case.memory.weight_bytes < ELEMENT_BYTES[case.workload.dtype] else 0.0
    each = max(0.0, COPIES[case.execution.linear] - kept)
    if case.execution.kernels != "fused" or not each:
        return 0.0
    total = 0.0
    for piece in graph.pieces:
        if position not in graph.stages[piece.stage] or piece.kind not in ("attention", "dense", "experts"):
            continue
        dense, state = is_dense(case.model, piece.layer), has_state(case.model, piece.layer)
        held = sum(rows * columns for rows, columns in _shapes(case.model, graph, piece.kind, dense=dense, state=state))
        total += held * (len(experts_of(case.model, graph, 0)) if piece.kind == "experts" else 1)
    return each * total


def _layers(model: ModelSpec, graph: StageGraph, position: int) -> set[tuple[str, bool, bool]]:
    """(kind, whether dense, whether a mixer) of the pieces at `position` that hold linear layers."""
    return {
        (piece.kind, is_dense(model, piece.layer), piece.kind == "attention" and has_state(model, piece.layer))
        for piece in graph.pieces
        if position in graph.stages[piece.stage] and piece.kind in ("attention", "dense", "experts")
    }


def _shapes(model: ModelSpec, graph: StageGraph, kind: str, *, dense: bool, state: bool) -> list[Shape]:
    """(inputs, outputs) of the matrices of one piece on one rank, one expert's for experts; the router's not."""
    if kind == "experts":
        return _ffn(model, row_width(model), model.expert_width / graph.etp)
    if kind == "dense":
        return _ffn(model, model.hidden, model.dense_width / graph.tp)
    matrices = mixer.projections(model) if state else attention.projections(model)
    found: list[Shape] = []
    for _, group in groupby(matrices, key=lambda p: p.kernel):
        parts = [attention.rank_shape(p, graph.tp) for p in group]
        found.append((parts[0][0], sum(outputs for _, outputs in parts)))
    width = 0 if dense else shared_width(model)
    return found + (_ffn(model, model.hidden, width / graph.tp) if width else [])


def _ffn(model: ModelSpec, rows: int, width: float) -> list[Shape]:
    """The first matrix, gate and up together, and the second."""
    return [(rows, (count.ffn_matrices(model) - 1) * width), (width, rows)]
