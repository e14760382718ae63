"""What a cluster is: nodes, their GPUs and NICs, and the switches between nodes. Bandwidths are per direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.given import of_type
from moeplan.spec.model import Count, Size
from moeplan.spec.record import Record
from moeplan.units import Bytes, BytesPerS, FlopPerS, Seconds


class Gpu(Record):
    """One rank's device. `peak` is dense (no sparsity), by element type."""

    name: str
    hbm_bytes: Bytes = msgspec.field(name="hbm")
    hbm_bytes_per_s: BytesPerS = msgspec.field(name="hbm_bandwidth")
    peak_flop_per_s: dict[str, FlopPerS] = msgspec.field(name="peak")
    cpu: bool = False
    """Whether it is a process on a CPU, whose memory has no driver context and no communicators of NCCL."""


Link: TypeAlias = tuple[Count, Count, BytesPerS]
"""Two GPUs of a node, counted from 0, and the bandwidth of all cables between them."""


class Node(Record):
    """GPUs joined by a switch inside the node or by `links`; NIC j serves the GPUs i with i * nics // gpus == j."""

    gpus: Size
    nics: Count
    link_bytes_per_s: BytesPerS = msgspec.field(name="link")
    """From one GPU to the switch inside the node; with `links`, from one GPU to its NIC."""
    link_latency_s: Seconds = msgspec.field(name="link_latency")
    nic_bytes_per_s: BytesPerS = msgspec.field(name="nic")
    nic_latency_s: Seconds = msgspec.field(name="nic_latency")
    links: tuple[Link, ...] = ()
    """What joins the GPUs where there is no switch: [[0, 1, "200 GB/s"], ...], each pair once, for both directions."""


