"""Seconds after the last backward: gradients summed, the optimizer's pass, new weights gathered."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.cost import Cost
from moeplan.cost import communication as network
from moeplan.cost.pricing import Pricing
from moeplan.resources.memory import held_parameters, pieces_at, updated_parameters
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
    found, here = [], pieces_at(graph)
    for number, replica in enumerate(graph.replicas):
        held = max(held_parameters(case, graph, replica, p, here[p]) for p in replica.positions)
        gradients, weights = held * gradient_bytes(case.memory), held * gathered_bytes(case)
        if replica.sharded:
            there, back = network.scatter_and_gather(*machine, replica.groups, gradients, weights)
            found += [Shared(number, "reduce_scatter", there), Shared(number, "all_gather", back)]
        else:
            found.append(Shared(number, "all_reduce", network.all_reduce(*machine, replica.groups, gradients)))
    return found


def gathered_bytes(case: Case) -> float:
    """Bytes of a parameter on its way to ranks that need it: of a kept weight, or an element where none is kept."""
    return case.memory.weight_bytes or ELEMENT_BYTES[case.workload.dtype]


HOST_LINK_BYTES_PER_S = 50e9
"""Between a GPU and the host's memory, each way: PCIe 5 with 16 lanes, of whose 63 GB/s four fifths pass (assumed)."""
HOST_BYTES_PER_S = 40e9
"""Of the host's memory that one GPU's share of its optimizer reads and writes (assumed)."""


def optimizer(pricing: Pricing) -> Cost:
    """Seconds of the slowest position's optimizer: it reads and writes its states, reads gradients, writes weights.

    What `memory.offload` leaves to the host passes the host's memory, its gradients and weights the link to it.
    """
    case, graph, machine, _ = pricing
    memory, gpu = case.memory, case.cluster.gpu
    passed = gradient_bytes(memory) + gathered_bytes(case)
    moved = 2 * memory.optimizer_bytes + passed
    held = max(updated_parameters(case, graph, p, here) for p, here in enumerate(pieces_at(graph)))
    here = held * (1 - memory.offload) * moved / (gpu.hbm_bytes_per_s * machine.calibration.hbm)
    there = held * memory.offload * (moved / HOST_BYTES_PER_S + passed / HOST_LINK_BYTES_PER_S)
    return Cost(here + there + machine.calibration.kernel_s, "assumed" if there else "roofline")
