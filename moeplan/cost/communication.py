"""Seconds of communication patterns: the busiest link of the graph decides.

    seconds = tier latency + route latency + max over links of load / (bandwidth * efficiency * m / (m + half_message))

m is the size of one message; the term half_message / m is charged as half_message extra bytes per message, so that
messages of several sizes may share a link. Links inside a node take their efficiency from the node's tier, all others
from the network's; the tier latency is the network's as soon as one route leaves a node. What a pattern's groups send
at the same time shares the links. Left out: congestion control, adaptive routing, packet headers, GPU cores spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from moeplan.cost import Cost
from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration
from moeplan.topology.inside import Floats, Integers
from moeplan.topology.routes import Fabric

Groups: TypeAlias = Sequence[Sequence[int]]


class _Transfers(NamedTuple):
    """Bytes from rank to rank, all at the same time; four arrays [transfers]."""

    source: Integers
    target: Integers
    bytes: Floats
    messages: Floats


def all_to_all(fabric: Fabric, calibration: Calibration, groups: Groups, bytes_per_rank: float) -> Cost:
    """Seconds until every rank has sent `bytes_per_rank` evenly to all ranks of its group, itself included.

    A message is bytes_per_rank / n; the rank's own share stays where it is. Imbalance between experts is left out.
    """
    return _seconds(fabric, calibration, _every_pair(groups, groups, bytes_per_rank))


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
    if not all(len(group) for group in targets):
        raise SpecError("many_to_many: a group has no target ranks; give each group of sources at least one")
    if len(sources) != len(targets):
        raise SpecError(f"many_to_many: {len(sources)} groups of sources for {len(targets)} of targets; one for each")
    if deduplicated is not None and deduplicated < 1:
        raise SpecError(f"many_to_many: deduplicated is {deduplicated}; the number of copies per token is 1 or more")
    transfers = _every_pair(sources, targets, bytes_per_source + whole_bytes)
    if deduplicated is None:
        return _seconds(fabric, calibration, transfers)
    sizes = (bytes_per_source, whole_bytes)
    parts = [_copies(fabric, s, t, sizes, deduplicated) for s, t in zip(sources, targets, strict=True)]
    phases = [_seconds(fabric, calibration, _joined(phase)) for phase in zip(*parts, strict=True)]
    return _one_after_another(phases)


def all_gather(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring all-gathers; `buffer_bytes` is the whole gathered buffer, of which each rank brings 1 / n.

    n - 1 steps of buffer / n over every edge of the ring, in the order of the group, so n - 1 route latencies.
    Left out: trees (fewer latencies for small buffers).
    """
    return _seconds(fabric, calibration, *_ring(fabric, groups, buffer_bytes, passes=1))


