"""Hosts in the order of their machine instead of their names."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.errors import SpecError
from moeplan.importers.found import Found, some


def in_order(found: Found, hosts: Sequence[str]) -> tuple[str, ...]:
    """`hosts` so that those of a block or leaf switch stand together, and leaves of one switch beside each other.

    Leaves and hosts keep the order of the file. Blocks go before switches, as they are joined more closely. SpecError
    where a host is not in the file or named twice.
    """
    known, asked = set(found.hosts), set(hosts)
    if lost := [host for host in hosts if host not in known]:
        raise SpecError(f"hosts {some(lost)} are not in the topology of {len(found.hosts)} hosts")
    if len(asked) < len(hosts):
        raise SpecError(f"{len(hosts) - len(asked)} hosts are named twice; once is right")
    return tuple(host for host in _all(found) if host in asked)


def _all(found: Found) -> list[str]:
    """Every host once, block by block, or leaf by leaf from the highest switches down."""
    by_switch = _from_the_top(found)
    place = {host: i for i, host in enumerate(by_switch)}
    in_blocks = sorted(found.blocks, key=lambda block: min(place.get(host, 0) for host in block.hosts))
    hosts = [host for block in in_blocks for host in block.hosts]
    return list(dict.fromkeys([*hosts, *by_switch, *found.hosts]))


def _from_the_top(found: Found) -> list[str]:
    """Hosts of the switches, depth first from those that have none above them."""
    below: dict[str, list[str]] = {}
    for switch in found.switches:
        for name, _, _ in switch.up:
            below.setdefault(name, []).append(switch.name)
    hosts = {switch.name: switch.hosts for switch in found.switches}
    open_names = [switch.name for switch in reversed(found.switches) if not switch.up]
    seen: dict[str, None] = {}
    while open_names:
        name = open_names.pop()
        if name not in seen:
            seen[name] = None
            open_names += reversed(below.get(name, []))
    return [host for name in (*seen, *hosts) for host in hosts[name]]
