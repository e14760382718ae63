"""Seconds of collectives beside `collectives.csv`."""

from __future__ import annotations

import re

from moeplan.cost import communication as network
from moeplan.cost.durations import Machine
from moeplan.validate.names import Names
from moeplan.validate.outcome import Outcome, Skip
from moeplan.validate.tables import Collective

LEAST_BYTES = 2**20
"""Smaller messages are latency, of which one machine's tables say little."""
BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
"""Bus bandwidth is factor (n - 1) / n times bytes over seconds (definition of nccl-tests)."""
LARGEST_NODE = 16
"""Machines whose "node" has more GPUs are NVLink domains of several nodes, which some rows count."""
ROUTED = ("moe_dispatch", "moe_combine")
DEDUPLICATING = ("DeepEP", "HybridEP", "UCCL-EP")
"""Libraries, by a word in their name, that send a token's row to a node once; their low-latency kernels do not."""


def predict_collective(row: Collective, names: Names) -> Outcome:
    """Seconds of one collective among all GPUs of the row, beside the row's.

    Sizes are those of nccl-tests; routed rows are copies of every token, k of them, spread evenly. Skip where the
    row has neither a time nor a bus bandwidth that gives one, is smaller than 1 MiB, or is no pattern of moeplan.
    """
    if row.gpus is None:
        raise Skip("number of GPUs not published")
    if row.message_bytes is None:
        raise Skip("bytes not published as a number")
    if row.message_bytes < LEAST_BYTES:
        raise Skip("message below 1 MiB")
    measured = _measured_s(row, row.message_bytes, row.gpus)
    cluster = names.part(row.hardware, row.gpus)
    if row.nodes and row.nodes > 1 and row.gpus / row.nodes < cluster.node.gpus <= LARGEST_NODE:
        raise Skip("a part of the GPUs of several nodes")
    seconds = _seconds(row, names.machine(row.hardware, row.gpus), row.message_bytes, row.gpus)
    return Outcome(row.id, "collectives", seconds, measured, accelerator=cluster.gpu.name)


def _measured_s(row: Collective, size: float, gpus: int) -> float:
    if row.latency_us is not None:
        return row.latency_us * 1e-6
    if row.bw_GBps is None or "busbw" not in row.bw_definition or row.collective not in BUS_FACTOR:
        raise Skip("no time published, only a bandwidth in a definition of its own")
    return size * BUS_FACTOR[row.collective] * (gpus - 1) / gpus / (row.bw_GBps * 1e9)


def _seconds(row: Collective, machine: Machine, size: float, gpus: int) -> float:
    group = [tuple(range(gpus))]
    if row.collective in ROUTED:
        return _routed_s(row, machine, group, size)
    if row.collective not in BUS_FACTOR:
        raise Skip(f"{row.collective} is no pattern of moeplan")
    if not row.definition_of_bytes.startswith("nccl-tests"):
        raise Skip("bytes in a definition of their own")
    price = {
        "alltoall": network.all_to_all,
        "all_reduce": network.all_reduce,
        "all_gather": network.all_gather,
        "reduce_scatter": network.reduce_scatter,
    }[row.collective]
    return price(*machine, group, size).seconds


def _routed_s(row: Collective, machine: Machine, group: list[tuple[int, ...]], size: float) -> float:
    """Copies of every token to ranks of the group, its own included, once per node where the library does that."""
    copies = re.search(r"top-?(\d+)", f"{row.definition_of_bytes} {row.notes}")
    if copies is None:
        raise Skip("number of experts per token not published")
    once = "low-latency" not in row.library and any(word in row.library for word in DEDUPLICATING)
    return network.many_to_many(*machine, group, group, size, int(copies[1]) if once else None).seconds
