"""HALO: an all-to-all whose rows cross between nodes once per pair of aligned ranks (Piper (arXiv 2605.05049), HALO).

Phase I, inside the node, for rows that stay there, at the same time as phase II: the rank at place r of node a sends
all its rows for node b, packed, to the rank at place r of b; then phase III: that rank hands them out inside its node.
In chunks, what came in a window of phase II is handed out while the next one crosses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from moeplan_exec.lanes import Lanes, Log, Message, Swap, by_window, noted, silent, swap, told


def halo(rows: Tensor, sent: Sequence[int], received: Sequence[int], lanes: Lanes, log: Log = silent) -> Tensor:
    """What all ranks send here, in order of their ranks: bytes [sum(received), width].

    `rows` [sum(sent), width] are bytes in order of the ranks that they go to. Where nodes have different numbers of
    ranks, see `moeplan.tiers.aligned`. Mates tell each other what they expect, inside the node: no counts cross
    between nodes. Beside `rows` and the result, memory holds what crossed, what is handed out and what arrived, all at
    once at the end of phase III, and what is swapped inside the node as sent and as received
    (`moeplan.resources.memory.spare`). Phases I, II, III are logged.
    """
    return _halo(rows, (sent, received), lanes, log, chunked=False)


def halo_chunked(rows: Tensor, sent: Sequence[int], received: Sequence[int], lanes: Lanes, log: Log = silent) -> Tensor:
    """As `halo`, window by window: rows of the nodes of one are handed out while those of the next cross.

    Phase III is logged from the first window's to the last one's end.
    """
    return _halo(rows, (sent, received), lanes, log, chunked=True)


def _halo(
    rows: Tensor, counts: tuple[Sequence[int], Sequence[int]], lanes: Lanes, log: Log, *, chunked: bool
) -> Tensor:
    sent, received = counts
    parts = rows.split_with_sizes(list(sent))
    first, second = lanes.inside or (None, None)
    start = time.perf_counter_ns()
    local = swap([parts[i] for i in lanes.mates], [received[i] for i in lanes.mates], first)
    entered = noted(log, "I", local.work, start)
    expected = told(received, second)
    sends, receives = _messages(rows, parts, expected, lanes)
    begun, thirds = [], []
    for window in by_window(lanes, sends, receives):
        if chunked:
            thirds.append(time.perf_counter_ns())
            came = {m.peer: m.parts[0] for m in receives if m.round // lanes.window == window}
            begun.append(_hand_out(came, rows, expected, received, _nodes(lanes, window), lanes))
    middle = time.perf_counter_ns()
    log("II", start, middle)
    if not chunked:
        came = {m.peer: m.parts[0] for m in receives}
        begun.append(_hand_out(came, rows, expected, received, _nodes(lanes), lanes))
    handed: dict[int, Tensor] = {}
    for one in begun:
        handed |= one.wait()
    log("III", min([middle, *thirds]), time.perf_counter_ns())
    handed |= dict(zip(lanes.mates, local.wait(), strict=True))
    entered()
    return torch.cat([handed[i] for i in range(len(received))])


def _messages(
    rows: Tensor, parts: Sequence[Tensor], expected: Sequence[Sequence[int]], lanes: Lanes
) -> tuple[list[Message], list[Message]]:
    """Phase II: what goes to every node, and rows for all ranks of this node from each rank whose rail ends here."""
    own = next(i for i in lanes.mates if lanes.ranks[i] == lanes.rank)
    sends, receives = [], []
    for node, there, back in lanes.partners:
        sends.append(Message(there, lanes.rail(own, node), tuple(parts[i] for i in sorted(lanes.nodes[node]))))
        for i in lanes.nodes[node]:
            if lanes.rail(i, lanes.here) == own:
                size = sum(counts[i] for counts in expected)
                receives.append(Message(back, i, (rows.new_empty(size, rows.shape[1]),)))
    return sends, receives


def _nodes(lanes: Lanes, window: int | None = None) -> set[int]:
    """Nodes whose rows came in `window`, or in any."""
    return {node for node, _, back in lanes.partners if window is None or back // lanes.window == window}


class Handing(NamedTuple):
    """Phase III of some nodes' rows, under way."""

    under_way: Swap
    by_mate: list[tuple[list[int], list[int]]]
    """Sources whose rows each mate took in, ascending, and how many of them are for this rank."""

    def wait(self) -> dict[int, Tensor]:
        """Rows for this rank from each of those sources."""
        found: dict[int, Tensor] = {}
        for (sources, sizes), part in zip(self.by_mate, self.under_way.wait(), strict=True):
            found |= dict(zip(sources, part.split_with_sizes(sizes), strict=True))
        return found


def _hand_out(
    crossed: dict[int, Tensor],
    rows: Tensor,
    expected: Sequence[Sequence[int]],
    received: Sequence[int],
    nodes: set[int],
    lanes: Lanes,
) -> Handing:
    """Start phase III: rows for this rank from each rank of `nodes`, by way of the mates that took them in."""
    pieces = {i: crossed[i].split_with_sizes([counts[i] for counts in expected]) for i in sorted(crossed)}
    parts = [torch.cat([rows[:0], *(piece[m] for piece in pieces.values())]) for m in range(len(lanes.mates))]
    sources: dict[int, list[int]] = {m: [] for m in lanes.mates}
    for i in sorted(i for node in nodes for i in lanes.nodes[node]):
        sources[lanes.rail(i, lanes.here)].append(i)
    by_mate = [(some, [received[i] for i in some]) for some in sources.values()]
    group = lanes.inside[1] if lanes.inside else None
    return Handing(swap(parts, [sum(sizes) for _, sizes in by_mate], group), by_mate)
