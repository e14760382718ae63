"""Two-level all-to-all: first inside the node, to the mate at the place of the target, then across nodes to the target.

Messages between nodes carry the rows of all ranks of a node for one rank; the levels run one after the other (as the
two-dimensional hierarchical all-to-all of Tutel (arXiv 2206.03382)).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from moeplan.tiers import aligned
from moeplan_exec.lanes import Lanes, Log, Message, across, silent, swap, told


def two_level(rows: Tensor, sent: Sequence[int], received: Sequence[int], lanes: Lanes, log: Log = silent) -> Tensor:
    """What all ranks send here, in order of their ranks: bytes [sum(received), width]; arguments as of `halo`.

    Where nodes have different numbers of ranks, the mate is that at the target's place modulo their number. Phases
    "inside" and "across" are logged.
    """
    parts = rows.split_with_sizes(list(sent))
    start = time.perf_counter_ns()
    taken = {mate: _taken_by(mate, lanes) for mate in lanes.mates}
    own = next(i for i in lanes.mates if lanes.ranks[i] == lanes.rank)
    first, second = lanes.inside or (None, None)
    leaving = told(sent, second)
    sizes = [sum(counts[i] for i in taken[own]) for counts in leaving]
    gathered = swap([torch.cat([parts[i] for i in taken[mate]]) for mate in lanes.mates], sizes, first).wait()
    pieces = [
        dict(zip(taken[own], part.split_with_sizes([counts[i] for i in taken[own]]), strict=True))
        for part, counts in zip(gathered, leaving, strict=True)
    ]
    middle = time.perf_counter_ns()
    log("inside", start, middle)
    handed = {mate: piece[own] for mate, piece in zip(lanes.mates, pieces, strict=True)}
    handed |= _cross(rows, pieces, received, lanes)
    log("across", middle, time.perf_counter_ns())
    return torch.cat([handed[i] for i in range(len(received))])


def _taken_by(mate: int, lanes: Lanes) -> list[int]:
    """Indices of the ranks whose rows `mate` takes in from its node: its own, and those at its place elsewhere."""
    node = lanes.nodes[lanes.here]
    return [
        i
        for i, (a, place) in sorted(lanes.node_of.items())
        if (i == mate if a == lanes.here else aligned(place, node) == mate)
    ]


def _cross(
    rows: Tensor, pieces: Sequence[dict[int, Tensor]], received: Sequence[int], lanes: Lanes
) -> dict[int, Tensor]:
    """Rows for this rank from each rank of other nodes; `pieces` [mate][target] are to be sent."""
    found: dict[int, Tensor] = {}
    sends, receives = [], []
    for node, there, back in lanes.partners:
        for i in lanes.nodes[node]:
            if i in pieces[0]:
                sends.append(Message(there, i, tuple(piece[i] for piece in pieces)))
        sources = sorted(lanes.nodes[node])
        sizes = [received[i] for i in sources]
        arriving = rows.new_empty(sum(sizes), rows.shape[1])
        receives.append(Message(back, aligned(lanes.place, lanes.nodes[node]), (arriving,)))
        found |= dict(zip(sources, arriving.split_with_sizes(sizes), strict=True))
    across(lanes, sends, receives)
    return found