def reduce_scatter(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring reduce-scatters; `buffer_bytes` is the whole buffer of each rank. As `all_gather`."""
    return _seconds(fabric, calibration, *_ring(fabric, groups, buffer_bytes, passes=1))


def all_reduce(fabric: Fabric, calibration: Calibration, groups: Groups, buffer_bytes: float) -> Cost:
    """Seconds of ring all-reduces: a reduce-scatter and an all-gather of `buffer_bytes`, started once."""
    return _seconds(fabric, calibration, *_ring(fabric, groups, buffer_bytes, passes=2))


def point_to_point(fabric: Fabric, calibration: Calibration, pairs: Groups, bytes_per_pair: float) -> Cost:
    """Seconds until every (source, target) of `pairs` has moved `bytes_per_pair`, in one message, at the same time."""
    ends = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    return _seconds(fabric, calibration, _transfers(ends[:, 0], ends[:, 1], bytes_per_pair))


def _seconds(fabric: Fabric, calibration: Calibration, transfers: _Transfers, steps: float = 1) -> Cost:
    """Seconds of `transfers`, whose slowest route is crossed `steps` times in a row; nothing to move costs nothing.

    The latency of a transfer that is split is the mean of its paths, each weighted by its share.
    """
    moving = transfers.bytes > 0
    source, target, num_bytes, messages = (part[moving] for part in transfers)
    crossings = fabric.crossings(source, target)
    if not crossings.edge.size:
        return Cost(0.0, calibration.node.source)
    node, network, inside = calibration.node, calibration.network, fabric.inside_node
    tier = node if inside[crossings.edge].all() else network
    half = np.where(inside, node.half_message_bytes, network.half_message_bytes)
    reached = np.where(inside, node.efficiency, network.efficiency) * fabric.bandwidth_bytes_per_s
    load = fabric.per_edge(crossings, num_bytes) + half * fabric.per_edge(crossings, messages)
    latency = np.bincount(crossings.transfer, fabric.latency_s[crossings.edge] * crossings.share).max()
    return Cost(float(tier.latency_s + steps * latency + (load / reached).max()), tier.source)


def _one_after_another(phases: Sequence[Cost]) -> Cost:
    sources = {phase.source for phase in phases if phase.seconds} or {phase.source for phase in phases}
    return Cost(sum(phase.seconds for phase in phases), sources.pop() if len(sources) == 1 else "roofline")


def _transfers(source: Integers, target: Integers, num_bytes: float | Floats, messages: float = 1) -> _Transfers:
    shape = source.shape
    return _Transfers(source, target, np.broadcast_to(num_bytes, shape), np.full(shape, float(messages)))


def _joined(parts: Sequence[_Transfers]) -> _Transfers:
    empty = np.empty(0, dtype=np.intp)
    return _Transfers(*(np.concatenate(part) for part in zip(_transfers(empty, empty, 0.0), *parts, strict=True)))


def _pairs(sources: Sequence[int], targets: Sequence[int]) -> tuple[Integers, Integers]:
    """Every source with every target [sources * targets]."""
    source, target = np.meshgrid(np.asarray(sources, np.intp), np.asarray(targets, np.intp), indexing="ij")
    return source.ravel(), target.ravel()


def _every_pair(sources: Groups, targets: Groups, bytes_per_source: float) -> _Transfers:
    """One message from every source to every target of the same group, bytes_per_source / targets each."""
    return _joined(
        [_transfers(*_pairs(s, t), bytes_per_source / max(len(t), 1)) for s, t in zip(sources, targets, strict=True)]
    )


def _copies(
    fabric: Fabric, sources: Sequence[int], targets: Sequence[int], sizes: tuple[float, float], k: int
) -> tuple[_Transfers, _Transfers]:
    """The two phases of one deduplicated group: once per node over the network, then all copies inside the node."""
    source, target = _pairs(sources, targets)
    share, whole = (size / len(targets) for size in sizes)
    home = fabric.node_of(targets)
    p = (home[:, None] == home).mean(axis=1)  # of each target: its node's share of the targets
    once = np.tile((1 - (1 - p) ** k) / (k * p), len(sources))
    leaves = fabric.node_of(source) != fabric.node_of(target)
    arrived = np.bincount(np.flatnonzero(leaves) % len(targets), minlength=len(targets)) * (share + whole)
    a, b = np.nonzero(home[:, None] == home)
    ranks = np.asarray(targets, np.intp)
    fan_out = _transfers(ranks[a], ranks[b], arrived[a] / (p[a] * len(targets)))
    return _transfers(source, target, share * np.where(leaves, once, 1.0) + whole), fan_out


def _ring(fabric: Fabric, groups: Groups, buffer_bytes: float, passes: int) -> tuple[_Transfers, int]:
    """Each rank to the next of its rings, `passes` times n - 1 messages of buffer / n; and the steps of the longest.

    A group that spans nodes runs as many rings at once as it has ranks on its smallest node, each with its share of
    the buffer and leaving every node by another rank, so that all their NICs carry it.
    """
    parts = []
    for group in groups:
        n = max(len(group), 1)
        steps = passes * (n - 1)
        for ring in (rings := _rings(fabric, group)):
            parts.append(_transfers(ring, np.roll(ring, -1), buffer_bytes / len(rings) * steps / n, steps))
    return _joined(parts), passes * max((len(group) - 1 for group in groups), default=0)


def _rings(fabric: Fabric, group: Sequence[int]) -> list[Integers]:
    """The orders in which the rings of `group` visit its ranks: node by node, each starting a node at another rank."""
    ranks = np.asarray(group, np.intp)
    nodes = fabric.node_of(ranks)
    blocks = [ranks[nodes == node] for node in np.unique(nodes)]
    if len(blocks) == 1:
        return [ranks]
    return [np.concatenate([np.roll(block, -c) for block in blocks]) for c in range(min(map(len, blocks)))]
