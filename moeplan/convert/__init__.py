"""Files that people have about their machine, turned into one cluster file in which every guess is marked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from moeplan.convert.gathered import Gathered, gather
from moeplan.convert.kinds import Kind, KindFiles, read_kinds
from moeplan.convert.likeness import Like, domain_like, load_like, plain_of
from moeplan.convert.missing import check_like
from moeplan.convert.network import network, placed
from moeplan.convert.node import Files, Made, made
from moeplan.errors import SpecError
from moeplan.hostlist import compress, listed
from moeplan.importers import read
from moeplan.importers.found import FoundNode
from moeplan.spec.cluster import ClusterSpec, check_cluster
from moeplan.spec.record import convert
from moeplan.toml_text import Noted, comment, toml_text


class Converted(NamedTuple):
    """A cluster made of files."""

    toml: str
    """Its file: what each number is from stands beside it."""
    cluster: ClusterSpec
    warnings: tuple[str, ...]
    """What was guessed or left out, a line each; they are in the file too."""
    notes: tuple[str, ...]
    """What the files say of themselves; in the file too."""


def convert_topology(  # noqa: PLR0913
    files: str | Path | Sequence[str | Path],
    like: str = "",
    *,
    nodes: str = "",
    topology_name: str = "",
    kinds: KindFiles = MappingProxyType({}),
    nccl_topo: str | Path | None = None,
    name: str = "",
    domain: int = 0,
    gpus_per_node: int = 0,
) -> Converted:
    """The cluster that `files`, or one file, describe together, each in a format that `importers.read` knows.

    What no file says is as in the cluster called `like`, and marked as assumed. `nodes`: host list, or a file of one,
    of a job's nodes. `topology_name`: which of a topology.yaml. `kinds`: files about nodes of other kinds by host list;
    where they are of all hosts, the largest kind is the usual one. `nccl_topo`: a file that knows which NIC is near
    which GPU of the usual node.
    `domain`: nodes in one NVLink domain. `gpus_per_node`: where no file says it. SpecError in one line where files
    contradict each other, something is missing, or what they tell is no cluster.
    """
    files = [files] if isinstance(files, str | Path) else files
    given = gather([Path(file) for file in files], nodes, topology_name, read_kinds(kinds))
    override = _override(nccl_topo)
    usual, others = _usual(given)
    found_nodes = [*usual, *([override] if override else [])]
    check_like(given, found_nodes, like)
    other = load_like(like)
    first, warnings = made(found_nodes, other, override, gpus_per_node), list[str]()
    fabric = [(told, one) for told, one in given.nodes() if not one.gpus]
    apart = [(kind, made([*kind.nodes(), *fabric], other, None, 0)) for kind in others]
    entries = _entries(given, found_nodes, other, first, apart, domain, warnings)
    if apart:
        _add_kinds(entries, apart, warnings)
    entries = {"name": name or Path(given.every[0].name).stem or "mine", **entries}
    text = _text(entries, given, like, warnings)
    return Converted(text, _loaded(text), tuple(warnings), tuple(given.notes()))


def _override(path: str | Path | None) -> tuple[str, FoundNode] | None:
    if path is None:
        return None
    found = read(Path(path))
    if found.node is None or not found.node.nics or not found.node.gpus:
        raise SpecError(f"--nccl-topo {path}: {found.format} without GPUs and NICs; a topology file of NCCL is right")
    return Path(path).name, found.node


def _usual(given: Gathered) -> tuple[Files, tuple[Kind, ...]]:
    """The files about the usual node, and the other kinds: the largest is usual where every host is of one.

    Files that know adapters only, such as a fabric manager's, speak of all nodes.
    """
    every = {host for kind in given.kinds for host in kind.hosts}
    if not given.kinds or any(one.gpus for _, one in given.nodes()) or not every >= set(given.hosts):
        return given.nodes(), given.kinds
    largest = max(given.kinds, key=lambda kind: len(kind.hosts))
    return [*largest.nodes(), *given.nodes()], tuple(kind for kind in given.kinds if kind is not largest)


def _entries(
    given: Gathered,
    found: Files,
    like: Like,
    first: Made,
    apart: Sequence[tuple[Kind, Made]],
    domain: int,
    warnings: list[str],
) -> dict[str, Any]:
    """The tables of the cluster's file, whose usual node is `first`; what was guessed goes to `warnings`."""
    other = {host: one.nic_bytes_per_s for kind, one in apart for host in kind.hosts}
    if domain > 1 and first.alone:
        raise SpecError(f"--domain {domain}: {first.alone}: what joins GPUs ends at the node")
    gpus = first.entries["gpus"].value
    place = placed(given, domain, 1 if first.alone else domain_like(like, gpus))
    between = network(given, place, like, lambda host: other.get(host, first.nic_bytes_per_s))
    table = dict(first.entries)
    if place.domain.value > 1:
        table["domain"] = place.domain
    gpu, called = _gpu(found, like)
    warnings += [*called, *first.notes, *place.notes, *between.notes]
    return {
        "calibration": like.noted(like.cluster.calibration),
        **place.entries(given, like),
        "gpu": gpu,
        "node": table,
        "network": between.entries,
    }


