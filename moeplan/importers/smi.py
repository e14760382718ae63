"""The matrix of `nvidia-smi topo -m`."""

from __future__ import annotations

import re
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.importers.found import Found, FoundLink, FoundNic, FoundNode, some
from moeplan.importers.matrix import behind_switch, check_symmetric, square

NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCIe from near to far, as the legend that nvidia-smi prints explains them."""
_OLD = {"SOC": "SYS"}
"""Names in drivers before 2018."""
_NVLINKS_PER_GPU = 18
"""Of an H100 and of a B200; earlier GPUs have fewer.

Source: NVIDIA H100 Tensor Core GPU Architecture (white paper), fourth-generation NVLink.
"""
_AFFINITY = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")


class _Table(NamedTuple):
    gpus: list[str]
    nics: list[str]
    cells: list[list[str]]
    sides: list[dict[str, str]]
    """Affinities of each GPU by their heading."""


def looks_like(text: str) -> bool:
    """Whether a line of `text` begins with GPU0, as heading or row."""
    return bool(re.search(r"^\s*GPU0(\s|$)", text, re.MULTILINE))


def read_smi(text: str, where: str) -> Found:
    """GPUs, NVLinks, nearest NICs and affinities of one node.

    NIC speeds and GPU names are not in the output. A NIC nearer than SYS to a GPU is on its NUMA node. Equal NVLinks
    between all GPUs are taken for those to a switch where a GPU cannot have as many. SpecError where a row or cell is
    missing, unknown or differs from its mirror image.
    """
    table = _table(text, where)
    links, switch, notes = _links(table)
    numa, cpus = _affinities(table)
    near = [_nearest(row[len(table.gpus) :]) for row in table.cells[: len(table.gpus)]]
    names = _nic_names(text, table.nics, where)
    nics = tuple(FoundNic(names.get(name, name), 0.0, _numa_of(j, table, numa)) for j, name in enumerate(table.nics))
    node = FoundNode(
        len(table.gpus), "", nics, tuple(indices for _, indices in near), links, switch, tuple(numa), tuple(cpus)
    )
    missing = ["names of GPUs, speeds of links and NICs, and other nodes are not in the file"]
    if not names and any(re.fullmatch(r"NIC\d+", name) for name in table.nics):
        missing.append("names of the NICs are not in the file")
    return Found("nvidia-smi", node, (), (), (), (*missing, *notes, *_far(near)))


def _table(text: str, where: str) -> _Table:
    lines = [(n, line.expandtabs(8)) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    start = next((i for i, (_, line) in enumerate(lines) if line.split()[0] == "GPU0"), len(lines))
    heading = lines[start][1] if start < len(lines) else ""
    aside = _AFFINITY.search(heading)
    names = heading[: aside.start() if aside else None].split()
    if "X" in names:
        raise SpecError(f"{where}: line {lines[start][0]}: a row before the heading; copy the line with GPU0 GPU1 too")
    gpus = [name for name in names if re.fullmatch(r"GPU\d+", name)]
    if names[: len(gpus)] != gpus or gpus != [f"GPU{i}" for i in range(len(gpus))]:
        raise SpecError(f"{where}: columns {some(names, 20)}; GPU0, GPU1, ... and then NICs are right")
    rows = lines[start + 1 : start + 1 + len(names)]
    cells = [[_OLD.get(cell, cell) for cell in row] for row in square(rows, names, where)]
    _check(cells, names, where)
    return _Table(gpus, names[len(gpus) :], cells, [_sides(heading, line, len(names)) for _, line in rows[: len(gpus)]])


def _check(cells: list[list[str]], names: list[str], where: str) -> None:
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if (cell == "X") != (i == j) or not (cell == "X" or cell in NEAR or re.fullmatch(r"NV[1-9]\d?", cell)):
                right = "X" if i == j else f"NV1, NV2, ... or {', '.join(NEAR)}"
                raise SpecError(f"{where}: {names[i]} to {names[j]} is {cell!r}; {right} is right")
    check_symmetric(cells, names, where)


def _sides(heading: str, line: str, columns: int) -> dict[str, str]:
    """What follows the matrix in a row, under its headings; by place where some cells are blank."""
    words = list(re.finditer(r"\S+", line))[columns + 1 :]
    titles = list(_AFFINITY.finditer(heading))
    if len(words) >= len(titles):
        return {title[0]: word[0] for title, word in zip(titles, words, strict=False)}
    found: dict[str, str] = {}
    for word in words:
        free = [title for title in titles if title[0] not in found]
        found[min(free, key=lambda title: abs(title.start() - word.start()))[0]] = word[0]
    return found


def _links(table: _Table) -> tuple[tuple[FoundLink, ...], bool, list[str]]:
    gpus = len(table.gpus)
    pairs = {(a, b): table.cells[a][b] for a in range(gpus) for b in range(a + 1, gpus)}
    counts = {pair: int(cell[2:]) for pair, cell in pairs.items() if cell.startswith("NV")}
    links = tuple(_link(a, b, counts.get((a, b), 0)) for a, b in pairs)
    switch = behind_switch(gpus, counts, _NVLINKS_PER_GPU)
    if pairs and not counts:
        return links, False, ["no NVLink between GPUs: they talk over PCIe"]
    if gpus > 1 and len(set(counts.values())) == 1 and len(counts) == len(pairs):
        how = "those to a switch, since a GPU cannot have as many" if switch else "cables of that pair alone"
        return links, switch, [f"assumed: the {links[0][2]} NVLinks between two GPUs are {how}"]
    return links, switch, []


def _link(a: int, b: int, count: int) -> FoundLink:
    return (a, b, count, "nvlink") if count else (a, b, 1, "pcie")


def _affinities(table: _Table) -> tuple[list[int], list[str]]:
    """NUMA node (-1 unless it is one) and CPUs ("" where blank) of each GPU."""
    numa = [side.get("NUMA Affinity", "") for side in table.sides]
    cpus = [side.get("CPU Affinity", "") for side in table.sides]
    return [int(one) if re.fullmatch(r"\d{1,4}", one) else -1 for one in numa], ["" if c == "N/A" else c for c in cpus]


def _nearest(cells: list[str]) -> tuple[str, tuple[int, ...]]:
    best = min(cells, key=NEAR.index, default="")
    return best, tuple(j for j, cell in enumerate(cells) if cell == best)


def _far(near: list[tuple[str, tuple[int, ...]]]) -> list[str]:
    """A note where the nearest NICs of a GPU are several and no nearer than the CPU."""
    far = [str(i) for i, (path, nics) in enumerate(near) if len(nics) > 1 and path in ("PHB", "NODE", "SYS")]
    return [f"no NIC is nearer than the CPU to GPUs {some(far, 8)}: several are equally far"] if far else []


def _numa_of(nic: int, table: _Table, numa: list[int]) -> int:
    """The NUMA node of a NIC: that of the GPUs which reach it without crossing between NUMA nodes."""
    column = len(table.gpus) + nic
    near = {numa[i] for i in range(len(table.gpus)) if table.cells[i][column] != "SYS"}
    return near.pop() if len(near) == 1 else -1


def _nic_names(text: str, nics: list[str], where: str) -> dict[str, str]:
    """The names in the NIC legend; none where there is no legend; SpecError where it lacks a NIC."""
    _, legend, rest = text.partition("NIC Legend:")
    found = dict(re.findall(r"^\s*(\w+):\s*(\S+)\s*$", rest, re.MULTILINE))
    if legend and (lost := [nic for nic in nics if nic not in found]):
        raise SpecError(f"{where}: the NIC legend lacks {some(lost)}; the file may be cut")
    return found
