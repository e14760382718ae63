"""The bisection bandwidth: what one half of a job's nodes can send to the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from moeplan.hostlist import listed
from moeplan.spec.cluster import hosts_of, places_of
from moeplan.spec.network import Dragonfly, Rail, Switches, Torus, Tree, plain
from moeplan.topology.core import Core, across

if TYPE_CHECKING:
    from moeplan.spec.cluster import ClusterSpec


def bisection_bytes_per_s(cluster: ClusterSpec, found: Core) -> float:
    """Bandwidth per direction out of the first half of the job's nodes, by place, into the others; 0 for one node.

    The cut is between the largest parts that the nodes are in several of (dragonfly groups, pods, leaves, units),
    where the halves are most nearly equal; under one switch alone, between nodes. Of a torus, the least over cuts
    across each side. Within either half traffic may go any way. `found` is `topology.core.core` of `cluster`.
    """
    return min((across(found, half) for half in halves(cluster) if half), default=0.0)


def halves(cluster: ClusterSpec) -> list[list[int]]:
    """The first half of the job's nodes, by their numbers in the job; of a torus one for each side."""
    paths = paths_of(cluster)
    if isinstance(cluster.network, Torus):
        sides = range(len(cluster.network.shape))
        return [_first_half([(path[side],) for path in paths]) for side in sides]
    return [_first_half(paths)]


def _first_half(paths: Sequence[tuple[Hashable, ...]]) -> list[int]:
    order = sorted(range(len(paths)), key=lambda n: _key(paths[n]))
    depth = next((d for d in range(len(paths[0])) if len({path[: d + 1] for path in paths}) > 1), None)
    parts = [1] * len(order)
    if depth is not None:
        parts = [len(list(part)) for _, part in groupby(order, lambda n: paths[n][: depth + 1])]
    cuts = list(accumulate(parts))[:-1]
    return order[: min(cuts, key=lambda cut: abs(2 * cut - len(order)))] if cuts else []


def _key(path: tuple[Hashable, ...]) -> tuple[tuple[bool, int, str], ...]:
    return tuple((isinstance(part, str), part if isinstance(part, int) else 0, str(part)) for part in path)


def paths_of(cluster: ClusterSpec) -> list[tuple[Hashable, ...]]:
    """The parts of the network that each of the job's nodes is in, the largest first; of a torus its coordinates."""
    places = places_of(cluster)
    match plain(cluster.network, cluster.node):
        case Tree(nodes_per_leaf=nodes, levels=levels):
            sizes = list(accumulate((nodes, *(level.children for level in levels)), lambda a, b: a * b))
            return [tuple(place // size for size in reversed(sizes)) for place in places]
        case Rail(nodes_per_unit=nodes):
            return [(place // nodes,) for place in places]
        case Dragonfly() as dragonfly:
            switch = dragonfly.nodes_per_switch * dragonfly.switches_per_node
            group = dragonfly.nodes_per_switch * dragonfly.switches_per_group
            return [(place // group, place // switch) for place in places]
        case Torus(shape=shape):
            return [_coordinates(place, shape) for place in places]
        case Switches() as switches:
            at = _switch_paths(switches)
            return [at[host] for host in hosts_of(cluster)]


def _coordinates(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    found: list[int] = []
    for side in reversed(shape):
        place, at = divmod(place, side)
        found.insert(0, at)
    return tuple(found)


def _switch_paths(network: Switches) -> dict[str, tuple[Hashable, ...]]:
    """For each host the numbers of the switches above it in the file, the top first, padded at the end with -1."""
    number = {one.name: i for i, one in enumerate(network.switches)}
    paths: dict[str, tuple[int, ...]] = {}
    for one in network.switches:
        path: tuple[int, ...] = (number[one.name],)
        at = one.up
        while at:
            path, at = (number[at], *path), network.switches[number[at]].up
        paths |= dict.fromkeys(listed(one.nodes), path)
    deepest = max(map(len, paths.values()), default=0)
    return {host: (*path, *[-1] * (deepest - len(path))) for host, path in paths.items()}