def _add_kinds(entries: dict[str, Any], apart: Sequence[tuple[Kind, Made]], warnings: list[str]) -> None:
    """Nodes of other kinds in the cluster's file `entries`, those of their hosts that it has."""
    there, usual, tables = set(listed(entries["hosts"].value)), entries["gpu"]["name"].value, []
    for kind, one in apart:
        warnings += one.notes
        names = [(name, found.gpu_name) for name, found in kind.nodes() if found.gpu_name not in ("", usual)]
        warnings += [f"{name}: GPUs are called {called}; all are taken as {usual}" for name, called in names]
        table = one.entries | ({"domain": entries["node"]["domain"]} if "domain" in entries["node"] else {})
        if hosts := [host for host in kind.hosts if host in there]:
            tables.append({"nodes": Noted(compress(hosts), f"--kind: as {kind.names}"), "node": table})
    if tables:
        entries["kinds"] = tables


def _gpu(found: Files, like: Like) -> tuple[dict[str, Any], list[str]]:
    """[gpu], its name from a file where one has it; a warning where that is another than the one assumed."""
    plain = plain_of(like.cluster.gpu)
    peak = {kind: like.noted(value) for kind, value in plain.pop("peak").items()}
    entries = {key: like.noted(value) for key, value in plain.items()} | {"peak": peak}
    name, called = next(((name, one.gpu_name) for name, one in found if one.gpu_name), ("", ""))
    if not called:
        return entries, []
    entries["name"] = Noted(called, name)
    return entries, [f"{name}: GPUs are called {called}; HBM and FLOP/s are those of {like.cluster.gpu.name}"]


def _text(entries: Mapping[str, Any], given: Gathered, like: str, warnings: Sequence[str]) -> str:
    """The file: where it is from, what was guessed, the tables, and the sources once more by number."""
    read_from = ", ".join(f"{one.name} ({one.found.format})" for one in given.every)
    head = [f"Made from {read_from}; what no file says is as in {like}.", "Bandwidths are per direction."]
    head += [f"Note: {line}" for line in (*warnings, *given.notes())]
    return "\n".join([*map(comment, head), toml_text({**entries, "sources": _sources(entries)})])


def _sources(entries: Mapping[str, Any]) -> dict[str, str]:
    """Fields by their names, those of one source together."""
    by_note: dict[str, list[str]] = {}
    for field, note in _notes(entries, ""):
        by_note.setdefault(note, []).append(field)
    return {", ".join(fields): note for note, fields in by_note.items()}


def _notes(entries: Mapping[str, Any], path: str) -> list[tuple[str, str]]:
    """(field, note) of every field; a table whose fields all have one note counts as one."""
    found = []
    for key, value in entries.items():
        if isinstance(value, Noted):
            found.append((path + key, value.note))
        elif isinstance(value, Mapping):
            below = _notes(value, f"{path}{key}.")
            same = {note for _, note in below}
            found += [(path + key, same.pop())] if len(same) == 1 else below
        elif isinstance(value, list):
            for number, one in enumerate(value):
                found += _notes(one, f"{path}{key}[{number}].")
    return found


def _loaded(text: str) -> ClusterSpec:
    return check_cluster(convert(tomllib.loads(text), ClusterSpec, where="the files together"))
