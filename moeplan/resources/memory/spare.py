"""Buffers of exchanges by nodes, beside rows as sent and as received: memory while such an exchange is under way."""

from __future__ import annotations

from msgspec import structs

from moeplan.layout import StageGraph
from moeplan.spec.case import Case
from moeplan.spec.cluster import domain_of


def spare(algorithm: str, nodes: int) -> float:
    """What an exchange by nodes holds beside rows as sent and as received, as a part of what a rank sends.

    HALO, at the end of phase III: what crossed, what is handed out and what arrived of other nodes' rows, and rows of
    the own node as sent and as received, 3 (1 - 1 / nodes) + 2 / nodes (`moeplan_exec.halo`). Two-level: what is
    swapped inside the node as sent and as received, 2. Nodes have equal numbers of ranks here, of which there are more
    than one; one alone swaps nothing and holds less. Others: 0.
    """
    return {"halo": 3 - 1 / nodes, "halo_chunked": 3 - 1 / nodes, "two_level": 2.0}.get(algorithm, 0.0)


def most_spare(graph: StageGraph, position: int) -> dict[int, float]:
    """The most spare of the edges that leave pieces of `position`, by the first position of those pieces' stages."""
    found: dict[int, float] = {}
    for piece, edge in zip(graph.pieces, graph.edges, strict=False):
        homes = graph.stages[piece.stage]
        if position in homes:
            found[homes[0]] = max(found.get(homes[0], 0.0), spare(edge.algorithm, 2))
    return found


def has_spare(graph: StageGraph) -> bool:
    """Whether an exchange of `graph` holds more than rows as sent and as received."""
    return any(spare(algorithm, 2) > 0 for algorithm in {edge.algorithm for edge in graph.edges})


def without_spare(graph: StageGraph) -> StageGraph:
    """`graph` as if its exchanges by nodes went straight."""
    edges = [structs.replace(e, algorithm="flat") if spare(e.algorithm, 2) else e for e in graph.edges]
    return structs.replace(graph, edges=tuple(edges))


def nodes_around(case: Case, graph: StageGraph) -> list[int]:
    """Nodes that an expert group of each position spans [positions]; 1 where no exchange depends on it."""
    if not has_spare(graph):
        return [1] * len(graph.positions)
    block = graph.etp * graph.ep
    firsts = [position.ranks[0][: block : graph.etp] for position in graph.positions]
    return [len({domain_of(case.cluster, rank) for rank in group}) for group in firsts]
