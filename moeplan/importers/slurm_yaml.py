"""Slurm's topology.yaml: several named topologies, of which one is read."""

from __future__ import annotations

import re
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.importers.blocks import block_notes, check_blocks, check_sizes
from moeplan.importers.found import Found, FoundBlock, some, unique
from moeplan.importers.plain_yaml import Yaml, load
from moeplan.importers.slurm import NOT_IN_FILE, names_in, whole
from moeplan.importers.tree import Entry, notes_of, switches_of

_KINDS = ("tree", "block", "flat", "ring", "torus3d")
"""topology.yaml(5): each topology has exactly one of them."""


class _Topology(NamedTuple):
    name: str
    kind: str
    default: bool
    body: Yaml
    where: str


def looks_like(text: str) -> bool:
    """Whether `text` has the key `topology` at the start of an item."""
    return bool(re.search(r"^\s*-\s+topology\s*:", text, re.IGNORECASE | re.MULTILINE))


def read_slurm_yaml(text: str, where: str, topology: str = "") -> Found:
    """The topology named `topology` (in any case), else the first with `cluster_default: true`, else the only one.

    All of them are checked; the notes list the others. SpecError where one is broken, none is the default, or the one
    meant has no switches or blocks: a flat topology. A ring and a torus give their hosts only.
    """
    document = load(text, where)
    if not isinstance(document, list):
        raise SpecError(f"{where}: no list of topologies; each begins with `- topology: NAME`")
    found = [_topology(item, where) for item in document]
    names = [one.name.lower() for one in found]
    if len(set(names)) < len(names):
        raise SpecError(f"{where}: a topology is named twice: {some([one.name for one in found])}")
    read = {one.name: _READERS[one.kind](one) for one in found}
    chosen = _chosen(found, topology, where)
    if not read[chosen.name].hosts:
        with_hosts = [name for name, one in read.items() if one.hosts]
        raise SpecError(
            f"no switches or blocks found in {where}: topology {chosen.name} is {chosen.kind};"
            f" right is one of {some(with_hosts) or 'the kinds tree and block'}"
        )
    others = [f"{one.name} ({one.kind})" for one in found if one.name != chosen.name]
    note = f"topology {chosen.name} ({chosen.kind}) of {len(found)} is read"
    which = (f"{note}; not read: {some(others, 8)}" if others else note,)
    return read[chosen.name]._replace(notes=(*which, *read[chosen.name].notes))


def _topology(item: Yaml, where: str) -> _Topology:
    fields = _fields(item, where)
    name = _text(fields, "topology", where)
    at = f"{where}: topology {name}"
    kinds = [kind for kind in _KINDS if kind in fields]
    if len(kinds) != 1:
        raise SpecError(f"{at} has {some(kinds) or 'no kind'}; exactly one of {', '.join(_KINDS)} is right")
    if wrong := fields.keys() - {"topology", "cluster_default", kinds[0]}:
        raise SpecError(f"{at}: unknown key {some(sorted(wrong))}")
    default = _text(fields, "cluster_default", at).lower() if "cluster_default" in fields else "false"
    if default not in ("true", "false"):
        raise SpecError(f"{at}: cluster_default is {default!r}; true or false is right")
    return _Topology(name, kinds[0], default == "true", fields[kinds[0]], at)


def _chosen(found: list[_Topology], name: str, where: str) -> _Topology:
    fits = [one for one in found if one.name.lower() == name.lower()] if name else [one for one in found if one.default]
    if not fits and not name and len(found) == 1:
        return found[0]
    if not fits:
        said = f"topology {name!r} is not in the file" if name else "no topology has cluster_default: true"
        raise SpecError(f"{where}: {said}; name one of {some([one.name for one in found], 8)}")
    return fits[0]


