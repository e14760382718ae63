"""Colocated: every (TP, PP, EP, DP) on ranks that hold attention and experts alike, as Megatron-LM does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from moeplan.layout import Colocated, StageGraph
from moeplan.mesh import mesh_stages, meshes
from moeplan.spec.case import Case
from moeplan.spec.cluster import domain_gpus, num_ranks

NAME = "colocated"
SCHEDULES = ("1f1b", "interleaved", "gpipe")


def stages(case: Case, layout: Colocated) -> StageGraph:
    """The stage graph of `layout`."""
    return mesh_stages(case, layout)


def layouts(case: Case, chosen: Mapping[str, Sequence[int]] = MappingProxyType({})) -> Iterator[Colocated]:
    """Every layout of the family: tensor parallelism inside a node, expert groups of any size."""
    yield from meshes(case, chosen, widest_tp=domain_gpus(case.cluster), widest_ep=num_ranks(case.cluster))
