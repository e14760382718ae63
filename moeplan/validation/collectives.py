"""Seconds of collectives beside `collectives.csv`."""

from __future__ import annotations

import re

from msgspec import structs

from moeplan.cost import communication as network
from moeplan.cost.durations import Machine
from moeplan.spec.cluster import ClusterSpec, domains
from moeplan.validation import routed
from moeplan.validation.names import Names
from moeplan.validation.outcome import Outcome, Skip, skipping
from moeplan.validation.tables import Collective

LEAST_BYTES = 2**20
"""Smaller messages are latency, of which one machine's tables say little."""
PEAK_BYTES = 8 * 2**30
"""What "largest sizes" stands for where no size is printed."""
BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
"""Bus bandwidth is factor (n - 1) / n times bytes over seconds (definition of nccl-tests)."""
LARGEST_NODE = 16
"""What has more GPUs is an NVLink domain of several nodes, which some rows count."""
MOST_GPUS, MOST_PAIRS = 2**14, 2**22
"""Larger collectives are left out: their routes take many seconds. Pairs are of ranks that exchange directly."""
RINGS = ("all_reduce", "all_gather", "reduce_scatter")
PRICES: dict[str, network.Price] = {
    "alltoall": network.all_to_all,
    "all_reduce": network.all_reduce,
    "all_gather": network.all_gather,
    "reduce_scatter": network.reduce_scatter,
}


def predict_collective(row: Collective, names: Names, least_bytes: float = LEAST_BYTES) -> Outcome:
    """Seconds of one collective among all GPUs of the row, beside the row's.

    Sizes are those of nccl-tests, also where no definition is published; routed rows are copies of every token, k of
    them, spread evenly (`routed`). Skip where the row has neither a time nor a bandwidth that gives one, is smaller
    than `least_bytes`, is no pattern of moeplan, is among one GPU or too many (`MOST_GPUS`), or has nodes that its
    GPUs do not fill.
    """
    row = structs.replace(row, collective=pattern(row.collective))
    if row.latency_us is None and row.bw_GBps is None:
        raise Skip("latency_us, bw_GBps: both are empty: no time published")
    gpus, size = _gpus(row), _size(row)
    if gpus < 2:
        raise Skip("one GPU sends nothing")
    if size < least_bytes:
        raise Skip("message below 1 MiB", f"message_bytes: {size:g} bytes: message below 1 MiB")
    cluster = names.part(row.hardware, gpus)
    node = names.cluster(row.hardware).node
    _check_nodes(row.nodes, gpus, node.gpus * node.domain)
    check_size(gpus, 1 if row.collective in RINGS else gpus)
    machine = names.machine(row.hardware, gpus)
    with skipping():
        measured, seconds = _both(row, machine, cluster, size, gpus)
    return Outcome(row.id, "collectives", seconds, measured, accelerator=cluster.gpu.name)


def pattern(text: str) -> str:
    """The name of a collective as the tables have it: "All-Reduce", "allreduce" and "all_reduce_perf" are all_reduce.

    What stands after the name, such as "(rail-aligned)", stays; other names stay as they are.
    """
    told = re.match(
        r"(?i)\s*(all|reduce|moe)[\s_-]?(to[\s_-]?all|reduce|gather|scatter|dispatch|combine)(?:_perf)?\b", text
    )
    if not told:
        return text
    words = told[1].lower(), re.sub(r"[\s_-]", "", told[2].lower())
    known = {"".join(name.split("_")): name for name in (*PRICES, *routed.ROUTED[:3])}
    return known.get("".join(words), told[0]) + text[told.end() :]


def check_size(gpus: int, partners: int) -> None:
    """Skip where a collective among `gpus`, each with so many `partners`, takes too long to price."""
    if gpus > MOST_GPUS or gpus * partners > MOST_PAIRS:
        raise Skip("too many GPUs for a price by routes", f"gpus: {gpus} are too many GPUs for a price by routes")


