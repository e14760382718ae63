"""Who took part in a table of nccl-tests: its collective, how many ranks, on which hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median

from moeplan.calibrate.log_lines import WORD_BYTES, Collective, Device, Printed, named, named_by, search
from moeplan.errors import SpecError
from moeplan.spec.cluster import MOST_GPUS

PER_PEER = ("all_to_all", "all_gather", "reduce_scatter", "gather", "scatter")
"""Collectives whose `count` is what one rank has for one other: size = count * element * ranks."""
MOST_BY_RATIO = 20
"""More ranks are not told by two digits of busbw over algbw."""


def who(
    name: str, line: int, head: Sequence[str], devices: Sequence[Device], rows: Sequence[Printed]
) -> tuple[Collective, tuple[int, ...], list[str]]:
    """The collective, the host of each rank, and notes; SpecError where nothing says one of them."""
    said = [one for one in map(named_by, head) if one]
    collective = said[-1] if said else named(name)
    if collective is None:
        known = "alltoall, all_reduce, all_gather, reduce_scatter or sendrecv"
        raise SpecError(f"{name}: line {line}: no collective is named in the log or by its file; name the file {known}")
    listed = max((one.rank + 1 for one in devices), default=0)
    counted = _counted(collective, rows)
    ranks = counted if counted > listed else listed
    ranks = ranks or _number(name, "gpus?|ranks?|procs?")
    notes = [f"{listed} ranks listed, {counted} by size and count"] if listed and counted and listed != counted else []
    if not ranks and rows and not any(one.out[2] for one in rows):
        ranks = 1
    if not ranks:
        raise SpecError(
            f"{name}: line {line}: no device list says the ranks; name the file as {collective}_2node_16gpu"
        )
    if ranks > MOST_GPUS:
        raise SpecError(f"{name}: line {line}: {ranks} ranks; at most {MOST_GPUS}")
    hosts, told = _hosts(name, head, devices, ranks)
    if not hosts:
        right = f"name the file as {collective}_2node_{ranks}gpu"
        raise SpecError(f"{name}: line {line}: no device list says the hosts of {ranks} ranks; {right}")
    return collective, hosts, notes + told


def _counted(collective: Collective, rows: Sequence[Printed]) -> int:
    """Ranks by what the rows say: size over count of collectives that count per peer, else busbw over algbw; or 0."""
    if collective in PER_PEER:
        found = [one.bytes / one.elements / WORD_BYTES[one.word] for one in rows if one.elements and one.bytes]
        return round(median(found)) if found else 0
    ratios = [one.out[2] / one.out[1] for one in rows if one.out[1] > 10]
    ratio = median(ratios) if ratios and collective == "all_reduce" else 0.0
    ranks = 2 / (2 - ratio) if 0 < ratio < 2 else 0.0
    return round(ranks) if ranks < MOST_BY_RATIO else 0


def _hosts(name: str, head: Sequence[str], devices: Sequence[Device], ranks: int) -> tuple[tuple[int, ...], list[str]]:
    """The host of each rank: as listed; where the list has gaps, hosts as full as the fullest; else by file name."""
    by_rank = {one.rank: one.host for one in devices}
    if ranks == 1:
        return (0,), []
    if len(by_rank) == ranks:
        order = list(dict.fromkeys(by_rank[rank] for rank in range(ranks)))
        return tuple(order.index(by_rank[rank]) for rank in range(ranks)), []
    if devices:
        seen = max(Counter(by_rank.values()).values())
        local = min(ranks, max(seen, *(one.device + 1 for one in devices)))
        said = f"{len(by_rank)} of {ranks} ranks listed: {local} taken as on each host"
        return tuple(rank // local for rank in range(ranks)), [said]
    threads = search(r"nthread (\d+) ngpus (\d+)", head)
    one_process = int(threads[1]) * int(threads[2]) if threads else 0
    nodes = 1 if one_process == ranks else _number(name, "nodes?|hosts?")
    if not nodes or ranks % nodes:
        return (), []
    return tuple(rank * nodes // ranks for rank in range(ranks)), [f"no device list: {ranks} ranks on {nodes} hosts"]


def _number(name: str, what: str) -> int:
    """The number before or after a word in a file's name; 0 where there is none."""
    found = re.search(rf"(\d+)[-_]?(?:{what})(?![a-z])|(?<![a-z])(?:{what})[-_=]?(\d+)", name, re.I)
    return int(found[1] or found[2]) if found else 0
