"""The NICs of a node and which GPU each one serves, from the files that know of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan.convert.likeness import Like, rate
from moeplan.importers.assign import Assigned, assign
from moeplan.importers.found import FoundNode, some
from moeplan.spec.cluster import Node
from moeplan.toml_text import Noted


class Ports(NamedTuple):
    """Entries of [node], the bandwidth of one NIC, and what was guessed."""

    entries: dict[str, Noted]
    notes: tuple[str, ...]


def ports(
    files: Sequence[tuple[str, FoundNode]], like: Like, node: Node, override: tuple[str, FoundNode] | None
) -> Ports:
    """`nics`, `nic` and `nic_of_gpu` of a node that `files` describe; as in `node`, that of `like`, where none does.

    Adapters slower than the fastest are for other traffic and left out. Several ports that serve one GPU alone are one
    NIC. `override` is a file that knows how near NICs are to GPUs. SpecError where it has other numbers of them.
    """
    with_gpus = [(name, one) for name, one in files if one.gpus and one.nics]
    if override and not with_gpus:
        with_gpus = [override]
    if not with_gpus:
        return _by_fabric([(name, one) for name, one in files if one.nics], like, node)
    name, found = with_gpus[0]
    found, notes = _fastest(name, found)
    given = assign(found, _fastest(*override)[0] if override else None)
    notes += [
        f"{other} counts {len(one.nics)} ports of a host, {name} {len(found.nics)}: {name} is taken"
        for other, one in files
        if one.nics and len(_fastest(other, one)[0].nics) != len(found.nics)
    ]
    notes = [*notes, *(f"{override[0] if override else name}: {note}" for note in given.notes)]
    told = f"{name}, {override[0]}" if override and override[0] != name else name
    bytes_per_s, said = _speed(name, found, files)
    many = _bonded(given)
    nics, nic_of_gpu = len(found.nics), list(given.nic_of_gpu)
    if many > 1:
        notes.append(f"{name}: {many} ports serve each GPU: taken as one NIC")
        nics, nic_of_gpu, bytes_per_s = len(nic_of_gpu), list(range(len(nic_of_gpu))), bytes_per_s * many
        said += f", {many} ports"
    speed = Noted(rate(bytes_per_s), said) if bytes_per_s else like.noted(node.nic_bytes_per_s.short())
    entries = {"nics": Noted(nics, told), "nic": speed, "nic_of_gpu": Noted(nic_of_gpu, told)}
    return Ports(entries, tuple(notes))


def _by_fabric(files: Sequence[tuple[str, FoundNode]], like: Like, node: Node) -> Ports:
    """NICs of hosts as a fabric manager sees them, which knows no GPUs."""
    if not files:
        kept = {"nic_of_gpu": like.noted(list(node.nic_of_gpu))} if node.nic_of_gpu else {}
        own = like.cluster.node
        scaled = f"{like.note}, {own.nics} for {own.gpus} GPUs"
        nics = like.noted(node.nics) if node.nics == own.nics else Noted(node.nics, scaled)
        return Ports({"nics": nics, "nic": like.noted(node.nic_bytes_per_s.short()), **kept}, ())
    name, found = files[0]
    found, notes = _fastest(name, found)
    bytes_per_s = found.nics[0].bytes_per_s
    speed = Noted(rate(bytes_per_s), name) if bytes_per_s else like.noted(node.nic_bytes_per_s.short())
    told = f"assumed: {name} does not say which GPU each of {len(found.nics)} NICs serves: in index order"
    return Ports({"nics": Noted(len(found.nics), name), "nic": speed}, (*notes, told))


def _fastest(name: str, found: FoundNode) -> tuple[FoundNode, list[str]]:
    """`found` with those of its NICs that are as fast as any; all where speeds are not known."""
    most = max(nic.bytes_per_s for nic in found.nics)
    kept = [i for i, nic in enumerate(found.nics) if nic.bytes_per_s in (0.0, most)]
    if len(kept) == len(found.nics):
        return found, []
    new = {old: i for i, old in enumerate(kept)}
    every = tuple(range(len(kept)))
    near = tuple(tuple(new[nic] for nic in nics if nic in new) or every for nics in found.nic_of_gpu)
    slower = some([nic.name for nic in found.nics if nic.bytes_per_s not in (0.0, most)])
    left = found._replace(nics=tuple(found.nics[i] for i in kept), nic_of_gpu=near)
    return left, [f"{name}: slower than {rate(most)} and left out: {slower}"]


def _speed(name: str, found: FoundNode, files: Sequence[tuple[str, FoundNode]]) -> tuple[float, str]:
    """Bandwidth of a NIC and the file that says it: the node's own, else any other; 0 where none does."""
    for other, nics in ((name, found.nics), *((other, one.nics) for other, one in files)):
        if most := max((nic.bytes_per_s for nic in nics), default=0.0):
            return most, other
    return 0.0, ""


def _bonded(given: Assigned) -> int:
    """Ports of each GPU, where all GPUs have as many and no two GPUs share one; else 1."""
    every = [nic for nics in given.nics_of_gpu for nic in nics]
    many = {len(nics) for nics in given.nics_of_gpu}
    return many.pop() if len(many) == 1 and len(set(every)) == len(every) else 1
