"""Several files about one machine, side by side: which of them speaks of what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from moeplan.convert.kinds import Kind, Source
from moeplan.errors import SpecError
from moeplan.hostlist import expand
from moeplan.importers import read, slurm_yaml
from moeplan.importers.clean import cleaned, text_of
from moeplan.importers.found import Found, FoundBlock, FoundNode, FoundSwitch, some, unique
from moeplan.importers.order import in_order
from moeplan.spec.record import read_bytes

T = TypeVar("T")
_NAME = re.compile(r"(?![.-])[A-Za-z0-9._:;/@+-]+")
"""As `hostlist` reads names."""


class Gathered(NamedTuple):
    """What all files say. Names of files stand beside it; "" where none says it."""

    sources: tuple[Source, ...]
    hosts: tuple[str, ...]
    """In the order of the machine."""
    hosts_from: str
    job: tuple[str, ...]
    """The nodes of a job, those of a leaf or block together; empty where all are meant."""
    job_from: str
    switches: tuple[FoundSwitch, ...]
    switches_from: str
    blocks: tuple[FoundBlock, ...]
    blocks_from: str
    kinds: tuple[Kind, ...] = ()
    """Nodes that have files of their own."""

    @property
    def every(self) -> tuple[Source, ...]:
        """All files, also those of kinds."""
        return (*self.sources, *(one for kind in self.kinds for one in kind.sources))

    def nodes(self) -> list[tuple[str, FoundNode]]:
        """The files that describe a node."""
        return [(one.name, one.found.node) for one in self.sources if one.found.node]

    def notes(self) -> list[str]:
        """What the files say of themselves."""
        return [f"{one.name}: {note}" for one in self.every for note in one.found.notes]


def gather(files: Sequence[Path], nodes: str = "", topology: str = "", kinds: tuple[Kind, ...] = ()) -> Gathered:
    """`files` read and put side by side; `nodes` is a host list, or a file of one, of the nodes of a job.

    Where no file names hosts, those of `kinds` are all. SpecError as `importers.read`, and where two files tell the
    switches, the blocks or a job, or a node is not there.
    """
    if not files and not kinds:
        raise SpecError("no file to convert; at least one")
    sources = _read(files, topology)
    switches_from, switches = _only(sources, "switches", lambda found: found.switches)
    blocks_from, blocks = _only(sources, "blocks", lambda found: found.blocks)
    job_from, job = _only(sources, "nodes of a job", lambda found: found.hosts if found.format == "hosts" else ())
    placed = [one for one in sources if one.found.format != "hosts" and one.found.hosts]
    known = unique(tuple(host for one in placed for host in one.found.hosts))
    _check_together(sources, switches, blocks)
    machine = Found("all", None, known, switches, blocks, ())
    if nodes:
        if job:
            raise SpecError(f"--nodes and {job_from} both tell the nodes of a job; one is right")
        job_from, job = "--nodes", _listed(nodes)
    if known:
        known, hosts_from = in_order(machine, known), " and ".join(one.name for one in placed)
    elif job:
        known, hosts_from, job = job, job_from, ()
    else:
        known, hosts_from = _of_kinds(kinds, sources)
    if job:
        job = in_order(machine, job)
    _check_kinds(kinds, known, hosts_from)
    return Gathered(sources, known, hosts_from, job, job_from, switches, switches_from, blocks, blocks_from, kinds)


def _of_kinds(kinds: Sequence[Kind], sources: Sequence[Source]) -> tuple[tuple[str, ...], str]:
    """The hosts of `kinds`, which are all there are, and who says so; SpecError where a file is of other hosts."""
    usual = next((one.name for one in sources if one.found.node and one.found.node.gpus), "")
    if kinds and usual:
        raise SpecError(f"--kind: nothing says which hosts are as in {usual}; --nodes with all of them is right")
    return tuple(host for kind in kinds for host in kind.hosts), "--kind" if kinds else ""


def _check_kinds(kinds: Sequence[Kind], known: Sequence[str], hosts_from: str) -> None:
    there = set(known)
    for kind in kinds:
        if lost := [host for host in kind.hosts if host not in there]:
            raise SpecError(f"--kind: nodes {some(lost)} of {kind.names} are not among the hosts of {hosts_from}")


def _check_together(sources: Sequence[Source], switches: Sequence[FoundSwitch], blocks: Sequence[FoundBlock]) -> None:
    """SpecError for a node of a block that is on none of the switches, and for a name that no host list can hold."""
    on = {host for switch in switches for host in switch.hosts}
    lost = [host for block in blocks for host in block.hosts if switches and host not in on]
    if lost:
        raise SpecError(f"nodes {some(lost)} are in a block and on no switch; two files about the same nodes are right")
    for one in sources:
        if wrong := next((host for host in one.found.hosts if not _NAME.fullmatch(host)), None):
            raise SpecError(f"{one.name}: {wrong!r} is no name of a node; letters, digits and ._:;/@+- are right")


def _read(files: Sequence[Path], topology: str) -> tuple[Source, ...]:
    named = [path for path in files if topology and slurm_yaml.looks_like(_text(path))]
    if topology and not named:
        raise SpecError(f"--topology-name {topology}: none of {some([path.name for path in files])} is a topology.yaml")
    return tuple(Source(path.name, read(path, topology if path in named else "")) for path in files)


def _text(path: Path) -> str:
    return cleaned(text_of(read_bytes(path), str(path)))


def _only(sources: Sequence[Source], what: str, part: Callable[[Found], tuple[T, ...]]) -> tuple[str, tuple[T, ...]]:
    """The only file that has a `part` that is not empty, and that part."""
    found = [(one.name, part(one.found)) for one in sources if part(one.found)]
    if len(found) > 1:
        raise SpecError(f"{some([name for name, _ in found])} all tell {what}; one file is right")
    return found[0] if found else ("", ())


def _listed(nodes: str) -> tuple[str, ...]:
    """The hosts of a list, or of a file that holds one."""
    path = Path(nodes)
    if "[" not in nodes and "," not in nodes and path.is_file():
        found = read(path)
        if found.format != "hosts":
            raise SpecError(f"--nodes {nodes}: is {found.format}; a host list or a file of one is right")
        return found.hosts
    hosts = expand(nodes, "--nodes")
    if len(set(hosts)) < len(hosts):
        raise SpecError(f"--nodes {nodes}: {len(hosts) - len(set(hosts))} hosts are named twice; once is right")
    return hosts
