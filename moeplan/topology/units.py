"""The rack and the group of each node: what it shares its first switch with, and the switches above that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from moeplan.errors import SpecError
from moeplan.hostlist import listed
from moeplan.spec.cluster import hosts_of, pick, places_of
from moeplan.spec.network import Dragonfly, Rail, Switches, Torus, Tree, plain

if TYPE_CHECKING:
    from moeplan.importers.found import Found
    from moeplan.spec.cluster import ClusterSpec


class Unit(NamedTuple):
    """Where a node is."""

    rack: str
    """Its NVLink domain or block, else its leaf, rail unit or switch."""
    group: str
    """Its dragonfly group or pod, else what is above its rack; "" where nothing is, or is not known."""


def units_of(cluster: ClusterSpec) -> dict[str, Unit]:
    """The unit of each of the job's nodes by name, in the order of the job.

    Of a tree the group is the level above the leaves, of an NVLink domain its leaf, unit or switch. SpecError for a
    torus, whose nodes have a router each.
    """
    units = dict(zip(hosts_of(cluster), _by_network(cluster), strict=True))
    domain = cluster.node.domain
    if domain == 1:
        return units
    at = zip(units.items(), places_of(cluster), strict=True)
    return {host: Unit(f"domain {place // domain}", unit.rack) for (host, unit), place in at}


def _by_network(cluster: ClusterSpec) -> list[Unit]:
    places = places_of(cluster)
    match plain(cluster.network, cluster.node):
        case Tree(nodes_per_leaf=nodes, levels=levels):
            pod = nodes * levels[0].children if levels else 0
            return [Unit(f"leaf {p // nodes}", f"pod {p // pod}" if pod else "") for p in places]
        case Rail(nodes_per_unit=nodes):
            return [Unit(f"unit {p // nodes}", "") for p in places]
        case Dragonfly() as dragonfly:
            rack = dragonfly.nodes_per_switch * dragonfly.switches_per_node
            group = dragonfly.nodes_per_switch * dragonfly.switches_per_group
            return [Unit(f"switch {p // rack}", f"group {p // group}") for p in places]
        case Switches(switches=switches):
            above = {switch.name: switch.up for switch in switches}
            at = {host: switch.name for switch in switches for host in listed(switch.nodes)}
            return [Unit(at[host], above[at[host]]) for host in hosts_of(cluster)]
        case Torus():
            raise SpecError(f"cluster {cluster.name}: network is a torus, which has no racks; a tree or dragonfly has")


def units_in(found: Found) -> dict[str, Unit]:
    """The unit of each host of a file: its block and the switch that it is on, or that switch and the one above.

    SpecError where the file has neither blocks nor switches. A host on several switches is of the first.
    """
    if not (found.blocks or found.switches):
        raise SpecError(f"{found.format}: no switches or blocks in it; a topology file has them")
    units: dict[str, Unit] = {}
    for switch in found.switches:
        for host in switch.hosts:
            units.setdefault(host, Unit(switch.name, switch.up[0][0] if switch.up else ""))
    for block in found.blocks:
        units |= {host: Unit(block.name, units[host].rack if host in units else "") for host in block.hosts}
    return units


def together(cluster: ClusterSpec) -> ClusterSpec:
    """`cluster` whose job's nodes stand group by group, rack by rack and in the order of their places.

    As it is where the job has the first nodes of the machine, or the network is a torus.
    """
    if not cluster.use or isinstance(cluster.network, Torus):
        return cluster
    ordered = sorted_by_place(cluster)
    return cluster if ordered == hosts_of(cluster) else pick(cluster, ",".join(ordered))


def sorted_by_place(cluster: ClusterSpec) -> tuple[str, ...]:
    """The job's nodes group by group and rack by rack, each in the order of its first place."""
    place = dict(zip(hosts_of(cluster), places_of(cluster), strict=True))
    if isinstance(cluster.network, Torus):
        return tuple(sorted(place, key=place.__getitem__))
    return in_units(sorted(place, key=place.__getitem__), units_of(cluster))


def in_units(hosts: Sequence[str], units: dict[str, Unit]) -> tuple[str, ...]:
    """`hosts` group by group and rack by rack, each where its first host is; the others keep their order."""
    group: dict[str, int] = {}
    rack: dict[Unit, int] = {}
    for host in hosts:
        unit = units[host]
        group.setdefault(unit.group, len(group))
        rack.setdefault(unit, len(rack))
    return tuple(sorted(hosts, key=lambda host: (group[units[host].group], rack[units[host]])))
