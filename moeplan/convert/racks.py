"""Blocks of nodes as NVLink domains, where they can be, and as leaf switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan.convert.fabric import Merged
from moeplan.errors import SpecError
from moeplan.importers.blocks import groups_in
from moeplan.importers.found import FoundBlock, some


class Racks(NamedTuple):
    """What blocks say of NVLink."""

    domain: int
    """Nodes of one NVLink domain; 1 where NVLink ends at the node."""
    hosts: tuple[str, ...]
    """Those that are in whole domains, so that neighbours of `domain` are one."""
    notes: tuple[str, ...]


def racks(blocks: Sequence[FoundBlock], hosts: Sequence[str], asked: int, like: int) -> Racks:
    """The domain of `blocks`, whose `hosts` are in the order of the machine.

    `asked`: nodes of a domain as the user says, 0 where not; `like`: those of the machine that is like it. Where NVLink
    goes beyond a node and all blocks have as many nodes, that is the domain. SpecError where no domain that is asked
    for is whole.
    """
    sizes = [len(block.hosts) for block in blocks]
    if asked > 1:
        return _whole(blocks, hosts, asked)
    if asked == 1 or like == 1:
        how = "--domain 1" if asked else "NVLink of the machine that is like it ends at the node"
        return Racks(1, tuple(hosts), (f"blocks are leaf switches and no NVLink domains: {how}",))
    if len(set(sizes)) == 1:
        return _whole(blocks, hosts, sizes[0])
    told = ", ".join(map(str, sorted(set(sizes))))
    hint = "--domain N makes domains of N nodes, whole ones out of each block"
    return Racks(1, tuple(hosts), (f"blocks of {told} nodes are no domains of one size: leaf switches only; {hint}",))


def _whole(blocks: Sequence[FoundBlock], hosts: Sequence[str], domain: int) -> Racks:
    place = {host: i for i, host in enumerate(hosts)}
    inside = [sorted(block.hosts, key=place.__getitem__) for block in blocks]
    groups = groups_in(blocks, domain)
    taken = {host for own, count in zip(inside, groups.per_block, strict=True) for host in own[: count * domain]}
    if not taken:
        largest = max(map(len, inside))
        raise SpecError(f"--domain {domain}: no block has so many nodes; the largest has {largest}")
    notes = []
    if lost := [host for host in hosts if host not in taken]:
        notes.append(f"{len(lost)} nodes are in no whole domain of {domain} nodes and left out: {some(lost)}")
    if any(count > 1 for count in groups.per_block):
        notes.append(f"blocks hold several domains of {domain} nodes, between which only the network is counted")
    return Racks(domain, tuple(host for host in hosts if host in taken), tuple(notes))


def leaves(blocks: Sequence[FoundBlock], kept: Sequence[str]) -> tuple[Merged, ...]:
    """Each block with nodes in `kept` as a leaf switch, all under one above them where there are several."""
    have = set(kept)
    inside = {block.name: tuple(host for host in block.hosts if host in have) for block in blocks}
    inside = {name: hosts for name, hosts in inside.items() if hosts}
    if len(inside) == 1:
        return tuple(Merged(name, hosts, below=len(hosts)) for name, hosts in inside.items())
    top = "spine" if "spine" not in inside else "spine of blocks"
    below = [Merged(name, hosts, top, below=len(hosts)) for name, hosts in inside.items()]
    return (*below, Merged(top, (), below=len(have)))
