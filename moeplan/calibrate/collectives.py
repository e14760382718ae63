"""Rows of `published/collectives.csv` that links are fitted to, each with its seconds and how it is priced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from msgspec import structs

from moeplan.calibrate.published import rows_of
from moeplan.cost import communication as network
from moeplan.cost.communication import Dispatcher
from moeplan.spec.calibration import Calibration
from moeplan.spec.cluster import sized
from moeplan.spec.shipped import load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Bytes

LEAST_BYTES, WHOLE_BYTES, SMALL_WEIGHT = 2.0**16, 2.0**20, 0.3
"""Smaller messages than the first are not fitted; those below the second weigh less: steps rarely wait for them."""
TOP_K, HIDDEN, TOKENS, TEST_NODES = 8, 7168, 4096, 4
"""Of the tests of deepseek-ai/DeepEP, whose tokens reach 4 nodes at most."""
LEAST_BLOCKS = 12
"""HybridEP's kernels with fewer blocks than that do not fill NVLink; with more than 2 they fill a network card."""
PRICES: dict[str, network.Price] = {
    "alltoall": network.all_to_all,
    "all_reduce": network.all_reduce,
    "all_gather": network.all_gather,
    "reduce_scatter": network.reduce_scatter,
}


class Sample(NamedTuple):
    """One measured collective."""

    price: Callable[[Calibration], float]
    seconds: float
    weight: float
    named: str
    """The library or pattern whose share it tells."""


def nccl(cluster: str, hardware: Sequence[str], *, far: bool = False, nics: int = 0) -> list[Sample]:
    """Rows of nccl-tests inside a node, or with `far` its alltoalls between nodes, of `nics` cards where not 0."""
    found = []
    for row in _rows(hardware):
        size, name = float(row["message_bytes"] or 0), row["collective"]
        if name not in PRICES or size < LEAST_BYTES or not (row["gpus"] and row["latency_us"]):
            continue
        gpus = int(row["gpus"])
        fabric = part(cluster, gpus, nics)
        between = int(fabric.node_of([gpus - 1])[0]) > 0
        if row["definition_of_bytes"].startswith("nccl-tests") and between == far and (name == "alltoall" or not far):
            found.append(Sample(_collective(name, fabric, gpus, size), _us(row), _weight(size), name))
    return found


def _collective(name: str, fabric: Fabric, gpus: int, size: float) -> Callable[[Calibration], float]:
    return lambda calibration: PRICES[name](fabric, calibration, [range(gpus)], size).seconds


def routed(cluster: str, hardware: str, *, far: bool = False) -> list[Sample]:
    """Rows of DeepEP's normal kernels and of HybridEP's with enough blocks, inside a node or between nodes."""
    found = []
    for row in _rows([hardware]):
        blocks = re.search(r"(\d+) (?:CUDA blocks|SM)\b", row["library"])
        least = 3 if far else LEAST_BLOCKS
        if row["collective"] not in ("moe_dispatch", "moe_combine") or (blocks and int(blocks[1]) < least):
            continue
        gpus, k = int(row["gpus"]), _top_k(row)
        fabric = part(cluster, gpus)
        nodes = int(fabric.node_of([gpus - 1])[0]) + 1
        if (nodes > 1) == far:
            size = float(row["message_bytes"] or TOKENS * k * HIDDEN * 2)
            seconds = _us(row) if row["latency_us"] else size * _reached(row, gpus, nodes, k) / k / _bandwidth(row)
            name: Dispatcher = "hybridep" if "HybridEP" in row["library"] else "deepep"
            limit = min(nodes, TEST_NODES) if name == "deepep" else 0
            found.append(Sample(_dispatch(fabric, gpus, size, k, name, limit), seconds, 1.0, name))
    return found


def _dispatch(
    fabric: Fabric, gpus: int, size: float, k: int, name: Dispatcher, limit: int
) -> Callable[[Calibration], float]:
    group = [range(gpus)]
    return lambda calibration: network.dispatch(fabric, calibration, group, size, k, name, limit).seconds


def low_latency(cluster: str, hardware: str) -> list[Sample]:
    """Rows of DeepEP's low-latency kernels between nodes, which send every copy as a message of its own."""
    found = []
    for row in _rows([hardware]):
        gpus = int(row["gpus"])
        fabric = part(cluster, gpus)
        if "low-latency" in row["library"] and int(fabric.node_of([gpus - 1])[0]) > 0:
            size = float(row["message_bytes"])
            copies = size / (HIDDEN * (1 if row["collective"] == "moe_dispatch" else 2))
            found.append(Sample(_single(fabric, gpus, size, copies / gpus), _us(row), 1.0, "deepep"))
    return found


def _single(fabric: Fabric, gpus: int, size: float, messages: float) -> Callable[[Calibration], float]:
    return lambda calibration: (
        network.all_to_all(fabric, apiece(calibration, messages), [range(gpus)], size, "deepep").seconds
    )


def apiece(calibration: Calibration, messages: float) -> Calibration:
    """`calibration` where what one rank sends another goes in so many messages instead of one."""
    node, between = (
        structs.replace(tier, half_message_bytes=Bytes(tier.half_message_bytes * messages))
        for tier in (calibration.node, calibration.network)
    )
    return structs.replace(calibration, node=node, network=between)


@cache
def part(cluster: str, gpus: int, nics: int = 0) -> Fabric:
    """The routes of `gpus` GPUs of a shipped cluster, or of all those of the nodes that they need."""
    found = load_cluster(cluster)
    node = structs.replace(found.node, nics=nics or found.node.nics)
    whole = gpus if gpus < node.gpus else -(-gpus // node.gpus) * node.gpus
    return Fabric(build(sized(structs.replace(found, node=node), whole)))


def _rows(hardware: Sequence[str]) -> list[Mapping[str, str]]:
    return [row for row in rows_of("collectives") if row["hardware"] in hardware]


def _top_k(row: Mapping[str, str]) -> int:
    found = re.search(r"top-?(\d+)", f"{row['definition_of_bytes']} {row['notes']}")
    return int(found[1]) if found else TOP_K


def _us(row: Mapping[str, str]) -> float:
    return float(row["latency_us"]) * 1e-6


def _bandwidth(row: Mapping[str, str]) -> float:
    return float(row["bw_GBps"]) * 1e9


def _weight(size: float) -> float:
    return 1.0 if size >= WHOLE_BYTES else SMALL_WEIGHT


def _reached(row: Mapping[str, str], gpus: int, nodes: int, k: int) -> float:
    """Copies of a token that the row's bandwidth counts: what leaves over NICs, or what arrives once per rank."""
    if "NIC bandwidth" in row["bw_definition"]:
        return (nodes - 1) * (1 - (1 - 1 / nodes) ** k)
    return gpus * (1 - (1 - 1 / gpus) ** k)