def _check_nodes(nodes: int | None, gpus: int, per_node: int) -> None:
    """Skip where `gpus` do not fill the nodes printed; those of a rack may be any part of its domain."""
    if nodes is None:
        return
    if gpus % nodes or gpus / nodes > per_node:
        raise Skip("nodes and GPUs disagree", f"nodes: {gpus} GPUs on {nodes} nodes of at most {per_node}")
    if nodes > 1 and gpus / nodes < per_node <= LARGEST_NODE:
        raise Skip("a part of the GPUs of several nodes")


def _both(row: Collective, machine: Machine, cluster: ClusterSpec, size: float, gpus: int) -> tuple[float, float]:
    """Measured and predicted seconds."""
    if routed.is_routed(row):
        return routed.measured_s(row, gpus, domains(cluster)), routed.predicted_s(row, machine, cluster, gpus)
    if row.definition_of_bytes == "bytes of ONE message":
        return _streamed(row, size, machine, gpus)
    return _measured_s(row, size, gpus), _seconds(row, machine, cluster, size, gpus)


def _gpus(row: Collective) -> int:
    """GPUs of the row: printed, or those whose bus bandwidth and time are the row's."""
    if row.gpus is not None:
        return row.gpus
    if row.bw_GBps and row.latency_us and row.message_bytes and row.collective in BUS_FACTOR:
        part = row.bw_GBps * 1e9 * row.latency_us * 1e-6 / row.message_bytes / BUS_FACTOR[row.collective]
        if part < 1:
            return round(1 / (1 - part))
    raise Skip("number of GPUs not published")


def _size(row: Collective) -> float:
    if routed.is_routed(row):
        return routed.size_of(row)
    if row.message_bytes is not None:
        return row.message_bytes * (row.gpus or 1 if row.definition_of_bytes == "bytes per peer" else 1)
    if row.definition_of_bytes.startswith("peak"):
        return PEAK_BYTES
    raise Skip("bytes not published as a number")


def _measured_s(row: Collective, size: float, gpus: int) -> float:
    """Seconds printed, or those of a bus bandwidth, or of an algorithm bandwidth: bytes over seconds."""
    if row.latency_us is not None:
        return row.latency_us * 1e-6
    told = row.bw_definition.lower()
    bus = re.search(r"bus\s?bw|bus bandwidth", told)
    if row.bw_GBps is None or row.collective not in BUS_FACTOR or not (bus or re.search(r"alg\w*\s?bw", told)):
        given = f"bw_definition: {row.bw_definition!r}: right is nccl-tests busbw or algbw, of {', '.join(BUS_FACTOR)}"
        raise Skip("no time published, only a bandwidth in a definition of its own", given)
    return size * (BUS_FACTOR[row.collective] * (gpus - 1) / gpus if bus else 1.0) / (row.bw_GBps * 1e9)


def _seconds(row: Collective, machine: Machine, cluster: ClusterSpec, size: float, gpus: int) -> float:
    name = "alltoall" if row.collective.startswith("alltoall") else row.collective
    if name not in PRICES:
        known = f"right is {', '.join((*PRICES, *routed.ROUTED))}"
        raise Skip(f"{row.collective} is no pattern of moeplan", f"collective: {row.collective!r}: {known}")
    if row.definition_of_bytes == "bytes per peer":
        machine = machine._replace(fabric=routed.apart(cluster))  # puts that GPUs start
    elif row.definition_of_bytes and not row.definition_of_bytes.startswith(("nccl-tests", "peak")):
        given = f"definition_of_bytes: {row.definition_of_bytes!r}: right is nccl-tests size, or empty"
        raise Skip("bytes in a definition of their own", given)
    return PRICES[name](*machine, [range(gpus)], size).seconds


def _streamed(row: Collective, size: float, machine: Machine, gpus: int) -> tuple[float, float]:
    """Measured and predicted seconds of one of many messages in a row to the other node, without their start."""
    if row.bw_GBps is None:
        raise Skip("no time published")
    pair = [(0, gpus - 1)]
    twice, once = (network.point_to_point(*machine, pair, n * size).seconds for n in (2, 1))
    return size / (row.bw_GBps * 1e9), twice - once
