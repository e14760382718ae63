"""The networks between nodes, told apart by `kind`: trees, rails, dragonflies, tori, and switches one by one.

A node's place is its number in the network, from 0; a job's nodes may take any places. Bandwidths are per direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Literal, TypeAlias

import msgspec

from moeplan.errors import SpecError
from moeplan.hostlist import listed
from moeplan.spec.model import Count, Size
from moeplan.spec.node import Node
from moeplan.spec.record import Record
from moeplan.units import BytesPerS, Seconds

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
MOST_ROUTERS = 2**15
"""Of a torus, all of which are in its graph."""
MOST_GROUPS = 2**10
"""Of a dragonfly, every two of which are an edge of its graph; the largest machines have a tenth."""


class Level(Record):
    """One level of a tree above its leaves."""

    children: Size
    """Switches of the level below under one of this level."""
    uplink_bytes_per_s: BytesPerS = msgspec.field(name="uplink")
    """From one switch of this level upwards, all its cables together."""


class Tree(Record, tag_field="kind", tag="tree"):
    """Leaf switches under one spine, or under `levels` below it; a leaf's nodes are one single-hop group.

    Switches of one level that are joined to the same ones count as one, over whose cables traffic is spread evenly.
    """

    nodes_per_leaf: Size
    uplink_bytes_per_s: BytesPerS = msgspec.field(name="uplink")
    """From one leaf switch upwards, all its cables together."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")
    levels: tuple[Level, ...] = ()
    """Between leaves and spine, from below."""


class FatTree(Record, tag_field="kind", tag="fat-tree"):
    """A tree by the ports of its switches: `oversubscription` times as many of a leaf's go down as up."""

    radix: Annotated[int, msgspec.Meta(ge=2, le=10**4)]
    """Ports of every switch."""
    link_bytes_per_s: BytesPerS = msgspec.field(name="link")
    """Of one port."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")
    levels: Literal[2, 3] = 2
    """With 3, radix / 2 leaves are one pod; above the leaves as much goes up as comes from below."""
    oversubscription: Annotated[float, msgspec.Meta(ge=1, le=64)] = 1.0
    rails: bool = False
    """Whether a leaf serves the NICs of one number, one per node, rather than all of a node's."""


class Rail(Record, tag_field="kind", tag="rail"):
    """Units of nodes with one leaf switch per NIC number: NIC j of a unit's nodes is on its switch j; one spine."""

    nodes_per_unit: Size
    """A unit's nodes are one single-hop group."""
    uplink_bytes_per_s: BytesPerS = msgspec.field(name="uplink")
    """From one leaf switch to the spine, all its cables together."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")


class Dragonfly(Record, tag_field="kind", tag="dragonfly"):
    """Groups of switches: every two switches of a group are linked, and every two groups."""

    nodes_per_switch: Size
    """A switch's nodes are one single-hop group; of `switches_per_node` neighbours, where a node is on several."""
    switches_per_group: Annotated[int, msgspec.Meta(ge=2, le=10**8)]
    local_link_bytes_per_s: BytesPerS = msgspec.field(name="local_link")
    links_per_switch_pair: Size = 1
    """Local links between two switches of a group."""
    global_link_bytes_per_s: BytesPerS = msgspec.field(name="global_link")
    links_per_group_pair: Count = 0
    """Global links between two groups; 0 where `taper` says it."""
    taper: Share | None = None
    """What leaves a full group over what its NICs inject; in place of `links_per_group_pair`."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")
    groups: Count = 0
    """Groups of the whole machine, whose links detours use; 0: as many as the nodes need."""
    routing: Literal["minimal", "adaptive"] = "minimal"
    """Adaptive: what is too much for the links between two groups takes detours over all others alike."""
    switches_per_node: Size = 1
    """Switches that a node's NICs are spread over, one after another; as many nodes' worth share them."""


class Torus(Record, tag_field="kind", tag="torus"):
    """A grid of nodes whose ends are joined, each linked to both neighbours along every side; the last moves first."""

    shape: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=6)]
    link_bytes_per_s: BytesPerS = msgspec.field(name="link")
    """Between two neighbours."""
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")


class Switch(Record):
    """One switch of a network that is told switch by switch."""

    name: str
    nodes: str = ""
    """Host list of the nodes linked to it, by their names in the cluster; a node's NICs are all on one switch."""
    up: str = ""
    """The switch above it; none at the top."""
    uplink_bytes_per_s: BytesPerS = msgspec.field(name="uplink", default=BytesPerS(0.0))
    """To `up`, all cables together."""


class Switches(Record, tag_field="kind", tag="switches"):
    """Switches under one another, as schedulers and fabric managers list them; nodes under different tops are apart."""

    switches: Annotated[tuple[Switch, ...], msgspec.Meta(min_length=1)]
    hop_latency_s: Seconds = msgspec.field(name="hop_latency")


Network: TypeAlias = Tree | FatTree | Rail | Dragonfly | Torus | Switches


def plain(network: Network, node: Node) -> Tree | Rail | Dragonfly | Torus | Switches:
    """`network` with a `FatTree` written as the `Tree` or `Rail` that it is for nodes like `node`.

    A leaf has radix o / (1 + o) ports down, rounded, the rest up. SpecError where they are too few for one node.
    """
    if not isinstance(network, FatTree):
        return network
    down = round(network.radix * network.oversubscription / (1 + network.oversubscription))
    up, each = network.radix - down, 1 if network.rails else max(1, node.nics)
    nodes = down // each
    if not nodes or not up:
        raise SpecError(
            f"network: radix {network.radix} at oversubscription {network.oversubscription:g} leaves {down} ports down"
            f" and {up} up; a leaf needs {each} down and 1 up"
        )
    uplink = BytesPerS(up * network.link_bytes_per_s)
    if network.rails:
        return Rail(nodes_per_unit=nodes, uplink_bytes_per_s=uplink, hop_latency_s=network.hop_latency_s)
    leaves = network.radix // 2
    pods = (Level(children=leaves, uplink_bytes_per_s=BytesPerS(leaves * uplink)),) if network.levels == 3 else ()
    return Tree(nodes_per_leaf=nodes, uplink_bytes_per_s=uplink, hop_latency_s=network.hop_latency_s, levels=pods)