class Tree(Record, tag_field="kind", tag="tree"):
    """Leaf switches under one spine; a leaf's nodes are one single-hop group."""

    nodes_per_leaf: Size
    uplink_bytes_per_s: BytesPerS = msgspec.field(name="uplink")
    """From one leaf switch to the spine, all its cables together."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")


class Dragonfly(Record, tag_field="kind", tag="dragonfly"):
    """Groups of switches: every two switches of a group are linked, and every two groups. A node is on one switch."""

    nodes_per_switch: Size
    """A switch's nodes are one single-hop group."""
    switches_per_group: Annotated[int, msgspec.Meta(ge=2, le=10**8)]
    local_link_bytes_per_s: BytesPerS = msgspec.field(name="local_link")
    links_per_switch_pair: Size = 1
    """Local links between two switches of a group."""
    global_link_bytes_per_s: BytesPerS = msgspec.field(name="global_link")
    links_per_group_pair: Size
    """Global links between two groups."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")


Network: TypeAlias = Tree | Dragonfly
"""The networks between nodes, told apart by `kind`."""


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


def single_hop_nodes(cluster: ClusterSpec) -> int:
    """Nodes of one leaf of a tree, or of one switch of a dragonfly; it may be more than the cluster has."""
    match cluster.network:
        case Tree(nodes_per_leaf=nodes):
            return nodes
        case Dragonfly(nodes_per_switch=nodes):
            return nodes


MOST_GPUS = 2**17
"""More GPUs, or NICs, are taken for a slip: the largest machines have half as many."""


def check_cluster(cluster: ClusterSpec) -> ClusterSpec:
    """`cluster`, or SpecError where its nodes or GPUs cannot reach each other, or a GPU has no type to compute in."""
    if cluster.nodes > 1 and cluster.node.nics == 0:
        raise SpecError(f"cluster {cluster.name}: nodes {cluster.nodes} with nics 0; a node of several needs a NIC")
    if not cluster.gpu.peak_flop_per_s:
        raise SpecError(f"cluster {cluster.name}: gpu.peak is empty; give at least one, such as bf16")
    speeds: dict[str, float] = {f"gpu.peak.{name}": peak for name, peak in cluster.gpu.peak_flop_per_s.items()}
    speeds |= {"gpu.hbm": cluster.gpu.hbm_bytes, "gpu.hbm_bandwidth": cluster.gpu.hbm_bytes_per_s}
    speeds |= {"node.link": cluster.node.link_bytes_per_s, "node.nic": cluster.node.nic_bytes_per_s}
    match cluster.network:
        case Tree(uplink_bytes_per_s=uplink):
            speeds["network.uplink"] = uplink
        case Dragonfly(local_link_bytes_per_s=local, global_link_bytes_per_s=between):
            speeds |= {"network.local_link": local, "network.global_link": between}
    for name, value in speeds.items():
        if value < 1:
            raise SpecError(f"cluster {cluster.name}: {name} is {value}; at least 1 in SI units")
    if cluster.nodes * cluster.node.gpus > MOST_GPUS:
        raise SpecError(f"cluster {cluster.name}: {cluster.nodes * cluster.node.gpus} GPUs; at most {MOST_GPUS}")
    if cluster.nodes * cluster.node.nics > MOST_GPUS:
        raise SpecError(f"cluster {cluster.name}: {cluster.nodes * cluster.node.nics} NICs; at most {MOST_GPUS}")
    _check_links(cluster.name, cluster.node)
    return cluster


def _check_links(name: str, node: Node) -> None:
    """SpecError with the first of `node.links` that joins no two GPUs of the node, or with a GPU left out."""
    pairs = set()
    for a, b, bytes_per_s in node.links:
        where = f"cluster {name}: node.links has [{a}, {b}, '{bytes_per_s}']"
        if max(a, b) >= node.gpus:
            raise SpecError(f"{where}; the node's GPUs are 0 to {node.gpus - 1}")
        if a == b:
            raise SpecError(f"{where}; a link joins two different GPUs")
        if frozenset((a, b)) in pairs:
            raise SpecError(f"{where}, a pair given before; give each pair once, with all its cables together")
        if bytes_per_s <= 0:
            raise SpecError(f"{where}; a link's bandwidth is more than 0")
        pairs.add(frozenset((a, b)))
    if lost := _unreached(node.links, node.gpus):
        raise SpecError(f"cluster {name}: node.links do not join GPU {lost[0]} to GPU 0; join all {node.gpus} GPUs")


def _unreached(links: Sequence[Link], gpus: int) -> list[int]:
    """The GPUs that `links` do not join to GPU 0; none where there are no links, hence a switch."""
    reached, before = {0}, 0
    while links and len(reached) > before:
        before = len(reached)
        reached |= {gpu for a, b, _ in links if a in reached or b in reached for gpu in (a, b)}
    return [gpu for gpu in range(gpus) if gpu not in reached] if links else []


def first_gpus(cluster: ClusterSpec, count: int) -> ClusterSpec:
    """The first `count` GPUs in node order: whole nodes, or one node with fewer GPUs.

    A part of a node keeps ceil(count * nics / gpus) NICs, those that its GPUs used; on one node they carry nothing.
    SpecError where `count` is neither, or more than the cluster has, or the GPUs that are left are not joined.
    """
    of_type(cluster, ClusterSpec, "cluster", right="a ClusterSpec, as load_cluster(...) gives")
    of_type(count, int, "count", right="a whole number of GPUs")
    gpus, total = cluster.node.gpus, num_ranks(cluster)
    if 1 <= count < gpus:
        return msgspec.structs.replace(cluster, nodes=1, node=_part(cluster.name, cluster.node, count))
    if count < 1 or count > total:
        raise SpecError(f"cluster {cluster.name}: {count} GPUs asked for, of {total}; take 1 to {total}")
    if count % gpus:
        raise SpecError(
            f"cluster {cluster.name}: {count} GPUs are not whole nodes of {gpus}; take a multiple of {gpus}"
        )
    return msgspec.structs.replace(cluster, nodes=count // gpus)


def _part(name: str, node: Node, count: int) -> Node:
    """The first `count` GPUs of `node`, 1 to all but one, with the links between them."""
    links = tuple((a, b, bytes_per_s) for a, b, bytes_per_s in node.links if max(a, b) < count)
    lost = [*range(1, count)] if node.links and not links else _unreached(links, count)
    if lost:
        raise SpecError(
            f"cluster {name}: node.links do not join GPU {lost[0]} to GPU 0 among the first {count} GPUs of a node;"
            f" take {node.gpus} or another number"
        )
    return msgspec.structs.replace(node, gpus=count, nics=-(-count * node.nics // node.gpus), links=links)
