"""The edges of the chain that a rank takes part in."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from moeplan.layout import FAN_IN
from moeplan_exec.deduplicated import Collected, Deduplicated
from moeplan_exec.edges import AnyEdge, FanIn, FanOut, Scatter, Send
from moeplan_exec.site import Site


def edges_of(site: Site, groups: Mapping[tuple[int, ...], dist.ProcessGroup]) -> dict[int, AnyEdge]:
    """The edges of this rank by number, local ones left out; `groups` are its collective groups by rank list."""
    graph = site.graph
    result: dict[int, AnyEdge] = {}
    for number, edge in enumerate(graph.edges):
        ends = {p for piece in graph.pieces[number : number + 2] for p in graph.stages[piece.stage]}
        if edge.kind == "local" or site.position not in ends:
            continue
        before = result.get(number - 1)
        if edge.kind == "send":
            result[number] = Send(site, number)
        elif edge.algorithm == "deduplicated" and isinstance(before, Deduplicated):
            result[number] = Collected(site, number, before)
        elif edge.kind in FAN_IN:
            result[number] = FanIn(site, number, before)
        elif graph.pieces[number + 1].kind != "experts":
            result[number] = Scatter(site, number)
        elif edge.algorithm == "deduplicated":
            result[number] = Deduplicated(site, number, groups)
        else:
            result[number] = FanOut(site, number)
    return result
