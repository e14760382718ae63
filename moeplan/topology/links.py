"""Links of a graph: two edges, one per direction, each with its bandwidth and latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import networkx as nx

Vertex: TypeAlias = "tuple[str | int, ...]"
Edge: TypeAlias = "tuple[Vertex, Vertex]"
Graph: TypeAlias = "nx.DiGraph[Vertex]"


def link(graph: Graph, a: Vertex, b: Vertex, bytes_per_s: float, latency_s: float, *, detours: bool = False) -> None:
    """Both directions of a link between `a` and `b`; with `detours`, traffic may go round it over other groups."""
    told = {"bandwidth_bytes_per_s": float(bytes_per_s), "latency_s": float(latency_s)}
    told |= {"detours": True} if detours else {}
    graph.add_edge(a, b, **told)
    graph.add_edge(b, a, **told)
