"""What the transfers of a program ask of the links between positions.

A position has four links: out and in, inside its nodes and to other nodes. A transfer fills the side with fewer ranks;
of the other side it takes the part that the ratio of ranks leaves: all ranks are taken to have equal links.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.layout import StageGraph
from moeplan.program import Program, receives
from moeplan.simulate.links import Demand

TRANSFERS = ("dispatch", "combine", "m2n", "n2m", "send")
LINKS_PER_POSITION = 4


def demands(
    program: Program, graph: StageGraph, duration_ns: Sequence[int], *, homes: Sequence[int], latency_ns: int
) -> dict[int, Demand]:
    """The demand of each transfer that may meet another; of `duration_ns`, at most `latency_ns` hold no link.

    `homes` is the node, or NVLink domain, of each rank.

    Transfers of one stream never meet: a link that only one stream uses is left out, and a transfer without links too.
    """
    sizes = [sum(map(len, position.ranks)) for position in graph.positions]
    links: dict[int, tuple[int, int]] = {}
    users: dict[int, set[int]] = {}
    for number, stream in enumerate(program.streams):
        first = program.ops[stream.ops[0]]
        if first.kind in TRANSFERS and not receives(stream):
            target = first.peers[0] if first.peers else first.position
            tier = 2 * _crosses(graph, first.position, target, homes)
            links[number] = (LINKS_PER_POSITION * first.position + tier, LINKS_PER_POSITION * target + tier + 1)
            for link in links[number]:
                users.setdefault(link, set()).add(number)
    result = {}
    for number, used in links.items():
        if all(len(users[link]) == 1 for link in used):
            continue
        ends = [sizes[link // LINKS_PER_POSITION] for link in used]
        shares = (min(ends) / ends[0], min(ends) / ends[1])
        for op in program.streams[number].ops:
            latency = min(latency_ns, duration_ns[op])
            result[op] = Demand(latency, duration_ns[op] - latency, used, shares, float(min(ends)))
    return result


def _crosses(graph: StageGraph, position: int, other: int, homes: Sequence[int]) -> bool:
    """Whether rows between the two positions of any copy leave a node; `homes` is that of each rank."""
    pairs = zip(graph.positions[position].ranks, graph.positions[other].ranks, strict=True)
    return any(len({homes[rank] for rank in (*here, *there)}) > 1 for here, there in pairs)
