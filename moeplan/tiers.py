"""How the ranks of one group stand on the network: nodes and groups of nodes, as rank lists that travel in a plan.

Between nodes, messages go in rounds: in a round every node sends to at most one other node and receives from at most
one. All ranks count the same rounds, so that both ends of a message have it in the same one. Nodes of the same group
come first (Piper (arXiv 2605.05049), section on HALO: tiers intra-node, intra-group, inter-group); every node starts
at another partner, and neighbours in a group turn to different groups at the same time, so that no node and no pair of
groups gets all messages at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.errors import SpecError
from moeplan.spec.cluster import (
    ClusterSpec,
    Dragonfly,
    Switches,
    Torus,
    domain_of,
    homes,
    hosts_of,
    nic_of,
    node_at,
    places_of,
    switch_of,
)
from moeplan.spec.network import plain, single_hop_places
from moeplan.spec.record import Record

WINDOW = 4
"""Rounds of messages between nodes that are under way at a time (assumed)."""


class Tiers(Record):
    """The ranks of each node, and of each set of nodes that need no global link among them."""

    nodes: tuple[tuple[int, ...], ...]
    """In a node, ranks with the same place exchange with each other across nodes: the order of their NICs."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Whole nodes each: those of a switch, of a leaf, of a Dragonfly group. None: all nodes are one group."""


def neighbourhoods(cluster: ClusterSpec) -> tuple[int, ...]:
    """For each of the job's nodes the set of nodes, counted from 0, that it reaches without a global link.

    Those of a leaf, rail unit, dragonfly group or switch; of a torus all. A set holds whole NVLink domains.
    """
    network, places = plain(cluster.network, cluster.node), places_of(cluster)
    match network:
        case Dragonfly() as dragonfly:
            wide = dragonfly.nodes_per_switch * dragonfly.switches_per_group
            keys: list[object] = [place // wide for place in places]
        case Torus():
            keys = [0] * len(places)
        case Switches() as switches:
            keys = [switch_of(switches)[host] for host in hosts_of(cluster)]
        case _:
            wide = single_hop_places(network, cluster.node)
            keys = [place // wide for place in places]
    first: dict[int, object] = {}
    keys = [first.setdefault(domain, key) for domain, key in zip(homes(cluster), keys, strict=True)]
    met: dict[object, int] = {}
    return tuple(met.setdefault(key, len(met)) for key in keys)


def tiers_of(cluster: ClusterSpec, ranks: Sequence[int]) -> Tiers:
    """How `ranks` stand on `cluster`: those of a node or NVLink domain by their NICs, in sets without a global link."""
    nodes: dict[int, list[int]] = {}
    groups: dict[int, list[int]] = {}
    near, gpus, special = neighbourhoods(cluster), cluster.node.gpus, bool(cluster.kinds or cluster.without_nics)
    hosts = hosts_of(cluster) if special else ()

    def order(rank: int) -> tuple[int, int, int]:
        node = node_at(cluster, hosts[rank // gpus]) if special else cluster.node
        return rank // gpus, nic_of(node, rank % gpus), rank

    for rank in sorted(ranks, key=order):
        nodes.setdefault(domain_of(cluster, rank), []).append(rank)
        groups.setdefault(near[rank // gpus], []).append(rank)
    several = [tuple(sorted(group)) for group in groups.values()] if len(groups) > 1 else []
    return Tiers(nodes=tuple(map(tuple, nodes.values())), groups=tuple(several))


Place = tuple[int, int]
"""Of a node: (group, place in the group)."""


def check_tiers(tiers: Tiers) -> None:
    """SpecError unless each rank is on one node and each node in one group."""
    ranks = [rank for node in tiers.nodes for rank in node]
    if not ranks or not all(tiers.nodes):
        raise SpecError("tiers: a node without ranks; each has at least one")
    if min(ranks) < 0 or len(set(ranks)) < len(ranks):
        raise SpecError(f"tiers: nodes {tiers.nodes} do not hold ranks once each")
    grouped = [rank for group in tiers.groups for rank in group]
    if tiers.groups and sorted(grouped) != sorted(ranks):
        raise SpecError(f"tiers: groups {tiers.groups} do not hold the ranks of the nodes once each")
    for node in tiers.nodes:
        if any(0 < len(set(node) & set(group)) < len(node) for group in tiers.groups):
            raise SpecError(f"tiers: the node of ranks {node} is in several groups; a node is in one")


def members(tiers: Tiers) -> tuple[int, ...]:
    """All ranks, ascending: a rank's index among them is its place in counts."""
    return tuple(sorted(rank for node in tiers.nodes for rank in node))


def aligned(place: int, node: tuple[int, ...]) -> int:
    """The rank of `node` that the rank at `place` of another node exchanges with.

    That at the same place; where `node` has fewer ranks, `place` modulo their number. A smaller node thus reaches only
    the first ranks of a larger one, whose other ranks and NICs wait.
    """
    return node[place % len(node)]


def places(tiers: Tiers) -> tuple[Place, ...]:
    """Where each node is among the groups."""
    groups = tiers.groups or (members(tiers),)
    number = {rank: g for g, group in enumerate(groups) for rank in group}
    seen = [0] * len(groups)
    found = []
    for node in tiers.nodes:
        group = number[node[0]]
        found.append((group, seen[group]))
        seen[group] += 1
    return tuple(found)


def round_of(source: Place, target: Place, sizes: tuple[int, ...]) -> int:
    """The round in which the node at `source` sends to the one at `target`, from 0; `sizes` are the nodes per group.

    In a group of n: (q - p) mod n - 1. Across G groups of at most L, after L - 1 rounds of the first kind:
    L ((turn - 1 - p) mod (G - 1)) + (q - p) mod L, where turn = (target group - source group) mod G.
    """
    (a, p), (b, q) = source, target
    if a == b:
        return (q - p) % sizes[a] - 1
    most, turn = max(sizes), (b - a) % len(sizes)
    return most - 1 + most * ((turn - 1 - p) % (len(sizes) - 1)) + (q - p) % most


def group_sizes(found: tuple[Place, ...]) -> tuple[int, ...]:
    """Nodes per group."""
    return tuple(sum(group == g for group, _ in found) for g in range(1 + max(g for g, _ in found)))
