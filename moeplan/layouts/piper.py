"""Piper: PP x EP with expert groups inside a node or a single-hop switch group (Piper, arXiv 2605.05049).

The paper's own mesh has PP x EP ranks, attention data-parallel inside the expert group. The family adds `dp` copies of
that mesh, so that any number of GPUs can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from moeplan.errors import SpecError
from moeplan.layout import Piper, StageGraph, check_positive
from moeplan.mesh import mesh_of, mesh_stages, meshes
from moeplan.spec.case import Case
from moeplan.spec.cluster import ClusterSpec, domain_gpus, num_ranks, single_hop_nodes

NAME = "piper"
SCHEDULES = ("1f1b", "interleaved", "gpipe")


def widest_group(cluster: ClusterSpec) -> int:
    """Most ranks of an expert group: the GPUs of one node times the nodes of one single-hop switch group.

    Or those of an NVLink domain, where it is larger.
    """
    return max(domain_gpus(cluster), cluster.node.gpus * min(cluster.nodes, single_hop_nodes(cluster)))


def stages(case: Case, layout: Piper) -> StageGraph:
    """The stage graph of `layout`; SpecError where it breaks the family's rules."""
    check_positive(layout)
    if broken := group_rule(case.cluster, layout.ep):
        raise SpecError(f"layout: {broken}")
    world = num_ranks(case.cluster)
    if layout.pp * layout.ep * layout.dp != world:
        product = layout.pp * layout.ep * layout.dp
        raise SpecError(
            f"layout: pp {layout.pp} * ep {layout.ep} * dp {layout.dp} copies = {product}, not {world} ranks"
        )
    return mesh_stages(case, mesh_of(layout))


def group_rule(cluster: ClusterSpec, ep: int) -> str:
    """Why expert groups of `ep` ranks are none of this family; empty where they are."""
    widest = widest_group(cluster)
    if ep > widest:
        return f"piper keeps ep {ep} within the {widest} ranks of one single-hop switch group"
    if not fits_nodes(cluster, ep):
        gpus, nodes = domain_gpus(cluster), single_hop_nodes(cluster)
        return f"piper's expert groups of {ep} ranks would lie across nodes of {gpus} GPUs or switches of {nodes} nodes"
    return ""


def fits_nodes(cluster: ClusterSpec, ep: int) -> bool:
    """Whether groups of `ep` neighbouring ranks lie each inside one NVLink domain, or fill whole ones of one leaf."""
    gpus = domain_gpus(cluster)
    return gpus % ep == 0 or (ep % gpus == 0 and single_hop_nodes(cluster) * cluster.node.gpus % ep == 0)


def layouts(case: Case, chosen: Mapping[str, Sequence[int]] = MappingProxyType({})) -> Iterator[Piper]:
    """Every layout of the family: TP = 1, expert groups up to the widest single-hop group."""
    for mesh in meshes(case, chosen, widest_tp=1, widest_ep=widest_group(case.cluster)):
        if fits_nodes(case.cluster, mesh.ep):
            copies = mesh.dp // mesh.ep
            yield Piper(pp=mesh.pp, vpp=mesh.vpp, ep=mesh.ep, dp=copies, micro_batch=mesh.micro_batch)
