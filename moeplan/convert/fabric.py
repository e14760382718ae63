"""Switches as files give them, put together into a tree: rails of a unit are one switch, and so are parallel spines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moeplan.importers.found import FoundSwitch, some


class Merged(NamedTuple):
    """One or several switches that count as one."""

    name: str
    hosts: tuple[str, ...]
    up: str = ""
    """The one above; "" at the top."""
    uplink_bytes_per_s: float = 0.0
    """Upwards, all cables together; 0 where the file does not say."""
    below: int = 0
    """Nodes on it and on those below it."""


class Tree(NamedTuple):
    """All of them in the order of the file, and what was done."""

    merged: tuple[Merged, ...]
    notes: tuple[str, ...]


def merge(switches: Sequence[FoundSwitch]) -> Tree:
    """`switches` as a tree.

    Switches that share a host (rails) are one, and those above one switch are one, over which its traffic is spread
    evenly: its uplink is cables x rate over all of them. Where the highest switches are linked with each other, one
    above them is assumed, with all these cables. Switches without hosts below are left out.
    """
    sets = _Sets(switches)
    notes = _join_rails(sets, switches)
    for level in sorted(set(sets.level.values())):
        for members in sets.groups().values():
            if max(sets.level[name] for name in members) == level:
                above = sets.above(members)
                for name in above:
                    sets.join(above[0], name)
    groups, hosts = sets.groups(), {switch.name: switch.hosts for switch in switches}
    called = {first: first + (f"+{len(members) - 1}" if members[1:] else "") for first, members in groups.items()}
    merged = counted([_merged(sets, members, hosts, called) for members in groups.values()])
    upper = [members for members in groups.values() if min(sets.level[name] for name in members) > 0]
    if parallel := sum(len(members) for members in upper if len(members) > 1):
        notes.append(f"{parallel} switches that are joined to the same ones below are taken as one at each place")
    return _with_top(merged, _across(sets, called), notes)


def counted(merged: Sequence[Merged]) -> list[Merged]:
    """`merged` with the nodes below each; without those that have none."""
    up = {one.name: one.up for one in merged}
    below: Counter[str] = Counter()
    for one in merged:
        at = one.name
        while at:
            below[at] += len(one.hosts)
            at = up[at]
    return [one._replace(below=below[one.name]) for one in merged if below[one.name]]


class _Sets:
    """Which switches count as one: every set goes by the first of its members in the file."""

    def __init__(self, switches: Sequence[FoundSwitch]) -> None:
        self.level = {switch.name: switch.level for switch in switches}
        self.up = {switch.name: switch.up for switch in switches}
        self._first = {switch.name: switch.name for switch in switches}
        self._place = {switch.name: i for i, switch in enumerate(switches)}

    def first(self, name: str) -> str:
        while self._first[name] != name:
            name = self._first[name]
        return name

    def join(self, a: str, b: str) -> None:
        one, other = sorted((self.first(a), self.first(b)), key=self._place.__getitem__)
        self._first[other] = one

    def groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name in self._first:
            found[self.first(name)].append(name)
        return found

    def above(self, members: Sequence[str]) -> list[str]:
        """The switches of the lowest level above `members` that are linked with them."""
        own = max(self.level[name] for name in members)
        peers = dict.fromkeys(peer for name in members for peer, _, _ in self.up[name] if self.level[peer] > own)
        lowest = min((self.level[peer] for peer in peers), default=0)
        return [peer for peer in peers if self.level[peer] == lowest]


def _join_rails(sets: _Sets, switches: Sequence[FoundSwitch]) -> list[str]:
    on: dict[str, str] = {}
    for switch in switches:
        for host in switch.hosts:
            sets.join(on.setdefault(host, switch.name), switch.name)
    units = [members for members in sets.groups().values() if len(members) > 1]
    if not units:
        return []
    count = sum(map(len, units))
    return [f"{count} switches share hosts, as rails do: taken as {len(units)}, one for each unit of nodes"]


def _merged(
    sets: _Sets, members: Sequence[str], hosts: Mapping[str, Sequence[str]], called: Mapping[str, str]
) -> Merged:
    """One set, `called` by its first member and how many others there are."""
    own, above = max(sets.level[name] for name in members), sets.above(members)
    cables = [rate * count for name in members for peer, rate, count in sets.up[name] if sets.level[peer] > own]
    on = dict.fromkeys(host for name in members for host in hosts[name])
    up = called[sets.first(above[0])] if above else ""
    return Merged(called[members[0]], tuple(on), up, sum(cables) if all(cables) else 0.0)


def _across(sets: _Sets, called: Mapping[str, str]) -> Counter[str]:
    """The cables of each set to others of its level, in bytes per second."""
    found: Counter[str] = Counter()
    for name, ups in sets.up.items():
        for peer, rate, count in ups:
            ends = {sets.first(name), sets.first(peer)}
            if sets.level[peer] == sets.level[name] and len(ends) == 2:
                found.update({called[end]: rate * count for end in ends})
    return found


def _with_top(merged: Sequence[Merged], across: Counter[str], notes: list[str]) -> Tree:
    tops = [one.name for one in merged if not one.up]
    if len(tops) < 2:
        return Tree(tuple(merged), tuple(notes))
    if not all(across[name] for name in tops):
        apart = f"{len(tops)} switches have none above them: nodes under different ones are apart: {some(tops)}"
        return Tree(tuple(merged), (*notes, apart))
    notes.append(f"assumed: one switch, top, above the {len(tops)} highest, which are linked with each other")
    lower = [one if one.up else one._replace(up="top", uplink_bytes_per_s=float(across[one.name])) for one in merged]
    return Tree((*lower, Merged("top", (), below=sum(one.below for one in merged if not one.up))), tuple(notes))
