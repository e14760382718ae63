"""Bytes that a rank holds from step to step: weights, gradients, main parameters, optimizer state, workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan.layout import Replica, StageGraph
from moeplan.resources import parameters as count
from moeplan.resources.memory.held import pieces_on, replica_parameters
from moeplan.resources.memory.units import fsdp_units
from moeplan.resources.memory.workspaces import copies_bytes, workspace_bytes
from moeplan.resources.mtp import module_share
from moeplan.resources.work import ELEMENT_BYTES
from moeplan.spec.case import Case
from moeplan.spec.model import ModelSpec
from moeplan.spec.workload import Memory, gradient_bytes


class State(NamedTuple):
    """Bytes of the parameters of one rank and what belongs to them."""

    weights: float
    gradients: float
    main: float
    """Master weights."""
    optimizer: float
    """Moments."""
    gathered: float
    """With ZeRO 3: whole weights, and gradients, of the layers that run."""
    workspaces: float
    """What kernels keep for good: placeholders of weight gradients, narrow copies of weights."""


def state_bytes(case: Case, graph: StageGraph, position: int) -> State:
    """Bytes of weights, gradients, master weights and moments of one rank at `position`.

    Per parameter: weight + gradient + (main + moments) (1 - offload) / shards, shards = ranks that hold the same
    parameter (or what `memory.optimizer_shards` says); ZeRO 2 divides gradients, ZeRO 3 weights too, ZeRO 0 nothing.
    """
    memory = case.memory
    divided, here = [0.0, 0.0, 0.0], pieces_on(graph, position)
    for replica in graph.replicas:
        if position in replica.positions:
            parameters = held_parameters(case, graph, replica, position, here)
            for level in (1, 2, 3):
                divided[level - 1] += parameters / _shards(memory, replica, level)
    states, gradients, weights = divided
    main, moments = _optimizer(memory)
    kept = 1 - memory.offload
    return State(
        weights * memory.weight_bytes,
        gradients * gradient_bytes(memory),
        states * main * kept,
        states * moments * kept,
        gathered_bytes(case, graph, position) if memory.zero == 3 else 0.0,
        copies_bytes(case, graph, position) + workspace_bytes(case, graph, position),
    )


def static_bytes(case: Case, graph: StageGraph, position: int) -> float:
    """Bytes of `state_bytes` of one rank at `position` together."""
    return sum(state_bytes(case, graph, position))


def host_bytes(case: Case, graph: StageGraph, position: int) -> float:
    """Bytes of main parameters and moments of one rank that the host's memory holds instead."""
    return updated_parameters(case, graph, position) * case.memory.optimizer_bytes * case.memory.offload


def updated_parameters(case: Case, graph: StageGraph, position: int, here: Sequence[int] | None = None) -> float:
    """Parameters whose optimizer state one rank at `position` has, on the GPU or on the host."""
    here = pieces_on(graph, position) if here is None else here
    return sum(
        held_parameters(case, graph, replica, position, here) / _shards(case.memory, replica, 1)
        for replica in graph.replicas
        if position in replica.positions
    )


def held_parameters(
    case: Case, graph: StageGraph, replica: Replica, position: int, here: Sequence[int] | None = None
) -> float:
    """`replica_parameters`, and on the last position with `memory.mtp` those of the further-token modules.

    Their layer's experts stand with the experts, all else with the dense parameters: projection, norms, router,
    attention, and a copy of the embedding where the first position is another one.
    """
    model = case.model
    held = replica_parameters(model, graph, replica, position, here)
    if not case.memory.mtp or position != graph.stages[-1][0]:
        return held
    experts, dense = _further(model, graph)
    if replica.parameters == "experts":
        return held + experts
    return held + dense if replica.parameters == "dense" else held


def _further(model: ModelSpec, graph: StageGraph) -> tuple[float, float]:
    """Parameters of routed experts, and of all else, of the further-token modules on one rank of the last position."""
    dense, experts = (model.mtp_layers * share for share in module_share(model, graph.tp, graph.etp, graph.ep))
    alone = len(graph.positions) > 1 and not model.tied_embeddings
    return experts, dense + alone * bool(model.mtp_layers) * count.embedding_parameters(model) / graph.tp


def _shards(memory: Memory, replica: Replica, level: int) -> int:
    """Ranks over which ZeRO of at least `level` divides what `replica` names: no more than hold the same."""
    if memory.zero < level or not replica.sharded:
        return 1
    ranks = len(replica.groups[0])
    return min(memory.optimizer_shards or ranks, ranks)


def _optimizer(memory: Memory) -> tuple[float, float]:
    """Bytes per parameter of master weight and of moments."""
    main = min(memory.main_bytes, memory.optimizer_bytes)
    return main, memory.optimizer_bytes - main


def gathered_bytes(case: Case, graph: StageGraph, position: int) -> float:
    """Whole weights, and their gradients, that ranks with divided weights have while layers run.

    In one pipeline position: the two largest units (a layer, embedding, head) in the workload's element type, the one
    that runs and the one fetched, and a whole gradient of the larger one, in its element type and as it is summed. In
    several: every unit and its gradient (as summed), which stay until the last micro-batch.
    """
    size, summed = ELEMENT_BYTES[case.workload.dtype], gradient_bytes(case.memory)
    units = sorted(fsdp_units(case.model, graph, position), reverse=True)
    if len(graph.positions) > 1:
        return sum(units) * (size + summed)
    return sum(units[:2]) * size + sum(units[:1]) * (size + summed)
