"""What a user should know of a cluster that loads: what carries nothing, what is narrow, what is apart."""

from __future__ import annotations

from collections import Counter
from math import isclose
from typing import TYPE_CHECKING

from moeplan.machine.halves import paths_of
from moeplan.machine.levels import Level, levels_of
from moeplan.machine.words import GB
from moeplan.spec.cluster import homes, nic_of
from moeplan.spec.network import Switches, Torus

if TYPE_CHECKING:
    from moeplan.spec.cluster import ClusterSpec
    from moeplan.topology.core import Core

SLACK = 1.001
"""How much more than 1 a level's oversubscription is before it is told."""
MOST_TOLD = 16
"""NICs that a warning names."""


def warnings_of(cluster: ClusterSpec, found: Core) -> tuple[str, ...]:
    """Warnings on `cluster`, a line each; `found` is its `topology.core`.

    NICs that serve no GPU, a NIC faster than its PCIe, levels with less upwards than from below, nodes without a common
    switch, NVLink domains of which the job has a part.
    """
    return (*_nics(cluster), *_narrow(cluster, levels_of(cluster, found)), *_apart(cluster), *_cut(cluster))


def _nics(cluster: ClusterSpec) -> list[str]:
    node, said = cluster.node, []
    used = {nic_of(node, gpu) for gpu in range(node.gpus)} - {-1}
    if spare := [nic for nic in range(node.nics) if nic not in used]:
        which = ", ".join(map(str, spare[:MOST_TOLD])) + ", ..." * (len(spare) > MOST_TOLD)
        said.append(f"{len(spare)} of {node.nics} NICs serve no GPU and carry nothing: {which}")
    pcie = node.link_bytes_per_s
    if (node.links or node.bridge) and used and node.nic_bytes_per_s > pcie:
        said.append(
            f"a NIC has {node.nic_bytes_per_s / GB:g} GB/s, node.link from a GPU to it {pcie / GB:g} GB/s:"
            " the NIC's is used"
        )
    return said


def _narrow(cluster: ClusterSpec, levels: list[Level]) -> list[str]:
    if isinstance(cluster.network, Torus):
        return []
    return [_told(level) for level in levels if level.ratio > SLACK]


def _told(level: Level) -> str:
    """How narrow `level` is, with its bandwidths where all its switches are alike."""
    below, out = level.from_below_bytes_per_s, level.up_bytes_per_s + level.across_bytes_per_s
    if not out or not isclose(below / out, level.ratio):
        return f"{level.name}: up to {level.ratio:.4g} times as much from below as leaves a switch"
    each = f"{below / GB:,.6g} GB/s and {out / GB:,.6g} GB/s a switch"
    return f"{level.name}: {level.ratio:.4g} times as much from below as leaves it ({each})"


def _apart(cluster: ClusterSpec) -> list[str]:
    if not isinstance(cluster.network, Switches):
        return []
    tops = Counter(path[0] for path in paths_of(cluster))
    if len(tops) < 2:
        return []
    names = ", ".join(f"{cluster.network.switches[int(str(top))].name} ({count})" for top, count in tops.items())
    return [f"nodes under different tops cannot reach each other: {names}"]


def _cut(cluster: ClusterSpec) -> list[str]:
    domain = cluster.node.domain
    if domain == 1:
        return []
    parts = Counter(homes(cluster)).values()
    fewer = [size for size in parts if size < domain]
    return [f"{len(fewer)} of {len(parts)} NVLink domains have fewer than {domain} nodes in the job"] if fewer else []
