"""Seconds of communication patterns: the busiest link of the graph decides.

    seconds = tier latency + route latency + max over links of load / (bandwidth * efficiency * m / (m + half_message))

m is the size of one message; the term half_message / m is charged as half_message extra bytes per message, so that
messages of several sizes may share a link. Links inside a node take their efficiency from the node's tier, all others
from the network's; the tier latency is the network's as soon as one route leaves a node. What a pattern's groups send
at the same time shares the links. Left out: congestion control, adaptive routing, packet headers, GPU cores spent.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.cost import Cost
from moeplan.cost.demand import Demand, Key, Pattern, busiest_s, demands
from moeplan.cost.patterns import Groups, Side, by_node, copies, ends, every_pair, ring, side
from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration
from moeplan.topology.routes import Fabric


def all_to_all(fabric: Fabric, calibration: Calibration, groups: Groups, bytes_per_rank: float) -> Cost:
    """Seconds until every rank has sent `bytes_per_rank` evenly to all ranks of its group, itself included.

    A message is bytes_per_rank / n; the rank's own share stays where it is. Imbalance between experts is left out.
    """
    sides = [side(groups)] * 2
    return _once(fabric, calibration, ("pairs",), sides, lambda some: [every_pair(*some)], bytes_per_rank)


def many_to_many(
    fabric: Fabric,
    calibration: Calibration,
    sources: Groups,
    targets: Groups,
    bytes_per_source: float,
    deduplicated: int | None = None,
    whole_bytes: float = 0.0,
) -> Cost:
    """Seconds until every rank of `sources[i]` has spread `bytes_per_source` evenly over the ranks of `targets[i]`.

    `whole_bytes` per source go the same way and are never shrunk by deduplication.

    With `deduplicated` = k, the copies of a token for one node cross the network once and are fanned out inside the
    node by an all-to-all of its target ranks; the two phases follow each other. A node with the share p of the targets
    then receives (1 - (1 - p)^k) / (k p) of the bytes: the chance that one of k uniform choices falls on it. With n
    equal nodes that is n (1 - (1 - 1/n)^k) / k (own derivation; DisagMoE, arXiv 2605.11005, sends all k copies).
    Transfers inside a node carry all copies. The way back, summed in the node before it is sent, costs the same:
    call it with the dispatch's sources and targets.

    Raises SpecError where `sources` and `targets` differ in number of groups, a group has no target, or k < 1.
    """
    sides = side(sources), side(targets)
    if not sides[1].sizes.all():
        raise SpecError("many_to_many: a group has no target ranks; give each group of sources at least one")
    if sides[0].sizes.size != sides[1].sizes.size:
        a, b = (one.sizes.size for one in sides)
        raise SpecError(f"many_to_many: {a} groups of sources for {b} of targets; one for each")
    if deduplicated is not None and deduplicated < 1:
        raise SpecError(f"many_to_many: deduplicated is {deduplicated}; the number of copies per token is 1 or more")
    if deduplicated is None:
        size = bytes_per_source + whole_bytes
        return _once(fabric, calibration, ("pairs",), sides, lambda some: [every_pair(*some)], size)
    sizes, k = (bytes_per_source, whole_bytes), deduplicated
    key = ("copies", *sizes, k)
    return _once(fabric, calibration, key, sides, lambda some: copies(fabric, some[0], some[1], sizes, k), 1.0)


def all_gather(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring all-gathers; `buffer_bytes` is the whole gathered buffer, of which each rank brings 1 / n.

    n - 1 steps of buffer / n over every edge of the ring, in the order of the group, so n - 1 route latencies.
    Left out: trees (fewer latencies for small buffers).
    """
    return _rings(fabric, calibration, groups, buffer_bytes, passes=1)


def reduce_scatter(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring reduce-scatters; `buffer_bytes` is the whole buffer of each rank. As `all_gather`."""
    return _rings(fabric, calibration, groups, buffer_bytes, passes=1)


def all_reduce(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring all-reduces: a reduce-scatter and an all-gather of `buffer_bytes`, started once."""
    return _rings(fabric, calibration, groups, buffer_bytes, passes=2)


def point_to_point(fabric: Fabric, calibration: Calibration, pairs: Groups, bytes_per_pair: float) -> Cost:
    """Seconds until every (source, target) of `pairs` has moved `bytes_per_pair`, in one message, at the same time."""
    return _once(fabric, calibration, ("ends",), [side(pairs)], lambda some: [ends(*some)], bytes_per_pair)


def _once(
    fabric: Fabric, calibration: Calibration, key: Key, sides: Sequence[Side], pattern: Pattern, size: float
) -> Cost:
    """Seconds of all phases of a pattern whose routes are crossed once, one phase after another."""
    if size <= 0:
        return Cost(0.0, calibration.node.source)
    phases = [_seconds(calibration, demand, size) for demand in demands(fabric, key, sides, pattern)]
    sources = {phase.source for phase in phases if phase.seconds} or {phase.source for phase in phases}
    return Cost(sum(phase.seconds for phase in phases), sources.pop() if len(sources) == 1 else "roofline")


def _rings(fabric: Fabric, calibration: Calibration, groups: Groups, size: float, passes: int) -> Cost:
    """Seconds of `passes` times n - 1 messages of size / n over every edge of the rings of all groups."""
    if size <= 0:
        return Cost(0.0, calibration.node.source)
    (demand,) = demands(fabric, ("ring",), [by_node(fabric, side(groups))], lambda some: [ring(fabric, *some)])
    inside, between = passes * demand.inside, passes * demand.between
    return _seconds(calibration, demand._replace(inside=inside, between=between), size, passes * demand.steps)


def _seconds(calibration: Calibration, demand: Demand, size: float, steps: int = 1) -> Cost:
    """Seconds of one phase, whose slowest route is crossed `steps` times in a row; nothing to move costs nothing."""
    node, network = calibration.node, calibration.network
    if not demand.inside.size and not demand.between.size:
        return Cost(0.0, node.source)
    tier = network if demand.between.size else node
    busiest = max(busiest_s(demand.inside, node, size), busiest_s(demand.between, network, size))
    return Cost(tier.latency_s + steps * demand.latency_s + busiest, tier.source)
