"""Piper: PP x EP with expert groups inside a node or a single-hop switch group (Piper, arXiv 2605.05049).

The paper's own mesh has PP x EP ranks, attention data-parallel inside the expert group; that is dp = ep here. The
family adds copies of whole expert groups (dp a multiple of ep), so that any number of GPUs can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from moeplan.errors import SpecError
from moeplan.layout import Piper, StageGraph
from moeplan.mesh import mesh_stages, meshes
from moeplan.spec.case import Case
from moeplan.spec.cluster import ClusterSpec

NAME = "piper"
SCHEDULES = ("1f1b", "interleaved", "gpipe")


def widest_group(cluster: ClusterSpec) -> int:
    """Most ranks of an expert group: the GPUs of one node times the nodes of one single-hop switch group."""
    return cluster.node.gpus * min(cluster.nodes, cluster.network.nodes_per_leaf)


def stages(case: Case, layout: Piper) -> StageGraph:
    """The stage graph of `layout`; SpecError where it breaks the family's rules."""
    widest = widest_group(case.cluster)
    if layout.tp * layout.cp * layout.etp != 1:
        raise SpecError(f"layout: piper has tp = cp = etp = 1, not {layout.tp}, {layout.cp}, {layout.etp}")
    if layout.ep > widest:
        raise SpecError(f"layout: piper keeps ep {layout.ep} within the {widest} ranks of one single-hop switch group")
    if not fits_nodes(case.cluster, layout.ep):
        raise SpecError(
            f"layout: piper's expert groups of {layout.ep} ranks would lie across nodes of {case.cluster.node.gpus}"
            f" GPUs or leaves of {case.cluster.network.nodes_per_leaf} nodes"
        )
    return mesh_stages(case, layout)


def fits_nodes(cluster: ClusterSpec, ep: int) -> bool:
    """Whether groups of `ep` neighbouring ranks lie each inside one node, or fill whole nodes of one leaf."""
    gpus = cluster.node.gpus
    return gpus % ep == 0 or (ep % gpus == 0 and cluster.network.nodes_per_leaf % (ep // gpus) == 0)


def layouts(case: Case, chosen: Mapping[str, Sequence[int]] = MappingProxyType({})) -> Iterator[Piper]:
    """Every layout of the family: TP = 1, expert groups up to the widest single-hop group."""
    for degrees in meshes(case, chosen, widest_tp=1, widest_ep=widest_group(case.cluster)):
        if fits_nodes(case.cluster, degrees["ep"]):
            yield Piper(**degrees)
