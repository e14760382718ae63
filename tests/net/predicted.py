"""What moeplan's cost model says of the emulated network, from a cluster file's numbers and two measurements.

Rates are those of the buckets, data per shaped byte counted. Measured: what a node's ranks swap among themselves, and
the flat all-to-all of the smallest messages, which tells how long a collective takes to start.
"""

from collections.abc import Sequence
from typing import NamedTuple

from emulated import PAYLOAD, SEGMENT_BYTES, Shape
from msgspec import structs

from moeplan.cost.communication import uneven
from moeplan.cost.exchange import exchange
from moeplan.spec.calibration import Calibration
from moeplan.spec.cluster import ClusterSpec, Gpu, Node, Switch, Switches
from moeplan.spec.shipped import load_calibration
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Bytes, BytesPerS, FlopPerS, Seconds

LOCAL = 1e9
"""Bytes per second of one rank to the others of its node, at an efficiency that is measured."""


class Emulated(NamedTuple):
    """A shape as the cost model sees it."""

    fabric: Fabric
    calibration: Calibration
    ranks: int


def cluster_of(shape: Shape, per_node: int) -> ClusterSpec:
    """Racks of nodes with one NIC each under one spine; half of an uplink's delay on each side of the spine."""
    uplink = shape.uplink_bit_per_s / 8 * PAYLOAD
    if shape.uplink_frame_s:
        uplink = min(uplink, SEGMENT_BYTES / shape.uplink_frame_s)
    first = [sum(shape.racks[:r]) for r in range(len(shape.racks))]
    racks = [
        Switch(name=f"rack{r}", nodes=f"[{a}-{a + n - 1}]", up="spine", uplink_bytes_per_s=BytesPerS(uplink))
        for r, (a, n) in enumerate(zip(first, shape.racks, strict=True))
    ]
    nic, soon = BytesPerS(shape.nic_bit_per_s / 8 * PAYLOAD), Seconds(1e-6)
    return ClusterSpec(
        name="emulated",
        nodes=sum(shape.racks),
        gpu=Gpu(
            name="cpu", hbm_bytes=Bytes(1e9), hbm_bytes_per_s=nic, peak_flop_per_s={"bf16": FlopPerS(1e9)}, cpu=True
        ),
        node=Node(
            gpus=per_node,
            nics=1,
            link_bytes_per_s=BytesPerS(LOCAL),
            link_latency_s=soon,
            nic_bytes_per_s=nic,
            nic_latency_s=soon,
        ),
        network=Switches(switches=(*racks, Switch(name="spine")), hop_latency_s=Seconds(shape.uplink_delay_s)),
    )


def seen(shape: Shape, per_node: int, inside: Sequence[tuple[int, float]], smallest: tuple[int, float]) -> Emulated:
    """`shape` with a calibration from measurements, each bytes per pair of ranks and seconds.

    `inside`: the swap of all rows that stay in a node, of small and of large messages. `smallest`: the flat all-to-all
    of small messages. A frame of an uplink that has a price is what a message takes at least.
    """
    cluster = cluster_of(shape, per_node)
    ranks, fabric, base = per_node * cluster.nodes, Fabric(build(cluster)), load_calibration("laptop")
    plain = {
        "half_message_bytes": Bytes(0),
        "least_bytes": {},
        "fill_s": Seconds(0),
        "starts_s": {},
        "shares": {},
        "kernel_bytes_per_s": BytesPerS(0),
    }
    (small, begun), (large, took) = inside
    moved = (per_node - 1) / per_node * ranks
    rate = moved * (large - small) / max(took - begun, 1e-9) if per_node > 1 else LOCAL
    start = max(0.0, begun - moved * small / rate)
    node = structs.replace(base.node, **plain, efficiency=min(1.0, max(1e-4, rate / LOCAL)), latency_s=Seconds(start))
    least = {"all_to_all": Bytes(SEGMENT_BYTES)} if shape.uplink_frame_s else {}
    network = structs.replace(base.network, **plain | {"least_bytes": least}, efficiency=1.0, latency_s=Seconds(0))
    if shape.uplink_frame_s:  # the relay handles frames of an uplink one by one, as no switch does
        fabric.handles |= [a[0] == b[0] == "switch" for a, b in fabric.edges]
    found = Emulated(fabric, structs.replace(base, node=node, network=network), ranks)
    start = max(0.0, smallest[1] - predicted_s(found, "flat", smallest[0]))
    network = structs.replace(network, latency_s=Seconds(start))
    return found._replace(calibration=structs.replace(found.calibration, network=network))


def predicted_s(network: Emulated, algorithm: str, each: float) -> float:
    """Seconds of an all-to-all of `each` bytes per pair of ranks."""
    size = each * network.ranks
    return exchange(network.fabric, network.calibration, [range(network.ranks)], size, algorithm).seconds


def predicted_m2n_s(network: Emulated, rows: list[tuple[int, int, float]]) -> float:
    """Seconds of transfers (source, target, bytes) at the same time."""
    sources, targets, sizes = zip(*rows, strict=True)
    return uneven(network.fabric, network.calibration, sources, targets, sizes).seconds
