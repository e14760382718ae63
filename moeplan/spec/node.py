"""What a node is: its GPUs, what joins them, and its NICs. Bandwidths are per direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

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
    cpu: bool = False
    """Whether it is a process on a CPU, whose memory has no driver context and no communicators of NCCL."""


Link: TypeAlias = tuple[Count, Count, BytesPerS]
"""Two GPUs of a node, counted from 0, and the bandwidth of all cables between them."""


class Bridge(Record):
    """PCIe switches inside a node, where GPUs have no links of their own."""

    gpus: Size
    """Neighbouring GPUs under one of them."""
    uplink_bytes_per_s: BytesPerS = msgspec.field(name="uplink")
    """From one of them to the others, over the host."""


class Node(Record):
    """GPUs joined by a switch inside the node, by `links` or by `bridge`."""

    gpus: Size
    nics: Count
    link_bytes_per_s: BytesPerS = msgspec.field(name="link")
    """From one GPU to the switch inside the node; with `links`, from one GPU to its NIC."""
    link_latency_s: Seconds = msgspec.field(name="link_latency")
    nic_bytes_per_s: BytesPerS = msgspec.field(name="nic")
    nic_latency_s: Seconds = msgspec.field(name="nic_latency")
    links: tuple[Link, ...] = ()
    """What joins the GPUs where there is no switch: [[0, 1, "200 GB/s"], ...], each pair once, for both directions."""
    bridge: Bridge | None = None
    nic_of_gpu: tuple[Count, ...] = ()
    """The NIC that serves each GPU, counted from 0; by default i * nics // gpus for GPU i."""
    domain: Size = 1
    """Nodes at neighbouring places whose GPUs one NVLink switch joins, such as 18 trays of a rack."""


def nic_of(node: Node, gpu: int) -> int:
    """The NIC of GPU number `gpu` of a node; -1 where it has none."""
    if not node.nics:
        return -1
    return node.nic_of_gpu[gpu] if node.nic_of_gpu else gpu * node.nics // node.gpus


def without_nic(node: Node, lost: Sequence[int]) -> Node:
    """`node` without the NICs numbered `lost`: their GPUs go to those that are left, the least busy first.

    SpecError for a NIC that it has not. NICs that are left keep their numbers.
    """
    if wrong := [nic for nic in lost if nic >= node.nics]:
        raise SpecError(f"NIC {wrong[0]} is not there; a node has NICs 0 to {node.nics - 1}")
    left = [nic for nic in range(node.nics) if nic not in lost]
    if not left:
        return msgspec.structs.replace(node, nics=0, nic_of_gpu=())
    served = [nic_of(node, gpu) for gpu in range(node.gpus)]
    busy = {nic: served.count(nic) for nic in left}
    for gpu, nic in enumerate(served):
        if nic not in busy:
            served[gpu] = min(left, key=lambda one: (busy[one], abs(one - nic), one))
            busy[served[gpu]] += 1
    return msgspec.structs.replace(node, nic_of_gpu=tuple(served))


def first_of(node: Node, count: int) -> Node:
    """The first `count` GPUs of `node`, 1 to all but one, with the links between them and the NICs that they use.

    Without `nic_of_gpu` it keeps ceil(count * nics / gpus) NICs. SpecError where the GPUs that are left are not joined.
    """
    links = tuple((a, b, bytes_per_s) for a, b, bytes_per_s in node.links if max(a, b) < count)
    lost = [*range(1, count)] if node.links and not links else unreached(links, count)
    if lost:
        raise SpecError(
            f"node.links do not join GPU {lost[0]} to GPU 0 among the first {count} GPUs of a node;"
            f" take {node.gpus} or another number"
        )
    used = node.nic_of_gpu[:count]
    nics = max(used) + 1 if used else -(-count * node.nics // node.gpus)
    return msgspec.structs.replace(node, gpus=count, nics=nics, links=links, nic_of_gpu=used)


def check_node(name: str, node: Node) -> None:
    """SpecError with the first of `links` or `nic_of_gpu` that is not of this `node`, or with a GPU left out."""
    _check_links(name, node)
    if node.bridge and node.links:
        raise SpecError(f"cluster {name}: node has links and a bridge; GPUs are joined by one of them")
    if node.bridge and node.gpus % node.bridge.gpus:
        raise SpecError(f"cluster {name}: node.bridge.gpus is {node.bridge.gpus}; it divides the {node.gpus} GPUs")
    if node.domain > 1 and (node.links or node.bridge):
        raise SpecError(f"cluster {name}: node.domain is {node.domain}; only a switch joins GPUs of several nodes")
    if node.nic_of_gpu and len(node.nic_of_gpu) != node.gpus:
        raise SpecError(f"cluster {name}: node.nic_of_gpu has {len(node.nic_of_gpu)} NICs for {node.gpus} GPUs")
    if node.nic_of_gpu and max(node.nic_of_gpu) >= node.nics:
        raise SpecError(
            f"cluster {name}: node.nic_of_gpu has {max(node.nic_of_gpu)}; the node's NICs are 0 to {node.nics - 1}"
        )


def _check_links(name: str, node: Node) -> None:
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
    if lost := unreached(node.links, node.gpus):
        raise SpecError(f"cluster {name}: node.links do not join GPU {lost[0]} to GPU 0; join all {node.gpus} GPUs")


def unreached(links: Sequence[Link], gpus: int) -> list[int]:
    """The GPUs that `links` do not join to GPU 0; none where there are no links, hence a switch."""
    reached, before = {0}, 0
    while links and len(reached) > before:
        before = len(reached)
        reached |= {gpu for a, b, _ in links if a in reached or b in reached for gpu in (a, b)}
    return [gpu for gpu in range(gpus) if gpu not in reached] if links else []
