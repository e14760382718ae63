"""All-to-alls by nodes: what each phase of the two-level algorithm and of HALO sends, and what they take.

HALO (Piper (arXiv 2605.05049), section on HALO): phase I, rows that stay in the node; at the same time phase II, each
rank to the rank at its place in every other node, with the rows for all ranks there, then phase III, what it took in
to the rank that it is for. Two-level: first inside the node, to the rank at the target's place, with the rows for that
place in all nodes; then across, to the target, with the rows of the whole node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import numpy as np

from moeplan.cost import Cost
from moeplan.cost.communication import all_to_all, phase_cost
from moeplan.cost.demand import Demand, demands
from moeplan.cost.patterns import Groups, Side, Transfers, joined, side, split
from moeplan.spec.calibration import Calibration
from moeplan.tiers import WINDOW
from moeplan.topology.inside import Integers
from moeplan.topology.routes import Fabric

Algorithm: TypeAlias = Literal["flat", "two_level", "halo", "halo_chunked"]


def exchange(
    fabric: Fabric, calibration: Calibration, groups: Groups, bytes_per_rank: float, algorithm: Algorithm
) -> Cost:
    """Seconds of an all-to-all of `bytes_per_rank` per rank by `algorithm`; what the rank keeps counts in it.

    two_level: inside + across. halo: max(I, II + III), the dependency as printed. halo_chunked: III of one of w windows
    of messages, which takes h as an all-to-all of its own, runs beside II of the next and after I:
    max(II + h, max(I, II / w) + w h), inferred. Left out: packing, and the counts that mates tell each other, waiting
    for the slowest message of a window. Inside one node all are flat.
    """
    ranks = side(groups)
    if algorithm == "flat" or not _spans(fabric, ranks):
        return all_to_all(fabric, calibration, ranks, bytes_per_rank)
    if algorithm == "two_level":
        phases = demands(fabric, ("two_level",), [ranks], lambda some: _two_level(fabric, some[0]))
        inside, across = (_cost(calibration, phase, bytes_per_rank) for phase in phases)
        return _sum(inside, across)
    phases = demands(fabric, ("halo",), [ranks], lambda some: _halo(fabric, some[0]))
    local, between, handed = (_cost(calibration, phase, bytes_per_rank) for phase in phases)
    if algorithm == "halo":
        return _slower(local, _sum(between, handed))
    windows = _windows(fabric, ranks)
    one = _cost(calibration, phases[2], bytes_per_rank / windows)
    first = _slower(local, between._replace(seconds=between.seconds / windows))
    return _slower(_sum(first, one._replace(seconds=windows * one.seconds)), _sum(between, one))


ALGORITHMS: Final[tuple[Algorithm, ...]] = ("flat", "two_level", "halo", "halo_chunked")


def fastest(
    fabric: Fabric,
    calibration: Calibration,
    groups: Groups,
    bytes_per_rank: float,
    among: tuple[Algorithm, ...] = ALGORITHMS,
) -> tuple[Algorithm, Cost]:
    """The algorithm of `among` with the least seconds, of equal ones the first, and its cost; flat inside one node."""
    ranks = side(groups)
    if not _spans(fabric, ranks):
        return among[0], exchange(fabric, calibration, ranks, bytes_per_rank, "flat")
    costs = {name: exchange(fabric, calibration, ranks, bytes_per_rank, name) for name in among}
    best = min(among, key=lambda name: costs[name].seconds)
    return best, costs[best]


def _spans(fabric: Fabric, ranks: Side) -> bool:
    """Whether a group has ranks on several nodes."""
    homes = fabric.node_of(ranks.ranks)
    return bool(homes.size) and bool((homes != homes[ranks.start[ranks.group]]).any())


def _windows(fabric: Fabric, ranks: Side) -> int:
    """Windows of messages in which a rank of the largest group reaches all other nodes."""
    nodes = max(np.unique(fabric.node_of(group)).size for group in split(ranks))
    return max(1, -(-(nodes - 1) // WINDOW))


def _cost(calibration: Calibration, phase: Demand, size: float) -> Cost:
    return phase_cost(calibration, phase, size, "all_to_all")


def _sum(first: Cost, second: Cost) -> Cost:
    slower = first if first.seconds > second.seconds else second
    return slower._replace(seconds=first.seconds + second.seconds)


def _slower(first: Cost, second: Cost) -> Cost:
    return first if first.seconds > second.seconds else second


def _each(
    fabric: Fabric, groups: Side, phases: Callable[[Integers, Integers, Integers], tuple[Transfers, ...]], number: int
) -> tuple[Transfers, ...]:
    """`phases` of the ranks of every group and their nodes, all groups at the same time."""
    parts = [phases(ranks, fabric.node_of(ranks), fabric.nic_of(ranks)) for ranks in split(groups)]
    return tuple(joined([part[i] for part in parts]) for i in range(number))


def _halo(fabric: Fabric, groups: Side) -> tuple[Transfers, ...]:
    return _each(fabric, groups, halo_phases, 3)


def _two_level(fabric: Fabric, groups: Side) -> tuple[Transfers, ...]:
    return _each(fabric, groups, two_level_phases, 2)


def places(home: Integers, nic: Integers | None = None) -> tuple[Integers, Integers]:
    """The place of each rank among those on its node, by their NICs, and how many these are [ranks]."""
    node = np.unique(home, return_inverse=True)[1]
    order = np.lexsort((np.zeros_like(node) if nic is None else nic, node))
    count = np.bincount(node)
    place = np.empty(home.size, dtype=np.intp)
    place[order] = np.arange(home.size) - np.repeat(np.cumsum(count) - count, count)
    return place, count[node]


def halo_phases(ranks: Integers, home: Integers, nic: Integers | None = None) -> tuple[Transfers, Transfers, Transfers]:
    """I, II and III of one group; the size is that of a rank's rows for all ranks, itself included.

    Where nodes have different numbers of ranks, a rank sends to the one at its place modulo their number
    (`moeplan.tiers.aligned`).
    """
    n, (place, local) = ranks.size, places(home, nic)
    together = home[:, None] == home
    a, b = np.nonzero(together & ~np.eye(n, dtype=np.bool_))
    first = Transfers(ranks[a], ranks[b], np.full(a.size, 1 / n), np.ones(a.size))
    aligned = ~together & (place[:, None] % local == place)
    a, b = np.nonzero(aligned)
    second = Transfers(ranks[a], ranks[b], local[b] / n, np.ones(a.size), at_once=WINDOW)
    taken = np.bincount(b, minlength=n)
    a, b = np.nonzero(together & (taken[:, None] > 0) & ~np.eye(n, dtype=np.bool_))
    third = Transfers(ranks[a], ranks[b], taken[a] / n, np.ones(a.size))
    return first, second, third


def two_level_phases(ranks: Integers, home: Integers, nic: Integers | None = None) -> tuple[Transfers, Transfers]:
    """Inside and across of one group; sizes and places as in `halo_phases`."""
    n, (place, local) = ranks.size, places(home, nic)
    together = home[:, None] == home
    aligned = place % local[:, None] == place[:, None]  # [mate, target]: the mate takes rows for that target
    given = np.where(together, 0, aligned).sum(axis=1) + 1  # for its targets in other nodes, and for the mate itself
    a, b = np.nonzero(together & ~np.eye(n, dtype=np.bool_))
    inside = Transfers(ranks[a], ranks[b], given[b] / n, np.ones(a.size))
    a, b = np.nonzero(~together & aligned)
    across = Transfers(ranks[a], ranks[b], local[a] / n, np.ones(a.size), at_once=WINDOW)
    return inside, across
