"""The edges between nodes, by the kind of network: what a NIC is linked to, and what is above that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from moeplan.hostlist import listed
from moeplan.spec.cluster import hosts_of, places_of
from moeplan.spec.network import Dragonfly, Level, Rail, Switches, Torus, Tree, global_bytes_per_s, plain
from moeplan.topology.links import Graph, Vertex, link

if TYPE_CHECKING:
    from moeplan.spec.cluster import ClusterSpec

Attach: TypeAlias = "Callable[[int, int, int], Vertex]"
"""What NIC j of node n at a place is linked to."""


def attachments(cluster: ClusterSpec) -> Attach:
    """What each NIC of `cluster` is linked to."""
    match plain(cluster.network, cluster.node):
        case Tree(nodes_per_leaf=nodes):
            return lambda n, place, j: ("leaf", place // nodes)
        case Rail(nodes_per_unit=nodes):
            return lambda n, place, j: ("rail", place // nodes, j)
        case Dragonfly() as dragonfly:
            several, nics = dragonfly.switches_per_node, max(1, cluster.node.nics)
            shared = dragonfly.nodes_per_switch * several
            return lambda n, place, j: ("switch", place // shared * several + j * several // nics)
        case Torus():
            return lambda n, place, j: ("router", place)
        case Switches(switches=switches):
            at = {host: switch.name for switch in switches for host in listed(switch.nodes)}
            hosts = hosts_of(cluster)
            return lambda n, place, j: ("switch", at[hosts[n]])


def routers(cluster: ClusterSpec) -> list[Vertex]:
    """The routers of a torus in the order of their places, so that equally short routes do not depend on the job."""
    if isinstance(cluster.network, Torus) and len(places_of(cluster)) > 1:
        return [("router", place) for place in range(prod(cluster.network.shape))]
    return []


def join(graph: Graph, cluster: ClusterSpec) -> None:
    """Add what joins the switches of `graph` that NICs are linked to."""
    match plain(cluster.network, cluster.node):
        case Tree() as tree:
            _tree(graph, tree, _numbers(graph, "leaf"))
        case Rail() as rail:
            _rails(graph, rail)
        case Dragonfly() as dragonfly:
            _dragonfly(graph, dragonfly, cluster)
        case Torus() as torus:
            if len(places_of(cluster)) > 1:
                _torus(graph, torus)
        case Switches() as switches:
            _switches(graph, switches)


def _numbers(graph: Graph, kind: str) -> list[int]:
    return sorted(int(vertex[1]) for vertex in graph if vertex[0] == kind)


def _tree(graph: Graph, tree: Tree, leaves: list[int]) -> None:
    """Leaf switches to the spine, level by level while there are several."""
    at: list[tuple[int, Vertex]] = [(leaf, ("leaf", leaf)) for leaf in leaves]
    above: Iterable[Level | None] = (*tree.levels, None)
    uplink = tree.uplink_bytes_per_s
    for k, level in enumerate(above):
        if len(at) < 2:
            return
        parents: dict[int, Vertex] = {}
        for number, vertex in at:
            parent = number // level.children if level else 0
            parents[parent] = ("level", k, parent) if level else ("spine",)
            link(graph, vertex, parents[parent], uplink, tree.hop_latency_s)
        at, uplink = list(parents.items()), level.uplink_bytes_per_s if level else uplink


def _rails(graph: Graph, rail: Rail) -> None:
    """The leaf of every rail of every unit to the spine."""
    leaves = sorted(vertex for vertex in graph if vertex[0] == "rail")
    for leaf in leaves if len(leaves) > 1 else ():
        link(graph, leaf, ("spine",), rail.uplink_bytes_per_s, rail.hop_latency_s)


def _dragonfly(graph: Graph, dragonfly: Dragonfly, cluster: ClusterSpec) -> None:
    """Switches to their group, groups to each other.

    A switch reaches its group over all its local links together, (switches_per_group - 1) * links_per_switch_pair *
    local_link, and two groups reach each other over all their global links: the links of either kind evenly used. Two
    switches of a group are two hops apart, not one.
    """
    switches, per_group, hop_s = _numbers(graph, "switch"), dragonfly.switches_per_group, dragonfly.hop_latency_s
    if len(switches) < 2:
        return
    local = (per_group - 1) * dragonfly.links_per_switch_pair * dragonfly.local_link_bytes_per_s
    for switch in switches:
        link(graph, ("switch", switch), ("group", switch // per_group), local, hop_s)
    reached = sorted({switch // per_group for switch in switches})
    adaptive = dragonfly.routing == "adaptive"
    if len(reached) > 1:
        groups = sorted({*reached, *range(dragonfly.groups)}) if adaptive else reached
        for a, b in combinations(groups, 2):
            between = global_bytes_per_s(dragonfly, cluster.node)
            link(graph, ("group", a), ("group", b), between, hop_s, detours=adaptive)


def _torus(graph: Graph, torus: Torus) -> None:
    """Every router to the next one along every side; sides of two have one link, of one none."""
    sizes = [1]
    for side in torus.shape[:0:-1]:
        sizes.insert(0, sizes[0] * side)
    for at in product(*map(range, torus.shape)):
        here = sum(a * size for a, size in zip(at, sizes, strict=True))
        for axis, side in enumerate(torus.shape):
            if side > 1 and not (side == 2 and at[axis] == 1):
                there = here + ((at[axis] + 1) % side - at[axis]) * sizes[axis]
                link(graph, ("router", here), ("router", there), torus.link_bytes_per_s, torus.hop_latency_s)


def _switches(graph: Graph, network: Switches) -> None:
    """Every switch that is reached, to those above it; nothing where only one is reached."""
    above = {one.name: one for one in network.switches}
    reached = [str(vertex[1]) for vertex in graph if vertex[0] == "switch"]
    if len(reached) < 2:
        return
    done: set[str] = set()
    for name in reached:
        while (up := above[name].up) and name not in done:
            done.add(name)
            link(graph, ("switch", name), ("switch", up), above[name].uplink_bytes_per_s, network.hop_latency_s)
            name = up
