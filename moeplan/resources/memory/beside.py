"""Bytes that a rank needs beside what PyTorch's allocator gives out: reserve, communicators, the driver's context."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.layout import StageGraph
from moeplan.spec.case import Case


class Beside(NamedTuple):
    """Bytes of one rank that no tensor has."""

    reserve: float
    """What the allocator holds and has not given out."""
    communicators: float
    context: float


def beside(case: Case, graph: StageGraph, position: int, allocated: float) -> Beside:
    """What a rank at `position` needs beside `allocated` bytes of tensors.

    reserve x allocated + communicator x process groups + context; `memory` says how much each is. A rank on a CPU has
    the first alone.
    """
    memory = case.memory
    if case.cluster.gpu.cpu:
        return Beside(allocated * memory.reserve, 0.0, 0.0)
    groups = len(process_groups(graph, position))
    return Beside(allocated * memory.reserve, groups * memory.communicator, float(memory.context))


def process_groups(graph: StageGraph, position: int) -> tuple[str, ...]:
    """Names of the groups of more than one rank that a rank at `position` belongs to.

    TP, CP, PP, DP (ranks with the same dense parameters), EP, ETP and EDP (ranks with the same experts); an M2N between
    two positions counts as the pipeline's.
    """
    held = {r.parameters: len(r.groups[0]) for r in graph.replicas if position in r.positions}
    experts = any(p.kind == "experts" and position in graph.stages[p.stage] for p in graph.pieces)
    sizes = {
        "tp": graph.tp,
        "cp": graph.cp,
        "pp": len(graph.positions),
        "dp": held.get("dense", 1),
        "ep": graph.ep if experts else 1,
        "etp": graph.etp if experts else 1,
        "edp": held.get("experts", 1),
    }
    return tuple(name for name, size in sizes.items() if size > 1)
