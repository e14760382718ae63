"""Seconds of communication patterns: the busiest link of the graph decides.

    seconds = tier latency + route latency + moving + 2 sqrt(fill * moving)
    moving = max over links of load / (bandwidth * efficiency * share * m / (m + half_message))

m is the size of one message; the term half_message / m is charged as half_message extra bytes per message, so that
messages of several sizes may share a link. Links inside a node take their efficiency from the node's tier, all others
from the network's; the tier's latency and fill are the network's as soon as one route leaves a node. A rank's kernel
copies what it sends and receives, its own share included, no faster than the node tier's `kernel`. What a pattern's
groups send at the same time shares the links. Left out: congestion control, adaptive routing, packet headers, what the
GPU cores that copy would have computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from moeplan.cost import Cost
from moeplan.cost.demand import Demand, busiest_s, demand_of, demands
from moeplan.cost.pairs import pairs
from moeplan.cost.patterns import (
    Groups,
    Side,
    Transfers,
    by_node,
    copies,
    ends,
    ring,
    routed,
    side,
    switched,
)
from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration, Tier, source_of
from moeplan.spec.calibration import Pattern as Named
from moeplan.topology.routes import Fabric

Price: TypeAlias = Callable[[Fabric, Calibration, Groups, float], Cost]
"""Seconds of a collective of so many bytes among the ranks of each group."""
Dispatcher: TypeAlias = Literal["all_to_all", "all_gather", "deepep", "hybridep"]


def all_to_all(
    fabric: Fabric, calibration: Calibration, groups: Groups, bytes_per_rank: float, named: Named = "all_to_all"
) -> Cost:
    """Seconds until every rank has sent `bytes_per_rank` evenly to all ranks of its group, itself included.

    `named` is the library that sends. A message is bytes_per_rank / n; the rank's own share stays where it is.
    Imbalance between experts is left out.
    """
    phases = _pairs(fabric, [side(groups)] * 2)
    return _once(calibration, phases, bytes_per_rank, named, bytes_per_rank)


def many_to_many(  # noqa: PLR0913
    fabric: Fabric,
    calibration: Calibration,
    sources: Groups,
    targets: Groups,
    bytes_per_source: float,
    deduplicated: int | None = None,
    whole_bytes: float = 0.0,
    groups_limit: float = 0.0,
) -> Cost:
    """Seconds until every rank of `sources[i]` has spread `bytes_per_source` evenly over the ranks of `targets[i]`.

    `whole_bytes` per source go the same way and are never shrunk by deduplication.

    With `deduplicated` = k, the copies of a token for one node cross the network once and are fanned out inside the
    node by an all-to-all of its target ranks; the two phases follow each other. A node with the share p of the targets
    then receives (1 - (1 - p)^k) / (k p) of the bytes: the chance that one of k uniform choices falls on it. With n
    equal nodes that is n (1 - (1 - 1/n)^k) / k (own derivation; DisagMoE, arXiv 2605.11005, sends all k copies). Where
    a token may reach `groups_limit` nodes at most, it chooses from these alone, as in `dispatch`.
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
        return _once(calibration, _pairs(fabric, sides), bytes_per_source + whole_bytes, "all_to_all")
    sizes, k = (bytes_per_source, whole_bytes), deduplicated
    key = ("copies", *sizes, k, groups_limit)
    phases = demands(fabric, key, sides, lambda some: copies(fabric, some[0], some[1], sizes, k, groups_limit))
    return _once(calibration, phases, 1.0, "all_to_all")


