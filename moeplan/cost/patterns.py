"""Which ranks send to which in a communication pattern, and how much, for all its groups at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from moeplan.topology.inside import Floats, Integers
from moeplan.topology.routes import Fabric


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
    source, nth = _counted(targets.sizes[group])
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


def by_node(fabric: Fabric, groups: Side) -> Side:
    """`groups` whose ranks stand node by node, on each node in the order given."""
    return groups._replace(ranks=groups.ranks[np.lexsort((fabric.node_of(groups.ranks), groups.group))])


def ring(fabric: Fabric, groups: Side) -> Transfers:
    """Each rank to the next of its rings: n - 1 messages of 1 / n of the size, n being the ranks of the group.

    A group that spans nodes runs as many rings at once as it has ranks on its smallest node, each with its share of
    the size and leaving every node by another rank, so that all their NICs carry it. Ranks stand as in `by_node`.
    """
    ranks, group = groups.ranks, groups.group
    new = np.diff(fabric.node_of(ranks), prepend=-1) != 0
    new[groups.start] = True
    first = np.flatnonzero(new)  # where the ranks of a group on one node begin
    length = np.diff(first, append=ranks.size)
    smallest = np.minimum.reduceat(length, np.searchsorted(first, groups.start)) if first.size else length
    rings = np.where(np.bincount(group[first], minlength=groups.sizes.size) > 1, smallest, 1)
    at, turn = _counted(np.repeat(rings, groups.sizes))
    after = np.arange(1, ranks.size + 1)
    after[groups.start + groups.sizes - 1] = groups.start
    block = np.cumsum(new) - 1
    source, target = (_turned(first, length, block[place], place, turn) for place in (at, after[at]))
    size, rings = groups.sizes[group[at]].astype(np.float64), rings[group[at]]
    return Transfers(ranks[source], ranks[target], (size - 1) / (size * rings), size - 1)


def _turned(first: Integers, length: Integers, block: Integers, place: Integers, turn: Integers) -> Integers:
    """What comes to each `place` of a block when the block is turned by `turn` [n]; blocks begin at `first`."""
    begin = first[block]
    return np.asarray(begin + (place - begin + turn) % length[block], dtype=np.intp)


def copies(
    fabric: Fabric, sources: Side, targets: Side, sizes: tuple[float, float], k: int
) -> tuple[Transfers, Transfers]:
    """The two phases of deduplicated groups: once per node over the network, then all copies inside the node.

    The shares are bytes: of `sizes`, the first is deduplicated, with `k` copies of everything, and the second is not.
    """
    each = [_group_copies(fabric, s, t, sizes, k) for s, t in zip(_split(sources), _split(targets), strict=True)]
    once, fan_out = zip((_NOTHING, _NOTHING), *each, strict=True)
    return _joined(once), _joined(fan_out)


def _group_copies(
    fabric: Fabric, sources: Integers, targets: Integers, sizes: tuple[float, float], k: int
) -> tuple[Transfers, Transfers]:
    source, target = np.repeat(sources, targets.size), np.tile(targets, sources.size)
    share, whole = (size / targets.size for size in sizes)
    home = fabric.node_of(targets)
    together = home[:, None] == home
    p = together.mean(axis=1)  # of each target: its node's share of the targets
    once = np.tile((1 - (1 - p) ** k) / (k * p), sources.size)
    leaves = fabric.node_of(source) != fabric.node_of(target)
    arrived = leaves.reshape(sources.size, -1).sum(axis=0) * (share + whole)
    a, b = np.nonzero(together)
    fan_out = Transfers(targets[a], targets[b], arrived[a] / (p[a] * targets.size), np.ones(a.size))
    return Transfers(source, target, share * np.where(leaves, once, 1.0) + whole, np.ones(source.size)), fan_out


def _split(groups: Side) -> list[Integers]:
    return np.split(groups.ranks, groups.start[1:])[: groups.sizes.size]


def _joined(parts: Sequence[Transfers]) -> Transfers:
    return Transfers(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _counted(count: Integers) -> tuple[Integers, Integers]:
    """Every i as often as count[i], and the how-manieth of its kind each is, from 0."""
    return np.repeat(np.arange(count.size), count), np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
