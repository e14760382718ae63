"""From every source to every target of its group: one by one on one switch, by pairs of switches between others."""

from __future__ import annotations

import numpy as np

from moeplan.cost.patterns import Side, Transfers, counted, every_pair
from moeplan.topology.far import Ends, Far
from moeplan.topology.inside import Integers
from moeplan.topology.routes import Fabric


def pairs(fabric: Fabric, sources: Side, targets: Side) -> Transfers:
    """As `every_pair`, with what goes between ranks that share no switch told together, switch by switch."""
    unit = fabric.units
    if unit is None:
        return every_pair(sources, targets)
    first, count, order = _met(fabric, sources, targets)
    source, nth = counted(count)
    share = np.reciprocal(targets.sizes[sources.group[source]], dtype=np.float64)
    near = sources.ranks[source], targets.ranks[order[first[source] + nth]], share, np.ones(source.size)
    return Transfers(*near, far=_far(fabric, sources, targets, unit))


def _far(fabric: Fabric, sources: Side, targets: Side, unit: Integers) -> Far | None:
    """What `pairs` leaves out; None where that is nothing."""
    senders, receivers = _ends(fabric, sources, targets, targets), _ends(fabric, targets, sources, targets)
    bundles = [_bundles(one, end) for one, end in ((sources, senders), (targets, receivers))]
    source, target = every_pair(*bundles)[:2]
    (of, here), (to, there) = ((np.bincount(end.bundle), unit[end.ranks[end.first]]) for end in (senders, receivers))
    apart = here[source] != there[target]
    if not apart.any():
        return None
    source, target = source[apart], target[apart]
    messages = of[source] * to[target].astype(np.float64)
    total = targets.sizes[np.repeat(np.arange(bundles[0].sizes.size), bundles[0].sizes)]
    return Far(senders, receivers, source, target, messages / total[source], messages)


def _ends(fabric: Fabric, side: Side, other: Side, targets: Side) -> Ends:
    """The ranks of `side` switch by switch, and what each exchanges with those of `other` in other units."""
    group = side.group
    order = np.lexsort((fabric.leaf[side.ranks], group))
    ranks, group = side.ranks[order], group[order]
    new = (np.diff(group, prepend=-1) != 0) | (np.diff(fabric.leaf[ranks], prepend=-1) != 0)
    messages = (other.sizes[group] - _met(fabric, Side(ranks, side.sizes), other)[1]).astype(np.float64)
    return Ends(ranks, np.cumsum(new) - 1, messages / np.maximum(1, targets.sizes[group]), messages)


def _met(fabric: Fabric, side: Side, other: Side) -> tuple[Integers, Integers, Integers]:
    """For each rank of `side`, the ranks of `other` of its group and unit: the first, how many; in which order."""
    unit = fabric.units if fabric.units is not None else np.zeros(fabric.num_ranks, dtype=np.intp)
    key, theirs = (one.group * unit.size + unit[one.ranks] for one in (side, other))
    order = np.argsort(theirs, kind="stable")
    first, last = (np.searchsorted(theirs[order], key, end) for end in ("left", "right"))
    return first, last - first, order


def _bundles(side: Side, ends: Ends) -> Side:
    """The bundles of each group."""
    count = np.bincount(side.group[ends.first], minlength=side.sizes.size)
    return Side(np.arange(ends.first.size), count)
