"""The switches of a Slurm tree, checked: every child exists, nothing is named twice, no switch is above itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.importers.found import FoundSwitch, some, unique


class Entry(NamedTuple):
    """A switch as a file gives it. `nodes` may hold those of its children too where `level` is given."""

    name: str
    where: str
    nodes: tuple[str, ...]
    children: tuple[str, ...]
    level: int | None = None


def switches_of(entries: Sequence[Entry], where: str) -> tuple[FoundSwitch, ...]:
    """The switches in their order in the file; the level is the longest way down to a switch without children.

    Speeds and cables are not in such files. SpecError names the switch that is twice, lacks a child, has neither nodes
    nor children, is above itself, or contradicts its own level or node list.
    """
    by_name = _by_name(entries)
    levels: dict[str, int] = {}
    below: dict[str, set[str]] = {}
    for name in _children_first(by_name, where):
        entry = by_name[name]
        levels[name] = 1 + max((levels[child] for child in entry.children), default=-1)
        under = set[str]().union(*(below[child] for child in entry.children))
        _check_level(entry, levels[name], under)
        below[name] = under | set(entry.nodes)
    parents = _parents(entries)
    return tuple(
        FoundSwitch(
            entry.name,
            _direct(entry, below),
            tuple((parent, 0.0, 0) for parent in parents.get(entry.name, ())),
            levels[entry.name],
        )
        for entry in entries
    )


def notes_of(switches: Sequence[FoundSwitch]) -> tuple[str, ...]:
    """What a reader should know of a tree: several roots, hosts on several switches."""
    if not switches:
        return ()
    notes = ["speeds and numbers of cables between switches are not in the file"]
    roots = [switch.name for switch in switches if not switch.up]
    if len(roots) > 1:
        notes.append(f"no common root: {len(roots)} switches have none above them: {some(roots)}")
    placed = Counter(host for switch in switches for host in switch.hosts)
    if twice := [host for host, times in placed.items() if times > 1]:
        notes.append(f"{len(twice)} hosts are on more than one switch: {some(twice)}")
    return tuple(notes)


def _by_name(entries: Sequence[Entry]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise SpecError(f"{entry.where}: switch {entry.name} is given twice; once is right")
        if not entry.nodes and not entry.children:
            raise SpecError(
                f"{entry.where}: switch {entry.name} has neither nodes nor switches below it; the file may be cut"
            )
        found[entry.name] = entry
    for entry in entries:
        if lost := [child for child in entry.children if child not in found]:
            raise SpecError(
                f"{entry.where}: switch {entry.name} is above {some(lost)}, not described in the file; it may be cut"
            )
    return found


def _children_first(by_name: dict[str, Entry], where: str) -> tuple[str, ...]:
    try:
        return tuple(TopologicalSorter({name: entry.children for name, entry in by_name.items()}).static_order())
    except CycleError as error:
        loop = " above ".join(reversed(error.args[1]))
        raise SpecError(f"{where}: a switch is above itself: {loop}") from None


def _check_level(entry: Entry, level: int, under: set[str]) -> None:
    """SpecError where `scontrol` states another level than the switches below give, or not all nodes below."""
    if entry.level is None:
        return
    if entry.level != level:
        raise SpecError(f"{entry.where}: switch {entry.name} has Level={entry.level}, its Switches give {level}")
    if lost := sorted(under - set(entry.nodes)):
        raise SpecError(f"{entry.where}: switch {entry.name} lists not all nodes below it: {some(lost)} missing")


def _direct(entry: Entry, below: dict[str, set[str]]) -> tuple[str, ...]:
    """The nodes of a switch that none of its children has."""
    under = set[str]().union(*(below[child] for child in entry.children))
    return tuple(node for node in unique(entry.nodes) if node not in under)


def _parents(entries: Sequence[Entry]) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = {}
    for entry in entries:
        for child in unique(entry.children):
            parents.setdefault(child, []).append(entry.name)
    return parents
