"""Logs of nccl-tests and rccl-tests: which collective among how many ranks on which hosts took how long.

Bandwidths are in 1e9 bytes per second; `size` is what busbw is made from: of an all-to-all what one rank sends in all,
its own share included, of an all-gather or reduce-scatter the whole buffer. Names of hosts are not kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from moeplan.calibrate.busbw import busbw_factor
from moeplan.calibrate.log_lines import (
    PRICED,
    Collective,
    Columns,
    Printed,
    cleaned,
    columns,
    device,
    is_row,
    nics,
    row,
    search,
)
from moeplan.calibrate.log_ranks import who
from moeplan.errors import SpecError
from moeplan.importers.found import some
from moeplan.spec.record import read_bytes

SAME = 0.005
"""Within this the printed average is that of the rows shown."""
ALIKE = 0.02
"""Within this a printed busbw has the factor of its collective."""


class Row(NamedTuple):
    """One size."""

    bytes: float
    out_s: float
    """Out of place."""
    in_s: float | None
    """In place; None where the row ends before."""
    busbw_bytes_per_s: float
    """As printed, out of place."""


class Log(NamedTuple):
    """One table."""

    name: str
    """Of its file."""
    line: int
    """Where its table begins."""
    collective: Collective
    hosts: tuple[int, ...]
    """The host of each rank, from 0 in the order they are listed [ranks]."""
    rows: tuple[Row, ...]
    """By size, those of 0 bytes left out."""
    average_bytes_per_s: float | None
    """As printed, whatever rows it covers."""
    gpu: str
    """Name of the first device; empty where no list says it."""
    nics: int
    """That NCCL uses on a host; 0 where the log does not say."""
    notes: tuple[str, ...]
    """What is odd about it."""
    unused: str
    """Why nothing can be fitted to it; empty where something can."""

    @property
    def ranks(self) -> int:
        """Ranks that took part."""
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        """Hosts that they were on."""
        return len(set(self.hosts))

    @property
    def per_node(self) -> int:
        """Ranks on the fullest host."""
        return max(Counter(self.hosts).values())


def read_logs(path: Path) -> tuple[Log, ...]:
    """The tables in a file, as `parse_logs`; SpecError where it cannot be read."""
    return parse_logs(read_bytes(path).decode(errors="replace"), path.name)


def parse_logs(text: str, name: str) -> tuple[Log, ...]:
    """The tables in the log `text` of the file `name`, one after another.

    A row that cannot be read, or whose time is not that of its algbw, is left out and told in the notes. SpecError
    where there is no table, or where a table's collective, ranks or hosts are told by nothing.
    """
    lines = cleaned(text)
    parts = [(start, part) for start, part in _tables(lines) if any(map(is_row, part)) or any(map(columns, part))]
    if not parts:
        raise SpecError(
            f"{name}: no table of nccl-tests or rccl-tests in {len(lines)} lines; right is one with the columns"
            " size, count, type, time, algbw, busbw"
        )
    return tuple(_log(name, start, part) for start, part in parts)


def _tables(lines: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Lines of each run of a program, with the number of the first; what stands before a run belongs to it."""
    starts, end, begun = [0], 0, False
    for number, line in enumerate(lines):
        if re.match(r"#\s*(nthread|collective test starting)", line, re.I) and begun:
            starts.append(end)
            begun = False
        if is_row(line) or re.match(r"#\s*(avg bus|out of bounds|collective test concluded)", line, re.I):
            begun, end = True, number + 1
    return [(a, list(lines[a:b])) for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]


