"""What every price is made from: the case, who holds what, and what is known of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan.batch import Batch, sequences
from moeplan.layout import Position, Recompute, StageGraph
from moeplan.resources.work import Load
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case
from moeplan.topology.routes import Fabric

Loads = Sequence[Load]
"""[position]: what one rank of each position has to do for one micro-batch."""


class Machine(NamedTuple):
    """Where seconds come from: routes and links, and how much of them and of the GPUs is reached."""

    fabric: Fabric
    calibration: Calibration


class Pricing(NamedTuple):
    """A case cut into stages, on a machine."""

    case: Case
    graph: StageGraph
    machine: Machine
    recompute: Recompute = Recompute()


def loads(case: Case, graph: StageGraph, batch: Batch, microbatch: int) -> list[Load]:
    """The load of the busiest rank of each position for `microbatch`.

    Routing is balanced; with a capacity factor c experts compute c times the mean, padded or dropped.
    """
    busiest = max(len(sequences(batch, microbatch, shard)) for shard in (0, batch.shards - 1))
    tokens = busiest * case.workload.seq_len / graph.cp
    per_copy = len(graph.positions[0].ranks[0]) // graph.tp
    return [_load(case, graph, position, tokens, per_copy) for position in graph.positions]


def _load(case: Case, graph: StageGraph, position: Position, tokens: float, shards: int) -> Load:
    model, padded = case.model, case.execution.capacity or 1.0
    local = model.experts / graph.ep
    if position.spread == "sequence":
        rows = tokens * model.top_k * padded * graph.etp / graph.tp
        return Load(tokens, rows, graph.tp, graph.etp, local, graph.tp > 1 and not case.execution.sequence_parallel)
    share = tokens * shards / len(position.ranks[0])
    return Load(share, share * model.top_k * padded, 1, 1, local)
