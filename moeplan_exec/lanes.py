"""What a tiered all-to-all travels over: process groups inside a node and across nodes, and rounds of messages.

Rows are bytes [n, width] here; indices of ranks are places in `members(tiers)`, ascending, as in every process group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from moeplan.tiers import WINDOW, Tiers, aligned, check_tiers, group_sizes, members, places, round_of
from moeplan_exec.worker import Worker

Log = Callable[[str, int, int], None]
"""Called with (phase, start_ns, end_ns) by the clock of spans, perhaps in another thread."""


def silent(name: str, start_ns: int, end_ns: int) -> None:
    """The log that keeps nothing."""


class Message(NamedTuple):
    """Rows to or from the rank with index `peer`, in the round in which both ends have it."""

    round: int
    peer: int
    parts: tuple[Tensor, ...]
    """To be sent one after the other, or the table to receive into."""


@dataclass
class Lanes:
    """Where a rank stands in `tiers`, and its process groups; of those on its node alone two, so that two collectives
    may run at once, and none where it is alone there."""

    tiers: Tiers
    rank: int
    everyone: dist.ProcessGroup
    inside: tuple[dist.ProcessGroup, dist.ProcessGroup] | None
    window: int = WINDOW
    last: Worker | None = field(default=None, compare=False)
    """The latest exchange in a thread of its own: the next one begins after it, in the same order on all ranks."""

    def settle(self) -> None:
        """Wait for the latest exchange in a thread of its own; raises what it raised."""
        if self.last is not None:
            self.last.join()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, ascending."""
        return members(self.tiers)

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the ranks of each node, in the plan's order."""
        index = {rank: i for i, rank in enumerate(self.ranks)}
        return tuple(tuple(index[rank] for rank in node) for node in self.tiers.nodes)

    @cached_property
    def here(self) -> int:
        """This rank's node."""
        return next(a for a, node in enumerate(self.tiers.nodes) if self.rank in node)

    @cached_property
    def place(self) -> int:
        """This rank's place in its node."""
        return self.tiers.nodes[self.here].index(self.rank)

    @cached_property
    def mates(self) -> tuple[int, ...]:
        """Indices of the ranks of this node, ascending, as its process groups count them."""
        return tuple(sorted(self.nodes[self.here]))

    @cached_property
    def node_of(self) -> dict[int, tuple[int, int]]:
        """(node, place) of each index."""
        return {i: (a, place) for a, node in enumerate(self.nodes) for place, i in enumerate(node)}

    def rail(self, source: int, node: int) -> int:
        """Index of the rank of `node` that the rank with index `source` exchanges with."""
        return aligned(self.node_of[source][1], self.nodes[node])

    @cached_property
    def windows(self) -> int:
        """Windows of rounds in which all partners have their turn; the same on all ranks of a node."""
        return 1 + max((max(there, back) for _, there, back in self.partners), default=-1) // self.window

    @cached_property
    def partners(self) -> tuple[tuple[int, int, int], ...]:
        """(node, round of what goes there, round of what comes from there) of all other nodes."""
        found = places(self.tiers)
        sizes, own = group_sizes(found), found[self.here]
        return tuple(
            (b, round_of(own, there, sizes), round_of(there, own, sizes))
            for b, there in enumerate(found)
            if b != self.here
        )


def make_lanes(tiers: Tiers, rank: int, *, window: int = WINDOW) -> Lanes | None:
    """The groups of `tiers`; None for a rank that is in none of its nodes. All ranks of the run call it, in one order.

    SpecError for tiers that hold no rank, or one twice.
    """
    check_tiers(tiers)
    everyone = dist.new_group(list(members(tiers)))
    inside = None
    for node in tiers.nodes:
        if len(node) > 1:
            pair = (dist.new_group(list(node)), dist.new_group(list(node)))
            inside = pair if rank in node else inside
    return Lanes(tiers, rank, everyone, inside, window) if rank in members(tiers) else None


class Swap(NamedTuple):
    """An all-to-all inside a node, under way."""

    parts: list[Tensor]
    """What comes from each mate, once `work` is done."""
    work: dist.Work | None
    leaving: Tensor | None

    def wait(self) -> list[Tensor]:
        """The rows from each mate."""
        if self.work is not None:
            self.work.wait()
        return self.parts


def swap(parts: Sequence[Tensor], expected: Sequence[int], group: dist.ProcessGroup | None) -> Swap:
    """Start to send `parts` [mate] to the mates, for `expected` rows of each; None is a group of this rank alone."""
    if group is None:
        return Swap(list(parts), None, None)
    leaving = torch.cat(list(parts))
    arriving = leaving.new_empty(sum(expected), leaving.shape[1])
    sizes = [len(part) for part in parts]
    work = dist.all_to_all_single(arriving, leaving, list(expected), sizes, group=group, async_op=True)
    return Swap(list(arriving.split_with_sizes(list(expected))), work, leaving)


def told(counts: Sequence[int], group: dist.ProcessGroup | None) -> list[list[int]]:
    """`counts` of each mate, [mate][index]."""
    if group is None:
        return [list(counts)]
    own = torch.tensor(counts)
    table = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(table, own, group=group)
    return [other.tolist() for other in table]


def across(lanes: Lanes, sends: Iterable[Message], receives: Iterable[Message]) -> None:
    """Exchange messages between nodes, `lanes.window` rounds at a time; those without bytes are left out.

    Both ends of a message have it in the same window, and no window waits for a later one: this ends. Parts are packed
    when their window comes.
    """

    for _ in by_window(lanes, sends, receives):
        pass


def by_window(lanes: Lanes, sends: Iterable[Message], receives: Iterable[Message]) -> Iterator[int]:
    """`across`, window by window: the number of each one that is over, also of those without messages.

    What was packed for a window is let go before its number is told.
    """
    calls = [(dist.irecv, m) for m in receives if _filled(m)] + [(dist.isend, m) for m in sends if _filled(m)]
    for window in range(lanes.windows):
        _exchange([(call, m) for call, m in calls if m.round // lanes.window == window], lanes)
        yield window


def _exchange(calls: Sequence[tuple[Callable[..., dist.Work | None], Message]], lanes: Lanes) -> None:
    """Begin all `calls`, isend or irecv of a message, and wait for them."""
    ops = [dist.P2POp(call, _packed(m), lanes.ranks[m.peer], group=lanes.everyone) for call, m in calls]
    for work in dist.batch_isend_irecv(ops) if ops else ():
        work.wait()


def _filled(message: Message) -> bool:
    return any(part.numel() for part in message.parts)


def _packed(message: Message) -> Tensor:
    return message.parts[0] if len(message.parts) == 1 else torch.cat(message.parts)


def noted(log: Log, name: str, work: dist.Work | None, start_ns: int) -> Callable[[], object]:
    """Log `name` from `start_ns` to the end of `work`, whoever waits for what then; the result waits for the entry."""

    def done(_: object) -> None:
        log(name, start_ns, time.perf_counter_ns())

    if work is None:
        done(None)
        return lambda: None
    return work.get_future().then(done).wait