def dispatch(
    fabric: Fabric,
    calibration: Calibration,
    groups: Groups,
    bytes_per_rank: float,
    top_k: int,
    dispatcher: Dispatcher,
    groups_limit: float = 0.0,
) -> Cost:
    """Seconds until every token's `top_k` copies, `bytes_per_rank` in all, are where their experts are; way back alike.

    all_to_all sends every copy. all_gather brings all tokens to all ranks, once each. deepep and hybridep send a token
    once to every node (NVLink domain) that it needs and there once to every rank, both at the same time. With k uniform
    choices among n ranks on d equal nodes, a token reaches d (1 - (1 - 1/d)^k) nodes and n (1 - (1 - 1/n)^k) ranks;
    where it may reach `groups_limit` nodes at most (DeepSeek-V3, arXiv 2412.19437, section 2.1.2), d and n count these
    alone. Left out: imbalance, the exchange of counts before the rows.

    Raises SpecError where copies are not all sent and `top_k` is below 1 or `groups_limit` below 0.
    """
    if dispatcher == "all_to_all":
        return all_to_all(fabric, calibration, groups, bytes_per_rank)
    if top_k < 1 or groups_limit < 0:
        raise SpecError(f"dispatch: top_k {top_k} and groups_limit {groups_limit}; at least 1 and 0")
    ranks = side(groups)
    largest = int(ranks.sizes.max(initial=1))
    if dispatcher == "all_gather":
        return all_gather(fabric, calibration, ranks, largest * bytes_per_rank / top_k)
    key = ("routed", top_k, groups_limit)
    phases = demands(fabric, key, [ranks], lambda some: routed(fabric, some[0], top_k, groups_limit))
    copied = largest * (1 - (1 - 1 / largest) ** top_k) / top_k
    return _together(calibration, phases, bytes_per_rank, dispatcher, copied * bytes_per_rank)


def uneven(
    fabric: Fabric,
    calibration: Calibration,
    sources: ArrayLike,
    targets: ArrayLike,
    num_bytes: ArrayLike,
    named: Named = "all_to_all",
) -> Cost:
    """Seconds until `num_bytes[i]` have gone from rank `sources[i]` to `targets[i]` [transfers], all at the same time.

    One message each; what stays on its rank, and messages without bytes, cost nothing. SpecError as `Fabric.crossings`.
    """
    source, target = (np.asarray(ranks, dtype=np.intp) for ranks in (sources, targets))
    size = np.asarray(num_bytes, dtype=np.float64)
    copied = max((float(np.bincount(ends, size).max(initial=0.0)) for ends in (source, target)), default=0.0)
    demand = demand_of(fabric, Transfers(source, target, size, np.ones(size.size)))
    return _seconds(calibration, demand, 1.0, named, copied)


