"""Dispatch and combine of experts in `collectives.csv`: what the rows say, and what each library sends.

DeepEP and UCCL-EP print bytes over seconds of their own tests (tests/test_internode.py of deepseek-ai/DeepEP): received
rows, each once per rank, over NVLink ("NVLink", "xGMI"); rows sent to nodes, each once per node and the own node
included, over the NIC ("RDMA"), where a token reaches 4 nodes at most. HybridEP and MORI print what leaves over a NIC
("NIC bandwidth") or rows received once per rank ("algorithm bandwidth").
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from moeplan.calibrate.collectives import apiece
from moeplan.cost import communication as network
from moeplan.cost.durations import Machine
from moeplan.spec.cluster import ClusterSpec, domains
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.validation.cells import COUNT, count
from moeplan.validation.outcome import Skip
from moeplan.validation.tables import Collective

ROUTED = ("moe_dispatch", "moe_combine", "moe_alltoall", "moe_dispatch (a2a only)")
TEST_NODES = 4
"""Nodes that a token reaches at most in the tests of DeepEP, which UCCL-EP shares."""
TOKENS, HIDDEN, TOP_K = 4096, 7168, 8
"""As DeepEP's tests have them, after DeepSeek-V3; taken where a source prints only a bandwidth of large messages."""
BLOCK_BYTES_PER_S = 45e9
"""What one block of HybridEP's kernels moves: its tables hold 43 to 53 GB/s for each of 4 to 8 blocks."""

COLUMNS = "definition_of_bytes, notes"


class Rows(NamedTuple):
    """What one rank sends: `rows` of `row_bytes`, all `top_k` copies of its tokens."""

    rows: float
    row_bytes: float
    top_k: int
    experts: int


def is_routed(row: Collective) -> bool:
    """Whether the row is about experts' rows."""
    return row.collective in ROUTED


def rows_of(row: Collective) -> Rows:
    """What the row says is sent; Skip where experts per token or bytes are not published, SpecError for counts of 0."""
    text = f"{row.definition_of_bytes} {row.notes} "
    k = count(f"top-?{COUNT}", text, COLUMNS)
    if k is None and "V3 config" not in text:
        raise Skip("number of experts per token not published")
    top_k = k or TOP_K
    told = count(rf"{COUNT}\?? tok|seq {COUNT}", text, COLUMNS)
    wide = count(rf"hidden {COUNT}|top-\d+ x {COUNT} |\bh{COUNT} ", text, COLUMNS)
    if told is None and row.message_bytes is None and row.bw_GBps is None:
        raise Skip("bytes not published as a number")
    tokens, hidden = float(told or TOKENS), float(wide or HIDDEN)
    narrow = "FP8" in row.library or ("BF16" not in row.library and row.collective == "moe_dispatch" and _narrow(row))
    row_bytes = hidden * (1 if narrow else 2)
    size = row.message_bytes or tokens * top_k * row_bytes
    return Rows(size / row_bytes, row_bytes, top_k, count(f"{COUNT} experts", text, COLUMNS) or 0)


def _narrow(row: Collective) -> bool:
    """Dispatch in one byte, as in DeepEP's own tables, unless the row says BF16."""
    return "FP8" in row.definition_of_bytes or "BF16" not in f"{row.definition_of_bytes} {row.notes}"


def size_of(row: Collective) -> float:
    """Bytes of all copies that one rank sends."""
    rows = rows_of(row)
    if _padded(row):
        return rows.rows / rows.top_k * rows.experts * rows.row_bytes / 2
    return rows.rows * rows.row_bytes


def measured_s(row: Collective, gpus: int, nodes: int) -> float:
    """Seconds printed, or those that a bandwidth in its library's definition gives; Skip where it gives none."""
    if row.latency_us is not None:
        return row.latency_us * 1e-6
    k = rows_of(row).top_k
    counted = _counted(row.bw_definition, gpus, nodes, k)
    if row.bw_GBps is None or not counted or "low-latency" in row.library:
        raise Skip("no time published, only a bandwidth in a definition of its own")
    return size_of(row) * counted / k / (row.bw_GBps * 1e9)


def _counted(definition: str, gpus: int, nodes: int, k: int) -> float:
    """Copies of a token that a bandwidth counts; 0 where its definition is not known or nothing leaves a node."""
    if definition.startswith("NIC"):
        return (nodes - 1) * (1 - (1 - 1 / nodes) ** k)
    if definition.startswith("algorithm") or definition.endswith(("NVLink", "xGMI")):
        return gpus * (1 - (1 - 1 / gpus) ** k)
    if definition.endswith("RDMA"):
        over = min(nodes, TEST_NODES)
        return over * (1 - (1 - 1 / over) ** k)
    return 0.0


def predicted_s(row: Collective, machine: Machine, cluster: ClusterSpec, gpus: int) -> float:
    """Seconds of what the row's library sends.

    Low-latency kernels send every copy as a message of its own, plain all-to-alls all copies to a rank in one. The
    version of DeepEP in pplx-kernels' tables (2025) is one of "pure RDMA" (its README): NICs carry all there is.
    """
    nodes = domains(cluster)
    rows, size, group = rows_of(row), size_of(row), [range(gpus)]
    if "pplx-kernels" in row.library and not any(word in row.library for word in ("DeepEP", "Torch")):
        raise Skip("pplx-kernels are no dispatcher of moeplan")
    if _padded(row) or "RCCL" in row.library:
        return network.all_to_all(*machine, group, size).seconds
    if "low-latency" in row.library or "pplx" in row.library:
        single = machine._replace(calibration=apiece(machine.calibration, rows.rows / gpus))
        fabric = apart(cluster) if "pplx" in row.library else machine.fabric
        return network.all_to_all(fabric, single.calibration, group, size, "deepep").seconds
    if "HybridEP" in row.library:
        found = network.dispatch(*machine, group, size, rows.top_k, "hybridep").seconds
        blocks = count(f"{COUNT} CUDA blocks", row.library, "library")
        moved = size * gpus * (1 - (1 - 1 / gpus) ** rows.top_k) / rows.top_k
        return max(found, moved / (blocks * BLOCK_BYTES_PER_S) if blocks else 0.0)
    limit = min(nodes, TEST_NODES) if "V2" not in row.library else 0
    return network.dispatch(*machine, group, size, rows.top_k, "deepep", limit).seconds


def _padded(row: Collective) -> bool:
    """Torch's all-to-all of pplx-kernels' tables: a slot for every token at every expert, of one byte per element.

    Inferred: what it takes among 8 to 128 GPUs, with 1 and with 128 tokens, is what that many bytes take.
    """
    return "Torch all_to_all" in row.library


def apart(cluster: ClusterSpec) -> Fabric:
    """Routes where every byte takes the NICs, also between the GPUs of a node."""
    node = structs.replace(cluster.node, gpus=1, nics=1, links=(), bridge=None, nic_of_gpu=(), domain=1)
    nodes = cluster.nodes * cluster.node.gpus
    return Fabric(build(structs.replace(cluster, node=node, nodes=nodes, use="", kinds=(), without_nics=())))
