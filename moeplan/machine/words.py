"""A cluster's parts in words."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from moeplan.spec.cluster import nic_of
from moeplan.spec.network import Dragonfly, FatTree, Network, Rail, Switches, Torus, Tree

if TYPE_CHECKING:
    from moeplan.spec.cluster import ClusterSpec, Node

GB = 1e9


def joined_by(node: Node) -> str:
    """What joins the GPUs of `node`."""
    if node.gpus * node.domain == 1:
        return "one GPU"
    if node.links:
        speeds = sorted({bytes_per_s for _, _, bytes_per_s in node.links})
        between = f"{speeds[0] / GB:g}" + (f" to {speeds[-1] / GB:g}" if len(speeds) > 1 else "")
        return f"{len(node.links)} links of {between} GB/s"
    if node.bridge:
        up = node.bridge.uplink_bytes_per_s / GB
        return f"PCIe switches of {node.bridge.gpus} GPUs, {up:g} GB/s between them"
    over = f" over {node.domain} nodes" if node.domain > 1 else ""
    return f"a switch{over}, {node.link_bytes_per_s / GB:g} GB/s a GPU"


def nics_in_words(node: Node) -> str:
    """The NIC of each GPU of `node`, by number."""
    if not node.nics:
        return "none"
    nics = [nic_of(node, gpu) for gpu in range(node.gpus)]
    if nics == list(range(node.gpus)) and node.gpus > 1:
        return "GPU i has NIC i"
    return ", ".join(str(nic) for nic in nics)


def network_in_words(cluster: ClusterSpec) -> str:
    """The network between the nodes of `cluster` in a line."""
    return "none: one node" if cluster.nodes == 1 else _words(cluster.network)


def _words(network: Network) -> str:
    match network:
        case Tree(nodes_per_leaf=nodes, levels=levels):
            return f"tree of {len(levels) + 2} levels, leaves of {_nodes(nodes)}"
        case FatTree() as tree:
            kind = "rails in a fat tree" if tree.rails else "fat tree"
            return f"{kind} of {tree.levels} levels, radix {tree.radix}, oversubscribed {tree.oversubscription:g} : 1"
        case Rail(nodes_per_unit=nodes):
            return f"rails, units of {_nodes(nodes)}"
        case Dragonfly() as dragonfly:
            return (
                f"dragonfly, groups of {dragonfly.switches_per_group} switches,"
                f" {_nodes(dragonfly.nodes_per_switch)} a switch, {dragonfly.routing} routing"
            )
        case Torus(shape=shape):
            return f"torus of {' x '.join(map(str, shape))} = {_nodes(prod(shape))}"
        case Switches(switches=switches):
            return f"{len(switches)} switches, one by one"


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