def all_gather(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring all-gathers; `buffer_bytes` is the whole gathered buffer, of which each rank brings 1 / n.

    n - 1 steps of buffer / n over every edge of the ring, node by node, so the latencies of n - 1 of its routes.
    Left out: trees (fewer latencies for small buffers).
    """
    return _rings(fabric, calibration, groups, buffer_bytes, "all_gather")


def reduce_scatter(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring reduce-scatters; `buffer_bytes` is the whole buffer of each rank. As `all_gather`."""
    return _rings(fabric, calibration, groups, buffer_bytes, "reduce_scatter")


def scatter_and_gather(
    fabric: Fabric, calibration: Calibration, groups: Groups, scattered_bytes: float, gathered_bytes: float
) -> tuple[Cost, Cost]:
    """`reduce_scatter` and `all_gather` over the same rings, which are routed once."""
    demand = _ring_demand(fabric, by_node(fabric, side(groups)))
    return (
        _seconds(calibration, demand, scattered_bytes, "reduce_scatter", scattered_bytes),
        _seconds(calibration, demand, gathered_bytes, "all_gather", gathered_bytes),
    )


def all_reduce(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of all-reduces of `buffer_bytes`: rings of a reduce-scatter and an all-gather, started once.

    Where the node's switch adds up (tier `reduces`), a rank with l - 1 others on its node sends and receives
    buffer (1 + 1 / l) inside it instead of 2 buffer (n - 1) / n, while the network carries what it does in rings.
    """
    return _rings(fabric, calibration, groups, buffer_bytes, "all_reduce")


def point_to_point(fabric: Fabric, calibration: Calibration, pairs: Groups, bytes_per_pair: float) -> Cost:
    """Seconds until every (source, target) of `pairs` has moved `bytes_per_pair`, in one message, at the same time."""
    phases = demands(fabric, ("ends",), [side(pairs)], lambda some: [ends(*some)])
    return _once(calibration, phases, bytes_per_pair, "point_to_point")


def _pairs(fabric: Fabric, sides: Sequence[Side]) -> tuple[Demand, ...]:
    return demands(fabric, ("pairs",), sides, lambda some: [pairs(fabric, *some)])


def _once(calibration: Calibration, phases: Sequence[Demand], size: float, named: Named, copied: float = 0.0) -> Cost:
    """Seconds of all phases of a pattern whose routes are crossed once, one phase after another."""
    costs = [_seconds(calibration, phase, size, named, copied) for phase in phases]
    sources = {cost.source for cost in costs if cost.seconds} or {cost.source for cost in costs}
    return Cost(sum(cost.seconds for cost in costs), sources.pop() if len(sources) == 1 else "roofline")


def _rings(fabric: Fabric, calibration: Calibration, groups: Groups, size: float, named: Named) -> Cost:
    """Seconds of n - 1 messages of size / n over every edge of the rings of all groups, twice in an all-reduce."""
    if size <= 0:
        return Cost(0.0, calibration.node.source)
    ranks = by_node(fabric, side(groups))
    demand = _ring_demand(fabric, ranks)
    if named != "all_reduce":
        return _seconds(calibration, demand, size, named, size)
    twice = demand._replace(
        inside=2 * demand.inside,
        between=2 * demand.between,
        latency_s=2 * demand.latency_s,
        handled=2 * demand.handled,
    )
    if not calibration.node.reduces:
        return _seconds(calibration, twice, size, named, 2 * size)
    (added,) = demands(fabric, ("switched",), [ranks], lambda some: [switched(fabric, *some)])
    return _seconds(calibration, twice._replace(inside=added.inside), size, named, 0.0)


def _ring_demand(fabric: Fabric, ranks: Side) -> Demand:
    """The rings of groups that stand node by node."""
    (demand,) = demands(fabric, ("ring",), [ranks], lambda some: [ring(fabric, *some)])
    return demand


def _together(calibration: Calibration, phases: Sequence[Demand], size: float, named: Named, copied: float) -> Cost:
    """Seconds of phases that run at the same time, started once: the slowest, behind the latency of all routes."""
    moving = [phase for phase in phases if phase.inside.size or phase.between.size]
    if size <= 0 or not moving:
        return Cost(0.0, calibration.node.source)
    far = any(phase.between.size for phase in moving)
    tier = calibration.network if far else calibration.node
    latency = tier.starts_s.get(named, tier.latency_s) + sum(phase.latency_s for phase in moving)
    seconds = latency + max(_moving_s(calibration, phase, size, named, copied) for phase in moving)
    return Cost(seconds, source_of(tier, named))


def phase_cost(calibration: Calibration, demand: Demand, size: float, named: Named) -> Cost:
    """Seconds of one phase of an all-to-all of `size` bytes per rank; nothing to move costs nothing."""
    return _seconds(calibration, demand, size, named, size)


def _seconds(calibration: Calibration, demand: Demand, size: float, named: Named, copied: float = 0.0) -> Cost:
    """Seconds of one phase; nothing to move costs nothing."""
    return _together(calibration, [demand], size, named, copied)


def crowding(network: Tier, flows: float) -> float:
    """How much longer NICs take that send `flows` messages at once: 1 + (contention - 1) max(0, 1 - few / flows)."""
    return 1 + (network.contention - 1) * max(0.0, 1 - network.few_flows / flows) if flows else 1.0


def _moving_s(calibration: Calibration, demand: Demand, size: float, named: Named, copied: float) -> float:
    """Seconds of the busiest link, or of the kernels that copy, with the fill of their pipeline."""
    node, network = calibration.node, calibration.network
    inside = busiest_s(demand.inside, 0.0, node, size, named) / node.shares.get(named, 1.0)
    between = busiest_s(demand.between, demand.handled, network, size, named) / network.shares.get(named, 1.0)
    between *= crowding(network, demand.flows)
    kernel = copied / node.kernel_bytes_per_s if node.kernel_bytes_per_s else 0.0
    moving = max(inside, between, kernel)
    tier = network if demand.between.size else node
    return moving + 2 * sqrt(tier.fills_s.get(named, tier.fill_s) * moving)
