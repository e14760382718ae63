"""Seconds after the last backward: gradients summed, the optimizer's pass, new weights gathered."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.cost import Cost
from moeplan.cost import communication as network
from moeplan.cost.pricing import Pricing
from moeplan.resources.memory import replica_parameters
from moeplan.resources.work import ELEMENT_BYTES
from moeplan.spec.case import Case
from moeplan.spec.workload import gradient_bytes


class Shared(NamedTuple):
    """What ranks with the same parameters do for one replica class."""

    number: int
    """Of the replica in the stage graph."""
    kind: str
    """reduce_scatter, all_gather or all_reduce."""
    cost: Cost


def shared(pricing: Pricing) -> list[Shared]:
    """Collectives of every replica class: reduce-scatter and all-gather where the optimizer is divided."""
    case, graph, machine, _ = pricing
    found = []
    for number, replica in enumerate(graph.replicas):
        held = max(replica_parameters(case.model, graph, replica, p) for p in replica.positions)
        gradients, weights = held * gradient_bytes(case.memory), held * gathered_bytes(case)
        if replica.sharded:
            found.append(Shared(number, "reduce_scatter", network.reduce_scatter(*machine, replica.groups, gradients)))
            found.append(Shared(number, "all_gather", network.all_gather(*machine, replica.groups, weights)))
        else:
            found.append(Shared(number, "all_reduce", network.all_reduce(*machine, replica.groups, gradients)))
    return found


def gathered_bytes(case: Case) -> float:
    """Bytes of a parameter on its way to ranks that need it: of a kept weight, or an element where none is kept."""
    return case.memory.weight_bytes or ELEMENT_BYTES[case.workload.dtype]


def optimizer(pricing: Pricing) -> Cost:
    """Seconds of the slowest position's optimizer: it reads and writes its states, reads gradients, writes weights."""
    case, graph, machine, _ = pricing
    memory, gpu = case.memory, case.cluster.gpu
    moved = 2 * memory.optimizer_bytes + gradient_bytes(memory) + memory.weight_bytes
    state_bytes = [0.0] * len(graph.positions)
    for replica in graph.replicas:
        shards = len(replica.groups[0]) if replica.sharded else 1
        for position in replica.positions:
            state_bytes[position] += replica_parameters(case.model, graph, replica, position) / shards * moved
    slowest = max(state_bytes) / (gpu.hbm_bytes_per_s * machine.calibration.hbm)
    return Cost(slowest + machine.calibration.kernel_s, "roofline")
