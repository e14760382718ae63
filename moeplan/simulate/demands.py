"""What the transfers of a program ask of the links between positions.

A position has four links: out and in, inside its nodes and to other nodes. A transfer fills the side with fewer ranks;
of the other side it takes the part that the ratio of ranks leaves: all ranks are taken to have equal links.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.layout import StageGraph
from moeplan.program import Program
from moeplan.simulate.links import Demand

TRANSFERS = ("dispatch", "combine", "m2n", "n2m", "send")
LINKS_PER_POSITION = 4


def demands(
    program: Program, graph: StageGraph, duration_ns: Sequence[int], *, gpus_per_node: int, latency_ns: int
) -> dict[int, Demand]:
    """The demand of each transfer that takes time; of `duration_ns`, at most `latency_ns` hold no link."""
    reach = {(p, q): _crosses(graph, p, q, gpus_per_node) for p, q in _ends(program)}
    result = {}
    for op in program.ops:
        if op.kind in TRANSFERS and duration_ns[op.id]:
            target = op.peers[0] if op.peers else op.position
            sizes = [sum(map(len, graph.positions[p].ranks)) for p in (op.position, target)]
            first = 2 * reach[(op.position, target)]
            links = (LINKS_PER_POSITION * op.position + first, LINKS_PER_POSITION * target + first + 1)
            latency = min(latency_ns, duration_ns[op.id])
            shares = (min(sizes) / sizes[0], min(sizes) / sizes[1])
            result[op.id] = Demand(latency, duration_ns[op.id] - latency, links, shares)
    return result


def _ends(program: Program) -> set[tuple[int, int]]:
    return {(op.position, op.peers[0] if op.peers else op.position) for op in program.ops if op.kind in TRANSFERS}


def _crosses(graph: StageGraph, position: int, other: int, gpus_per_node: int) -> bool:
    """Whether rows between the two positions of any copy leave a node."""
    pairs = zip(graph.positions[position].ranks, graph.positions[other].ranks, strict=True)
    return any(len({rank // gpus_per_node for rank in (*here, *there)}) > 1 for here, there in pairs)