def single_hop_places(network: Network, node: Node) -> int:
    """Neighbouring places of one leaf, rail unit or switch; 1 where each node has a router, or switches differ."""
    match plain(network, node):
        case Tree(nodes_per_leaf=nodes) | Rail(nodes_per_unit=nodes):
            return nodes
        case Dragonfly() as dragonfly:
            return dragonfly.nodes_per_switch * dragonfly.switches_per_node
        case _:
            return 1


def global_bytes_per_s(dragonfly: Dragonfly, node: Node) -> float:
    """Bandwidth from one group to another: links x global link, or taper x injection of a full group / other groups.

    SpecError where neither is given, or both.
    """
    if (dragonfly.taper is None) == (dragonfly.links_per_group_pair == 0):
        raise SpecError("network: a dragonfly takes one of links_per_group_pair and taper")
    if dragonfly.taper is None:
        return dragonfly.links_per_group_pair * dragonfly.global_link_bytes_per_s
    if dragonfly.groups < 2:
        raise SpecError(f"network: groups is {dragonfly.groups}; with taper, how many the machine has, 2 or more")
    injected = dragonfly.nodes_per_switch * dragonfly.switches_per_group * node.nics * node.nic_bytes_per_s
    return dragonfly.taper * injected / (dragonfly.groups - 1)


def bandwidths(network: Network) -> Mapping[str, float]:
    """The bandwidths of `network` by their names in files, all of which are more than 0."""
    match network:
        case Tree(uplink_bytes_per_s=uplink, levels=levels):
            return {"uplink": uplink} | {f"levels[{i}].uplink": one.uplink_bytes_per_s for i, one in enumerate(levels)}
        case Rail(uplink_bytes_per_s=uplink):
            return {"uplink": uplink}
        case FatTree(link_bytes_per_s=link) | Torus(link_bytes_per_s=link):
            return {"link": link}
        case Dragonfly(local_link_bytes_per_s=local, global_link_bytes_per_s=between):
            return {"local_link": local, "global_link": between}
        case Switches(switches=switches):
            return {f"switches.{one.name}.uplink": one.uplink_bytes_per_s for one in switches if one.up}


def check_network(network: Network, node: Node, places: tuple[int, ...], hosts: tuple[str, ...]) -> None:
    """SpecError where `network` has not all `places` of the nodes called `hosts`, or its numbers do not go together."""
    match plain(network, node):
        case Torus(shape=shape):
            if (routers := prod(shape)) > MOST_ROUTERS:
                raise SpecError(f"network: shape has {routers} routers; at most {MOST_ROUTERS}")
            _check_room(places, routers)
        case Dragonfly() as dragonfly:
            _check_dragonfly(dragonfly, node, places)
        case Switches() as switches:
            check_switches(switches, hosts)
        case _:
            pass


def _check_dragonfly(dragonfly: Dragonfly, node: Node, places: tuple[int, ...]) -> None:
    global_bytes_per_s(dragonfly, node)
    per_group, several = dragonfly.nodes_per_switch * dragonfly.switches_per_group, dragonfly.switches_per_node
    if dragonfly.groups:
        _check_room(places, dragonfly.groups * per_group)
    if dragonfly.switches_per_group % several:
        raise SpecError(
            f"network: switches_per_node is {several}; it divides the {dragonfly.switches_per_group} switches of a"
            " group"
        )
    linked = len({place // per_group for place in places})
    if linked > 1 and dragonfly.routing == "adaptive":
        linked = max(linked, dragonfly.groups)
    if linked > MOST_GROUPS:
        raise SpecError(f"network: {linked} groups, every two of which are linked; at most {MOST_GROUPS}")


def _check_room(places: tuple[int, ...], room: int) -> None:
    if max(places) >= room:
        raise SpecError(f"network: a node at place {max(places)}; the network has {room} places, from 0")


def check_switches(network: Switches, hosts: tuple[str, ...]) -> None:
    """SpecError with the first switch without a name, not known, given twice or above itself, or host not on one."""
    names = [one.name for one in network.switches]
    if "" in names:
        raise SpecError(f"network: switch {names.index('')}, counted from 0, has no name")
    above = {one.name: one.up for one in network.switches}
    if twice := next((name for name in names if names.count(name) > 1), None) if len(above) < len(names) else None:
        raise SpecError(f"network: switch {twice!r} is given twice")
    seen: dict[str, str] = {}
    for one in network.switches:
        if one.up and one.up not in above:
            raise SpecError(f"network: switch {one.name!r} is under {one.up!r}, which is not there")
        for host in listed(one.nodes):
            if host in seen:
                raise SpecError(f"network: node {host!r} is on switches {seen[host]!r} and {one.name!r}; one is right")
            seen[host] = one.name
        path, at = {one.name}, one.up
        while at:
            if at in path:
                raise SpecError(f"network: switch {one.name!r} is above itself")
            path.add(at)
            at = above[at]
    if lost := [host for host in hosts if host not in seen]:
        raise SpecError(f"network: node {lost[0]!r} is on no switch")
