"""Colocated: every (TP, PP, EP, DP) on ranks that hold attention and experts alike, as Megatron-LM does."""

from __future__ import annotations

from moeplan.layout import Colocated, StageGraph
from moeplan.mesh import mesh_stages
from moeplan.spec.case import Case

NAME = "colocated"
SCHEDULES = ("1f1b", "interleaved", "gpipe")


def stages(case: Case, layout: Colocated) -> StageGraph:
    """The stage graph of `layout`."""
    return mesh_stages(case, layout)
