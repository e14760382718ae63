"""What a cluster is: nodes, their GPUs and NICs, and the switches between nodes. Bandwidths are per direction."""

from __future__ import annotations

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.model import Count, Size
from moeplan.spec.record import Record
from moeplan.units import Bytes, BytesPerS, FlopPerS, Seconds


class Gpu(Record):
    """One rank's device. `peak` is dense (no sparsity), by element type."""

    name: str
    hbm_bytes: Bytes = msgspec.field(name="hbm")
    hbm_bytes_per_s: BytesPerS = msgspec.field(name="hbm_bandwidth")
    peak_flop_per_s: dict[str, FlopPerS] = msgspec.field(name="peak")


class Node(Record):
    """GPUs joined by a switch inside the node; NIC j serves the GPUs i with i * nics // gpus == j."""

    gpus: Size
    nics: Count
    link_bytes_per_s: BytesPerS = msgspec.field(name="link")
    """From one GPU to the switch inside the node."""
    link_latency_s: Seconds = msgspec.field(name="link_latency")
    nic_bytes_per_s: BytesPerS = msgspec.field(name="nic")
    nic_latency_s: Seconds = msgspec.field(name="nic_latency")


class Tree(Record, tag_field="kind", tag="tree"):
    """Leaf switches under one spine; a leaf's nodes are one single-hop group."""

    nodes_per_leaf: Size
    uplink_bytes_per_s: BytesPerS = msgspec.field(name="uplink")
    """From one leaf switch to the spine, all its cables together."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")


Network = Tree
"""The networks between nodes; a union tagged by `kind` as kinds are added."""


class ClusterSpec(Record):
    """A cluster of equal nodes; ranks are numbered node by node."""

    name: str
    nodes: Size
    gpu: Gpu
    node: Node
    network: Network
    calibration: str = "generic"
    """Name or path of the calibration to use when none is given."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """Where each number came from, for readers."""


def num_ranks(cluster: ClusterSpec) -> int:
    """GPUs of the whole cluster."""
    return cluster.nodes * cluster.node.gpus


def node_of(cluster: ClusterSpec, rank: int) -> int:
    """The node that `rank` sits on."""
    return rank // cluster.node.gpus


MOST_GPUS = 2**20


def check_cluster(cluster: ClusterSpec) -> ClusterSpec:
    """`cluster`, or SpecError where its nodes cannot talk to each other or a GPU has no element type to compute in."""
    if cluster.nodes > 1 and cluster.node.nics == 0:
        raise SpecError(f"cluster {cluster.name}: nodes {cluster.nodes} with nics 0; a node of several needs a NIC")
    if not cluster.gpu.peak_flop_per_s:
        raise SpecError(f"cluster {cluster.name}: gpu.peak is empty; give at least one, such as bf16")
    speeds: dict[str, float] = {f"gpu.peak.{name}": peak for name, peak in cluster.gpu.peak_flop_per_s.items()}
    speeds |= {"gpu.hbm": cluster.gpu.hbm_bytes, "gpu.hbm_bandwidth": cluster.gpu.hbm_bytes_per_s}
    for name, value in speeds.items():
        if value < 1:
            raise SpecError(f"cluster {cluster.name}: {name} is {value}; at least 1 in SI units")
    if cluster.nodes * cluster.node.gpus > MOST_GPUS:
        raise SpecError(f"cluster {cluster.name}: {cluster.nodes * cluster.node.gpus} GPUs; at most {MOST_GPUS}")
    return cluster


def first_gpus(cluster: ClusterSpec, count: int) -> ClusterSpec:
    """The first `count` GPUs in node order: whole nodes, or one node with fewer GPUs.

    A part of a node keeps ceil(count * nics / gpus) NICs, those that its GPUs used; on one node they carry nothing.
    SpecError where `count` is neither, or more than the cluster has.
    """
    gpus, total = cluster.node.gpus, num_ranks(cluster)
    if 1 <= count < gpus:
        node = msgspec.structs.replace(cluster.node, gpus=count, nics=-(-count * cluster.node.nics // gpus))
        return msgspec.structs.replace(cluster, nodes=1, node=node)
    if count < 1 or count > total:
        raise SpecError(f"cluster {cluster.name}: {count} GPUs asked for, of {total}; take 1 to {total}")
    if count % gpus:
        raise SpecError(
            f"cluster {cluster.name}: {count} GPUs are not whole nodes of {gpus}; take a multiple of {gpus}"
        )
    return msgspec.structs.replace(cluster, nodes=count // gpus)