def _log(name: str, start: int, lines: Sequence[str]) -> Log:
    """One table; its `line` is that of its header or first row."""
    first = next(i for i, line in enumerate(lines) if columns(line) or is_row(line))
    found, notes = _rows(lines, start)
    devices = [one for one in map(device, lines) if one]
    collective, hosts, told = who(name, start + first + 1, lines[:first], devices, found)
    shown = search(r"avg bus bandwidth\s*:\s*(\d+\.?\d*(?:e[+-]?\d{1,2})?)", lines)
    average = float(shown[1]) if shown else None
    notes += [*told, *_odd(lines, found, average)]
    used = [one for one in found if one.bytes and not one.wrong]
    rows = tuple(sorted(map(_row, used), key=lambda one: one.bytes))
    unused = _unused(collective, len(hosts), used)
    gpus = list(dict.fromkeys(one.gpu for one in devices))
    if len(gpus) > 1:
        notes.append(f"its GPUs are of several kinds: {some(gpus)}")
    average = average * 1e9 if average is not None else None
    line, cards = start + first + 1, next(filter(None, map(nics, lines)), 0)
    return Log(name, line, collective, hosts, rows, average, gpus[0] if gpus else "", cards, tuple(notes), unused)


def _row(one: Printed) -> Row:
    return Row(one.bytes, one.out[0] * 1e-6, one.inside[0] * 1e-6 if one.inside else None, one.out[2] * 1e9)


def _rows(lines: Sequence[str], start: int) -> tuple[list[Printed], list[str]]:
    """What can be read, and notes about what cannot."""
    form, found, notes = Columns(), [], []
    for number, line in enumerate(lines, start + 1):
        form = columns(line) or form
        if is_row(line):
            one = row(line, form)
            if isinstance(one, str):
                notes.append(f"line {number}: {one}; left out")
                continue
            found.append(one)
            if one.cut or one.inside is None:
                notes.append(f"line {number}: its in-place part is cut; out of place is used")
            if one.wrong:
                notes.append(f"line {number}: {one.wrong} wrong values; left out")
    if zeros := sum(not one.bytes for one in found):
        notes.append(f"{zeros} rows of 0 bytes; left out")
    return found, notes


def _odd(lines: Sequence[str], rows: Sequence[Printed], average: float | None) -> list[str]:
    """Notes about a table that is cut, whose average covers other rows, or whose values were wrong."""
    notes = []
    head = search(r"minbytes (\d+) maxbytes (\d+) step: ?(\d+)\((\w+)\)", lines)
    due = _due(int(head[1]), int(head[2]), int(head[3]), head[4]) if head else len(rows)
    if len(rows) < due:
        notes.append(f"{len(rows)} of {due} rows shown")
    if average is None:
        notes.append("ends before its average")
    busbw = [one[2] for printed in rows for one in (printed.out, printed.inside) if one]
    mean = sum(busbw) / len(busbw) if busbw else 0.0
    if average is not None and abs(average - mean) > SAME * max(average, mean):
        notes.append(f"average {average:g} GB/s as printed is not that of the rows shown, {mean:.6g}")
    if failed := search("out of bounds values.*FAILED", lines):
        notes.append(failed[0])
    return notes


def _due(least: int, most: int, step: int, kind: str) -> int:
    """Rows from `least` to `most` bytes by factors or by sums of `step`."""
    if least > most or step < 1 or (kind == "factor" and (step < 2 or least < 1)):
        return 0
    if kind != "factor":
        return (most - least) // step + 1
    count = 0
    while least <= most:
        least, count = least * step, count + 1
    return count


def _unused(collective: Collective, ranks: int, rows: Sequence[Printed]) -> str:
    """Why nothing can be fitted to a table; empty where something can."""
    if ranks == 1:
        return "no communication measured: one rank"
    if collective not in PRICED:
        return f"{collective} is not priced; {', '.join(PRICED)} are"
    if not rows:
        return "no row that can be used"
    ratios = [one.out[2] / one.out[1] for one in rows if one.out[1] > 1]
    factor = busbw_factor(collective, ranks)
    if ratios and abs(median(ratios) - factor) > ALIKE * factor:
        return f"busbw is {median(ratios):.4g} of algbw, which is not {collective} among {ranks} ranks ({factor:.4g})"
    return ""
