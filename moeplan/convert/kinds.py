"""Nodes of several kinds in one machine: files that say which hosts they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from moeplan.convert.node import Files
from moeplan.errors import SpecError
from moeplan.hostlist import expand
from moeplan.importers import read
from moeplan.importers.found import Found, some

KindFiles = Mapping[str, "str | Path | Sequence[str | Path]"]
"""By the host list of nodes of one kind: the file or files about one of them."""


class Source(NamedTuple):
    """A file by its name, and what it says."""

    name: str
    found: Found


class Kind(NamedTuple):
    """Hosts whose node is another than the usual one."""

    hosts: tuple[str, ...]
    sources: tuple[Source, ...]

    def nodes(self) -> Files:
        """The files as descriptions of a node."""
        return [(one.name, one.found.node) for one in self.sources if one.found.node]

    @property
    def names(self) -> str:
        """Of its files."""
        return some([one.name for one in self.sources])


def parse_kinds(texts: Sequence[str]) -> dict[str, list[Path]]:
    """`HOSTS=FILE` as host lists and their files; several files of equal hosts stand together. SpecError otherwise."""
    found: dict[str, list[Path]] = {}
    for text in texts:
        hosts, _, file = text.partition("=")
        if not hosts.strip() or not file.strip():
            raise SpecError(f"--kind {text!r}: right is HOSTS=FILE, such as 'node[05-08]=smi-of-node05.txt'")
        found.setdefault(hosts.strip(), []).append(Path(file))
    return found


def read_kinds(kinds: KindFiles) -> tuple[Kind, ...]:
    """`kinds` with their files read; SpecError for a host that is twice there, and a file that tells no node."""
    found, home = [], dict[str, str]()
    for text, files in kinds.items():
        hosts = expand(text, f"--kind {text}")
        for host in hosts:
            if host in home:
                raise SpecError(f"--kind {text}: node {host} is also of {home[host]}; a node is of one kind")
            home[host] = text
        paths = [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
        found.append(Kind(hosts, tuple(_source(path, text) for path in paths)))
    return tuple(found)


def _source(path: Path, hosts: str) -> Source:
    found = read(path)
    if found.node is None:
        raise SpecError(f"--kind {hosts}={path}: is {found.format}, which tells no node; one of nvidia-smi is right")
    return Source(path.name, found)