def _tree(one: _Topology) -> Found:
    entries = []
    for item in _list(_fields(one.body, one.where), "switches", one.where):
        fields = _fields(item, one.where)
        name = _text(fields, "switch", one.where)
        at = f"{one.where}: switch {name}"
        entries.append(Entry(name, at, _hosts(fields, "nodes", at), _hosts(fields, "children", at)))
    switches = switches_of(entries, one.where)
    hosts = unique(tuple(host for switch in switches for host in switch.hosts))
    return Found("slurm", None, hosts, switches, (), (NOT_IN_FILE, *notes_of(switches)))


def _block(one: _Topology) -> Found:
    body = _fields(one.body, one.where)
    blocks = tuple(_named(body, "blocks", "block", one.where))
    check_blocks(blocks, one.where)
    texts = _list(body, "block_sizes", one.where) if "block_sizes" in body else []
    sizes = check_sizes([whole(str(text), f"{one.where}: block_sizes") for text in texts], one.where)
    hosts = unique(tuple(host for block in blocks for host in block.hosts))
    return Found("slurm", None, hosts, (), blocks, (NOT_IN_FILE, *block_notes(blocks, sizes)), sizes)


def _flat(one: _Topology) -> Found:
    if one.body != "true":
        _fields(one.body, one.where)
    return Found("slurm", None, (), (), (), ())


def _ring(one: _Topology) -> Found:
    return _hosts_only(_named(_fields(one.body, one.where), "rings", "ring", one.where), one)


def _torus(one: _Topology) -> Found:
    body = _fields(one.body, one.where)
    pods = _named(body, "toruses", "name", one.where)
    for item, pod in zip(_list(body, "toruses", one.where), pods, strict=True):
        at = f"{one.where}: {pod.name}"
        dims = _fields(_fields(item, at).get("dims"), at)
        x, y, z = (whole(_text(dims, axis, at), f"{at}: dims.{axis}") for axis in "xyz")
        if x * y * z != len(pod.hosts):
            raise SpecError(f"{at}: dims {x} x {y} x {z} hold {x * y * z} nodes, {len(pod.hosts)} are listed")
    return _hosts_only(pods, one)


def _hosts_only(parts: list[FoundBlock], one: _Topology) -> Found:
    hosts = unique(tuple(host for part in parts for host in part.hosts))
    note = (
        f"the order of a {one.kind} ({some([part.name for part in parts])}) is left out: it has no switches or blocks"
    )
    return Found("slurm", None, hosts, (), (), (NOT_IN_FILE, note))


_READERS = {"tree": _tree, "block": _block, "flat": _flat, "ring": _ring, "torus3d": _torus}


def _named(body: dict[str, Yaml], key: str, name: str, where: str) -> list[FoundBlock]:
    """The items of the list `key`, each with its name and nodes."""
    items = [_fields(item, where) for item in _list(body, key, where)]
    names = [_text(item, name, where) for item in items]
    return [
        FoundBlock(name, names_in(_text(item, "nodes", f"{where}: {name}"), f"{where}: {name}"))
        for item, name in zip(items, names, strict=True)
    ]


def _fields(node: Yaml, where: str) -> dict[str, Yaml]:
    """A mapping with its keys in small letters."""
    if not isinstance(node, dict):
        raise SpecError(f"{where}: {str(node)[:40]!r} where `key: value` lines are right; the file may be cut")
    return {key.lower(): value for key, value in node.items()}


def _list(fields: dict[str, Yaml], key: str, where: str) -> list[Yaml]:
    node = fields.get(key)
    if not isinstance(node, list) or not node:
        raise SpecError(f"{where}: {key} is {'missing' if node is None else 'no list'}; the file may be cut")
    return node


def _text(fields: dict[str, Yaml], key: str, where: str) -> str:
    node = fields.get(key)
    if not isinstance(node, str):
        raise SpecError(f"{where}: {key} is {'missing' if node is None else 'no text'}; the file may be cut")
    return node


def _hosts(fields: dict[str, Yaml], key: str, where: str) -> tuple[str, ...]:
    return names_in(_text(fields, key, where), f"{where}: {key}") if key in fields else ()
