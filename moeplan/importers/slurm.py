"""Slurm's topology.conf (tree and block) and what `scontrol show topology` prints."""

from __future__ import annotations

import re
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.hostlist import expand
from moeplan.importers.blocks import block_notes, check_blocks, check_sizes
from moeplan.importers.found import Found, FoundBlock, some, unique
from moeplan.importers.tree import Entry, notes_of, switches_of

_PAIR = r"([A-Za-z_]+)\s*=\s*(\"[^\"]*\"|[^\s\"]\S*)"
_LINE = re.compile(rf"(?:{_PAIR}(?:\s+|$))+")
_KEYS = {
    "switchname": {"switches", "nodes", "linkspeed", "level"},
    "blockname": {"nodes", "blockindex", "blocksize"},
    "aggregatedblock": {"nodes", "blockindex", "blocksize"},
    "blocksizes": set[str](),
    "topologyplugin": {"topologyparam"},
    "topologyparam": {"topologyplugin"},
}
"""The first keyword of a line and those that may follow it: topology.conf(5); Level, BlockIndex, BlockSize and
AggregatedBlock in `scontrol show topology`."""
NOT_IN_FILE = "GPUs, NICs and link speeds of a node are not in the file"


class Line(NamedTuple):
    """One record: where it stands, its first keyword and all its values by keyword, in small letters."""

    where: str
    kind: str
    values: dict[str, str]


def looks_like(text: str) -> bool:
    """Whether a line of `text` begins with a keyword of topology.conf, or includes another file."""
    words = "|".join(_KEYS)
    return bool(
        re.search(rf"^\s*(?:(?:{words})\s*=|include\s+\S|topology/\w+\s*$)", text, re.IGNORECASE | re.MULTILINE)
    )


def read_slurm(text: str, where: str) -> Found:
    """Switches, blocks and hosts of a topology.conf or of `scontrol show topology`.

    SpecError names the line that is broken, includes another file, or contradicts another, and a file without switches
    and blocks. Keywords may be in any case. LinkSpeed has arbitrary units (topology.conf(5)) and is left out.
    """
    lines = [_record(content, at) for at, content in _lines(text, where)]
    switches = switches_of([_entry(line) for line in lines if line.kind == "switchname"], where)
    blocks = tuple(_block(line) for line in lines if line.kind == "blockname")
    if not switches and not blocks:
        raise SpecError(f"no switches or blocks found in {where}; lines with SwitchName= or BlockName= are right")
    check_blocks(blocks, where)
    sizes = _sizes(lines, {block.name for block in blocks}, where)
    lists = [*(switch.hosts for switch in switches), *(block.hosts for block in blocks)]
    hosts = unique(tuple(host for names in lists for host in names))
    notes = (NOT_IN_FILE, *notes_of(switches), *block_notes(blocks, sizes), *_gaps(lines))
    return Found("slurm", None, hosts, switches, blocks, notes, sizes)


def _lines(text: str, where: str) -> list[tuple[str, str]]:
    """Contents of `text` line by line with where they stand: comments gone, continued lines joined, blank ones gone."""
    found, held, start = [], "", 0
    for number, raw in enumerate(text.removesuffix("\n").split("\n"), start=1):
        line = re.sub(r"(?<!\\)#.*", "", raw).rstrip()
        start = start or number
        if line.endswith("\\"):
            held += line[:-1]
            continue
        content = (held + line).strip()
        if content and not re.search(r"\bscontrol\b.*\bshow\b", content):
            found.append((f"{where}: line {start}", content))
        held, start = "", 0
    if held:
        raise SpecError(f"{where}: the last line is continued with '\\' and nothing follows; the file may be cut")
    return found


def _record(content: str, where: str) -> Line:
    if re.match(r"include\s", content, re.IGNORECASE):
        raise SpecError(f"{where}: {content!r} is not followed; give a file with that file's lines in its place")
    if re.fullmatch(r"topology/\w+", content):
        return Line(where, "topologyplugin", {})
    if not _LINE.fullmatch(content):
        raise SpecError(f"{where}: {content[:60]!r} is not a list of Keyword=value; the file may be cut")
    pairs = [(key.lower(), value.strip('"')) for key, value in re.findall(_PAIR, content)]
    kind, values = pairs[0][0], dict(pairs)
    wrong = [key for key in values if key not in {kind, *_KEYS.get(kind, ())}]
    if kind not in _KEYS or wrong:
        raise SpecError(f"{where}: unknown keyword {some(wrong or [kind])}; right are {', '.join(_KEYS)} and theirs")
    if len(values) < len(pairs):
        raise SpecError(f"{where}: a keyword is given twice in {content[:60]!r}")
    return Line(where, kind, values)


def names_in(text: str, where: str) -> tuple[str, ...]:
    """The names of a host list without repetitions; none where Slurm prints "(null)"; SpecError for ALL."""
    if text.lower() == "(null)":
        return ()
    if text.upper() == "ALL":
        raise SpecError(f"{where}: nodes {text!r} are not named; a host list such as node[01-04] is right")
    return unique(expand(text, where))


def _names(line: Line, key: str) -> tuple[str, ...]:
    return names_in(line.values[key], line.where) if key in line.values else ()


def _entry(line: Line) -> Entry:
    level = whole(line.values["level"], f"{line.where}: Level") if "level" in line.values else None
    return Entry(line.values["switchname"], line.where, _names(line, "nodes"), _names(line, "switches"), level)


def _block(line: Line) -> FoundBlock:
    return FoundBlock(line.values["blockname"], _names(line, "nodes"))


def _sizes(lines: list[Line], names: set[str], where: str) -> tuple[int, ...]:
    """Block sizes in the line BlockSizes, else those that `scontrol` prints with each block."""
    for line in (line for line in lines if line.kind == "aggregatedblock"):
        if lost := [name for name in _names(line, "aggregatedblock") if name not in names]:
            raise SpecError(f"{line.where}: blocks {some(lost)} are not described in the file; it may be cut")
    stated = [line for line in lines if line.kind == "blocksizes"]
    if len(stated) > 1:
        raise SpecError(f"{stated[1].where}: BlockSizes is given twice; once is right")
    if stated:
        texts = stated[0].values["blocksizes"].split(",")
        return check_sizes([whole(text, f"{stated[0].where}: BlockSizes") for text in texts], stated[0].where)
    shown = [
        whole(line.values["blocksize"], f"{line.where}: BlockSize") for line in lines if "blocksize" in line.values
    ]
    return tuple(sorted(set(shown)))


def _gaps(lines: list[Line]) -> tuple[str, ...]:
    """A note where `scontrol` numbered blocks that are not there."""
    indices = {whole(line.values["blockindex"], line.where) for line in lines if "blockindex" in line.values}
    lost = [str(index) for index in range(max(indices, default=-1) + 1)[: 2**16] if index not in indices]
    return (f"blocks of these indices are missing: {some(lost)}",) if lost else ()


def whole(text: str, where: str) -> int:
    """`text` as a whole number of at most 9 digits; SpecError with `where`."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise SpecError(f"{where}: {text!r} is not a whole number")
    return int(text)
