"""The uniform all-to-all inside a node: every GPU sends every other GPU the same at the same time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from moeplan.errors import SolverError
from moeplan.optimizer.milp import quiet_highs

if TYPE_CHECKING:
    from moeplan.topology.links import Graph, Vertex


def shortest_uniform(graph: Graph) -> float:
    """Bytes per second that each GPU of `graph` sends in all, split equally over shortest paths in hops.

    (G - 1) / max over edges of (load at one byte a pair / bandwidth); 0 for one GPU.
    """
    from moeplan.topology.routes import Fabric

    fabric = Fabric(graph)
    ranks = np.arange(fabric.num_ranks)
    sources, targets = np.repeat(ranks, ranks.size), np.tile(ranks, ranks.size)
    loads = fabric.loads(sources, targets, np.ones(sources.size))
    busiest = float((loads / fabric.bandwidth_bytes_per_s).max(initial=0.0))
    return (ranks.size - 1) / busiest if busiest else 0.0


def best_uniform(graph: Graph) -> float:
    """Bytes per second that each GPU of `graph` can send in all, over as many ways as help.

    maximise (G - 1) r subject to, for every source s, sum_in f[s, e] - sum_out f[s, e] = r at every other GPU and 0 at
    switches, and sum_s f[s, e] <= bandwidth of e: a linear program with G x edges flows. Edges to NICs are passed over.
    Left out: latency, and how a collective would find these ways. SolverError where there is no optimum.
    """
    inside = [(a, b) for a, b in graph.edges if "nic" not in (a[0], b[0])]
    gpus = [vertex for vertex in graph if vertex[0] == "gpu"]
    vertices = {end for edge in inside for end in edge}
    if len(gpus) < 2 or not vertices:
        return 0.0
    bandwidth = [float(graph.edges[edge]["bandwidth_bytes_per_s"]) for edge in inside]
    program = _Program(len(gpus) * len(inside))
    for e, most in enumerate(bandwidth):
        program.row({s * len(inside) + e: 1.0 for s in range(len(gpus))}, -math.inf, most / max(bandwidth))
    for s, source in enumerate(gpus):
        for vertex in vertices - {source}:
            terms = {s * len(inside) + e: _sign(edge, vertex) for e, edge in enumerate(inside) if vertex in edge}
            program.row(terms | ({program.rate: -1.0} if vertex in gpus else {}), 0.0, 0.0)
    return program.best_rate() * max(bandwidth) * (len(gpus) - 1)


def _sign(edge: tuple[Vertex, Vertex], vertex: Vertex) -> float:
    return 1.0 if edge[1] == vertex else -1.0


class _Program:
    """Flows of at least 0 and one rate, as large as the rows let it be."""

    def __init__(self, flows: int) -> None:
        self.rate = flows
        self._highs: Any = quiet_highs()
        self._highs.setOptionValue("threads", 1)
        self._highs.addVars(flows + 1, np.zeros(flows + 1), np.full(flows + 1, math.inf))

    def row(self, terms: Mapping[int, float], low: float, high: float) -> None:
        index = np.array(list(terms), dtype=np.int32)
        self._highs.addRow(low, high, len(index), index, np.array(list(terms.values())))

    def best_rate(self) -> float:
        self._highs.changeColCost(self.rate, -1.0)
        self._highs.run()
        status = self._highs.getModelStatus()
        if status.name != "kOptimal":
            said = self._highs.modelStatusToString(status)
            raise SolverError(f"uniform all-to-all: the solver stopped with {said!r}")
        return float(self._highs.getSolution().col_value[self.rate])
