"""Which ranks send to which in a communication pattern, and how much, for all its groups at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moeplan.topology.far import Far
from moeplan.topology.inside import Floats, Integers


class Nodes(Protocol):
    """Who knows which node each rank is on, such as `topology.routes.Fabric`."""

    def node_of(self, ranks: ArrayLike, /) -> Integers:
        """The node of each of `ranks` [n]."""
        ...


class Side(NamedTuple):
    """Groups of ranks, one after another."""

    ranks: Integers
    """[ranks of all groups]"""
    sizes: Integers
    """How many ranks each group has [groups]."""

    @property
    def group(self) -> Integers:
        """The number of the group of each rank [ranks of all groups]."""
        return np.repeat(np.arange(self.sizes.size), self.sizes)

    @property
    def start(self) -> Integers:
        """Where each group begins [groups]."""
        return np.cumsum(self.sizes) - self.sizes


Groups: TypeAlias = Sequence[Sequence[int]] | Side


class Transfers(NamedTuple):
    """From rank to rank, all at the same time; four arrays [transfers]."""

    source: Integers
    target: Integers
    share: Floats
    """Bytes, as a part of the size that the pattern is priced for."""
    messages: Floats
    chain: Integers | None = None
    """Of transfers that wait for one another, the number of their chain: their latencies add up, by share."""
    at_once: int = 0
    """How many of its transfers a source has under way at a time; 0: all."""
    far: Far | None = None
    """Further transfers, which are told together."""


_NOTHING = Transfers(*(np.empty(0, dtype=np.intp),) * 2, *(np.empty(0),) * 2)


def side(groups: Groups) -> Side:
    """`groups` as arrays."""
    if isinstance(groups, Side):
        return groups
    sizes = np.fromiter(map(len, groups), np.intp)
    return Side(np.fromiter(chain.from_iterable(groups), np.intp, int(sizes.sum())), sizes)


def blocks(groups: Groups, size: int) -> Side:
    """The ranks of each group in blocks of `size` neighbours; the last block of a group may be smaller."""
    ranks, sizes = side(groups)
    count = -(-sizes // size)
    each = np.full(count.sum(), size)
    each[np.cumsum(count)[sizes > 0] - 1] += (sizes - count * size)[sizes > 0]
    return Side(ranks, each)


def every_pair(sources: Side, targets: Side) -> Transfers:
    """One message from every source to every target of the same group, 1 / targets of the size each."""
    group = sources.group
    source, nth = counted(targets.sizes[group])
    target = targets.ranks[targets.start[group[source]] + nth]
    return Transfers(
        sources.ranks[source],
        target,
        np.reciprocal(targets.sizes[group[source]], dtype=np.float64),
        np.ones(source.size),
    )


def ends(pairs: Side) -> Transfers:
    """One message of the whole size from the first to the second rank of every pair."""
    source, target = pairs.ranks.reshape(-1, 2).T
    return Transfers(source, target, np.ones(source.size), np.ones(source.size))


def by_node(fabric: Nodes, groups: Side) -> Side:
    """`groups` whose ranks stand node by node, on each node in the order given."""
    return groups._replace(ranks=groups.ranks[np.lexsort((fabric.node_of(groups.ranks), groups.group))])


def ring(fabric: Nodes, groups: Side) -> Transfers:
    """Each rank to the next of its rings: n - 1 messages of 1 / n of the size, n being the ranks of the group.

    A group that spans nodes runs as many rings at once as it has ranks on its smallest node, each with its share of
    the size and leaving every node by another rank, so that all their NICs carry it. Ranks stand as in `by_node`. A
    message passes n - 1 of the n routes of its ring, one after another: on the mean over the rings.
    """
    ranks, group = groups.ranks, groups.group
    new, first, length, rings = _blocks(fabric, groups)
    at, turn = counted(np.repeat(rings, groups.sizes))
    after = np.arange(1, ranks.size + 1)
    after[groups.start + groups.sizes - 1] = groups.start
    block = np.cumsum(new) - 1
    source, target = (_turned(first, length, block[place], place, turn) for place in (at, after[at]))
    size, rings = groups.sizes[group[at]].astype(np.float64), rings[group[at]]
    return Transfers(ranks[source], ranks[target], (size - 1) / (size * rings), size - 1, group[at])


def _blocks(fabric: Nodes, groups: Side) -> tuple[NDArray[np.bool_], Integers, Integers, Integers]:
    """Whether a rank begins a block, the ranks of a group on one node; these, their lengths; the rings of a group."""
    new = np.diff(fabric.node_of(groups.ranks), prepend=-1) != 0
    new[groups.start] = True
    first = np.flatnonzero(new)
    length = np.diff(first, append=groups.ranks.size)
    smallest = np.minimum.reduceat(length, np.searchsorted(first, groups.start)) if first.size else length
    rings = np.where(np.bincount(groups.group[first], minlength=groups.sizes.size) > 1, smallest, 1)
    return new, first, length, rings


def _turned(first: Integers, length: Integers, block: Integers, place: Integers, turn: Integers) -> Integers:
    """What comes to each `place` of a block when the block is turned by `turn` [n]; blocks begin at `first`."""
    begin = first[block]
    return np.asarray(begin + (place - begin + turn) % length[block], dtype=np.intp)


def switched(fabric: Nodes, groups: Side) -> Transfers:
    """What ranks send inside their node in an all-reduce that the node's switch adds up.

    Each of l ranks has its buffer read, 1 of the size, and writes its 1 / l of the sum to all; a ring that never leaves
    the node is taken where it needs less, 2 (l - 1) / l.
    """
    return joined([_NOTHING, *(_switched(fabric.node_of(ranks), ranks) for ranks in split(groups))])


def _switched(home: Integers, ranks: Integers) -> Transfers:
    a, b = np.nonzero((home[:, None] == home) & ~np.eye(home.size, dtype=np.bool_))
    local = np.bincount(np.unique(home, return_inverse=True)[1])[np.unique(home, return_inverse=True)[1]]
    sent = 1 + 1 / local
    if local.size and local[0] == home.size:
        sent = np.minimum(sent, 2 * (local - 1) / local)
    each = 1 / np.maximum(local - 1, 1)
    return Transfers(ranks[a], ranks[b], (sent * each)[a], (2 * each)[a])


def routed(fabric: Nodes, groups: Side, k: int, limit: float = 0.0) -> tuple[Transfers, Transfers]:
    """The two phases of tokens with k copies: once to every node that needs them, there once to every rank.

    The size is that of all copies of a rank's tokens. A node is reached through all its ranks alike. With a `limit`, a
    token's copies are on so many nodes at most, all of which are as likely.
    """
    each = [_group_routed(fabric.node_of(ranks), ranks, k, limit) for ranks in split(groups)]
    once, fan_out = zip((_NOTHING, _NOTHING), *each, strict=True)
    return joined(once), joined(fan_out)


def _group_routed(home: Integers, ranks: Integers, k: int, limit: float) -> tuple[Transfers, Transfers]:
    at = np.unique(home, return_inverse=True)[1]
    local = np.bincount(at)
    chosen = min(limit, local.size) / local.size if limit else 1.0
    share = np.minimum(1.0, local / (ranks.size * chosen))  # of a token's copies, where its node is chosen
    to_node = chosen * (1 - (1 - share) ** k) / k
    to_rank = chosen * (1 - (1 - share / local) ** k) / k
    together = at[:, None] == at
    a, b = np.nonzero(~together)
    once = Transfers(ranks[a], ranks[b], (to_node / local)[at[b]], (1 / local)[at[b]])
    a, b = np.nonzero(together)
    passed = (ranks.size / local * to_rank)[at[a]]
    return once, Transfers(ranks[a], ranks[b], passed, np.ones(a.size))


def copies(
    fabric: Nodes, sources: Side, targets: Side, sizes: tuple[float, float], k: int, limit: float = 0.0
) -> tuple[Transfers, Transfers]:
    """The two phases of deduplicated groups: once per node over the network, then all copies inside the node.

    The shares are bytes: of `sizes`, the first is deduplicated, with `k` copies of everything, and the second is not.
    With a `limit`, a token's copies are on so many nodes at most, as in `routed`.
    """
    each = [_group_copies(fabric, s, t, sizes, k, limit) for s, t in zip(split(sources), split(targets), strict=True)]
    once, fan_out = zip((_NOTHING, _NOTHING), *each, strict=True)
    return joined(once), joined(fan_out)


def once_per_node(share: Floats, k: int, nodes: int, limit: float = 0.0) -> Floats:
    """Of a token's k copies, how many rows reach each node with a `share` of the targets, sent there once.

    c (1 - (1 - share / c)^k), with c the part of the `nodes` that a token chooses from, limit / nodes, or 1.
    """
    chosen = min(limit, nodes) / nodes if limit else 1.0
    return np.asarray(chosen * (1 - (1 - np.minimum(1.0, share / chosen)) ** k), dtype=np.float64)


def _group_copies(
    fabric: Nodes, sources: Integers, targets: Integers, sizes: tuple[float, float], k: int, limit: float
) -> tuple[Transfers, Transfers]:
    source, target = np.repeat(sources, targets.size), np.tile(targets, sources.size)
    share, whole = (size / targets.size for size in sizes)
    home = fabric.node_of(targets)
    together = home[:, None] == home
    p = together.mean(axis=1)  # of each target: its node's share of the targets
    once = np.tile(once_per_node(p, k, np.unique(home).size, limit) / (k * p), sources.size)
    leaves = fabric.node_of(source) != fabric.node_of(target)
    arrived = leaves.reshape(sources.size, -1).sum(axis=0) * (share + whole)
    a, b = np.nonzero(together)
    fan_out = Transfers(targets[a], targets[b], arrived[a] / (p[a] * targets.size), np.ones(a.size))
    return Transfers(source, target, share * np.where(leaves, once, 1.0) + whole, np.ones(source.size)), fan_out


def split(groups: Side) -> list[Integers]:
    """The ranks of each group."""
    return np.split(groups.ranks, groups.start[1:])[: groups.sizes.size]


def joined(parts: Sequence[Transfers]) -> Transfers:
    """All of `parts`, which have no chains, at the same time; as many at once as the first of them."""
    source, target, share, messages = (np.concatenate(part) for part in zip(*(one[:4] for one in parts), strict=True))
    return Transfers(source, target, share, messages, at_once=parts[0].at_once)


def counted(count: Integers) -> tuple[Integers, Integers]:
    """Every i as often as count[i], and the how-manieth of its kind each is, from 0."""
    return np.repeat(np.arange(count.size), count), np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
