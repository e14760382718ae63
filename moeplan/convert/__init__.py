"""Files that people have about their machine, turned into one cluster file in which every guess is marked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moeplan.convert.gathered import Gathered, gather
from moeplan.convert.inside import joined
from moeplan.convert.likeness import Like, domain_like, load_like, node_like, plain_of
from moeplan.convert.missing import check_like
from moeplan.convert.network import network, placed
from moeplan.convert.ports import ports
from moeplan.errors import SpecError
from moeplan.importers import read
from moeplan.importers.found import FoundNode
from moeplan.spec.cluster import ClusterSpec, Node, check_cluster
from moeplan.spec.record import convert
from moeplan.toml_text import Noted, comment, toml_text
from moeplan.units import BytesPerS


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
    topology: str = "",
    nccl_topo: str | Path | None = None,
    name: str = "",
    domain: int = 0,
    gpus_per_node: int = 0,
) -> Converted:
    """The cluster that `files`, or one file, describe together, each in a format that `importers.read` knows.

    What no file says is as in the cluster called `like`, and marked as assumed. `nodes`: host list, or a file of one,
    of a job's nodes. `topology`: which of a topology.yaml. `nccl_topo`: a file that knows which NIC is near which GPU.
    `domain`: nodes in one NVLink domain. `gpus_per_node`: where no file says it. SpecError in one line where files
    contradict each other, something is missing, or what they tell is no cluster.
    """
    files = [files] if isinstance(files, str | Path) else files
    given = gather([Path(file) for file in files], nodes, topology)
    override = _override(nccl_topo)
    found_nodes = [*given.nodes(), *([override] if override else [])]
    check_like(given, found_nodes, like)
    other = load_like(like)
    entries, warnings = _entries(given, found_nodes, other, override, domain, gpus_per_node)
    entries = {"name": name or _name(files), **entries}
    text = _text(entries, given, like, warnings)
    return Converted(text, _loaded(text), tuple(warnings), tuple(given.notes()))


def _override(path: str | Path | None) -> tuple[str, FoundNode] | None:
    if path is None:
        return None
    found = read(Path(path))
    if found.node is None or not found.node.nics or not found.node.gpus:
        raise SpecError(f"--nccl-topo {path}: {found.format} without GPUs and NICs; a topology file of NCCL is right")
    return Path(path).name, found.node


def _name(files: Sequence[str | Path]) -> str:
    return Path(files[0]).stem or "mine"


def _entries(
    given: Gathered,
    found: list[tuple[str, FoundNode]],
    like: Like,
    override: tuple[str, FoundNode] | None,
    domain: int,
    gpus_per_node: int,
) -> tuple[dict[str, Any], list[str]]:
    """The tables of the cluster's file, and warnings."""
    gpus = _gpus(found, like, gpus_per_node)
    node = node_like(like, gpus.value)
    nics = ports(found, like, node, override)
    node = _with_nics(node, nics.entries)
    inside = joined([(name, one) for name, one in found if one.gpus], like, node)
    if domain > 1 and not inside.beyond:
        raise SpecError(f"--domain {domain}: {inside.entries['link'].note}: what joins GPUs ends at the node")
    place = placed(given, domain, domain_like(like, gpus.value) if inside.beyond else 1)
    between = network(given, place, like, node.nics * node.nic_bytes_per_s)
    latencies = {
        "link_latency": like.noted(node.link_latency_s.short()),
        "nic_latency": like.noted(node.nic_latency_s.short()),
    }
    table = {"gpus": gpus, **nics.entries, **inside.entries, **latencies}
    if place.domain.value > 1:
        table["domain"] = place.domain
    gpu, called = _gpu(found, like)
    entries: dict[str, Any] = {
        "calibration": like.noted(like.cluster.calibration),
        **place.entries(given, like),
        "gpu": gpu,
        "node": table,
        "network": between.entries,
    }
    return entries, [*called, *nics.notes, *inside.notes, *place.notes, *between.notes]


def _gpus(found: list[tuple[str, FoundNode]], like: Like, asked: int) -> Noted:
    told = [(name, one.gpus) for name, one in found if one.gpus]
    if len({count for _, count in told}) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in told)
        raise SpecError(f"files of nodes with different numbers of GPUs: {counts}; those of one kind of node are right")
    if told and asked not in (0, told[0][1]):
        raise SpecError(f"--gpus-per-node {asked}: {told[0][0]} has {told[0][1]}")
    if told:
        return Noted(told[0][1], told[0][0])
    return Noted(asked, "--gpus-per-node") if asked else like.noted(like.cluster.node.gpus)


def _with_nics(node: Node, entries: Mapping[str, Noted]) -> Node:
    """`node` with the numbers of NICs and their bandwidth, for what is assumed of other parts."""
    from msgspec import structs

    speed = BytesPerS.parse(entries["nic"].value)
    return structs.replace(node, nics=entries["nics"].value, nic_bytes_per_s=speed, nic_of_gpu=())


def _gpu(found: list[tuple[str, FoundNode]], like: Like) -> tuple[dict[str, Any], list[str]]:
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
    read_from = ", ".join(f"{one.name} ({one.found.format})" for one in given.sources)
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
    return found


def _loaded(text: str) -> ClusterSpec:
    return check_cluster(convert(tomllib.loads(text), ClusterSpec, where="the files together"))
