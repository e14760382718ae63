"""The tables of `rocm-smi --showtopo`."""

from __future__ import annotations

import re

from moeplan.errors import SpecError
from moeplan.importers.found import Found, FoundLink, FoundNode, some
from moeplan.importers.matrix import check_symmetric, square

WEIGHT_PER_HOP = 15
"""Weight of one XGMI cable; hops are 1 however many it takes. Source: ROCm/rocm-systems issue 5763 (a maintainer)."""
_TITLE = re.compile(r"^=+ (.+?) =+$")
_NUMA = re.compile(r"GPU\[(\d{1,4})\]\s*:\s*\(Topology\) Numa Node:\s*(-?\d{1,4})\s*")


def looks_like(text: str) -> bool:
    """Whether `text` has a heading of rocm-smi."""
    return bool(re.search(r"ROCm System Management Interface|between two GPUs =", text))


def read_rocm(text: str, where: str) -> Found:
    """GPUs, XGMI links and NUMA nodes of one node.

    A link is a pair of type XGMI whose weight is that of one cable; what weighs n cables goes over n - 1 other GPUs and
    is no link. SpecError where a table lacks a row, a GPU or its mirror image.
    """
    sections = _sections(text)
    names, weights = _matrix(sections, "Weight between two GPUs", where)
    others, kinds = _matrix(sections, "Link Type between two GPUs", where)
    if names != others:
        raise SpecError(f"{where}: weights of {len(names)} GPUs and link types of {len(others)}; as many are right")
    if "Hops between two GPUs" in sections:
        _matrix(sections, "Hops between two GPUs", where)
    links = _links(weights, kinds, where)
    numa = _numa(sections.get("Numa Nodes", []), len(names), where)
    none = tuple(() for _ in names)
    node = FoundNode(len(names), "", (), none, links, False, numa, tuple("" for _ in names))
    return Found("rocm-smi", node, (), (), (), _notes(node, weights, kinds))


def _sections(text: str) -> dict[str, list[tuple[int, str]]]:
    """Lines that are not blank by the heading over them; of a heading that comes twice, the first."""
    found: dict[str, list[tuple[int, str]]] = {}
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if title := _TITLE.match(line.strip()):
            lines = []
            found.setdefault(title[1], lines)
        elif line.strip():
            lines.append((number, line))
    return found


def _matrix(sections: dict[str, list[tuple[int, str]]], title: str, where: str) -> tuple[list[str], list[list[str]]]:
    if not sections.get(title):
        raise SpecError(f"{where}: no table {title!r}; the whole output of rocm-smi --showtopo is right")
    (number, heading), *rows = sections[title]
    names = heading.split()
    if names != [f"GPU{i}" for i in range(len(names))]:
        raise SpecError(f"{where}: line {number}: columns {some(names, 20)}; GPU0, GPU1, ... are right")
    cells = square(rows, names, f"{where}: {title}")
    check_symmetric(cells, names, f"{where}: {title}")
    return names, cells


def _links(weights: list[list[str]], kinds: list[list[str]], where: str) -> tuple[FoundLink, ...]:
    found: list[FoundLink] = []
    for a, row in enumerate(kinds):
        for b in range(a + 1, len(row)):
            weight, kind = weights[a][b], row[b]
            if kind not in ("XGMI", "PCIE") or not re.fullmatch(r"\d{1,6}", weight):
                right = "type XGMI or PCIE and a whole weight are right"
                raise SpecError(f"{where}: GPU{a} to GPU{b} has type {kind!r} and weight {weight!r}; {right}")
            if kind == "PCIE":
                found.append((a, b, 1, "pcie"))
            elif int(weight) <= WEIGHT_PER_HOP:
                found.append((a, b, 1, "xgmi"))
    return tuple(found)


def _numa(lines: list[tuple[int, str]], gpus: int, where: str) -> tuple[int, ...]:
    found = {int(match[1]): int(match[2]) for _, line in lines if (match := _NUMA.fullmatch(line.strip()))}
    if lines and found.keys() != set(range(gpus)):
        raise SpecError(f"{where}: Numa Nodes of {len(found)} GPUs, of {gpus} in the tables; the file may be cut")
    return tuple(found.get(gpu, -1) for gpu in range(gpus))


def _notes(node: FoundNode, weights: list[list[str]], kinds: list[list[str]]) -> tuple[str, ...]:
    notes = ["names of GPUs, NICs, CPUs of a GPU, link speeds and other nodes are not in the file"]
    if any(kind == "xgmi" for _, _, _, kind in node.links):
        notes.append("assumed: one XGMI cable between two GPUs; the number is not in the file")
    hops = hops_between(node)
    pairs = [(a, b) for a in range(node.gpus) for b in range(a + 1, node.gpus) if kinds[a][b] == "XGMI"]
    far = [f"GPU{a}-GPU{b}" for a, b in pairs if int(weights[a][b]) > WEIGHT_PER_HOP]
    odd = [f"GPU{a}-GPU{b}" for a, b in pairs if int(weights[a][b]) != WEIGHT_PER_HOP * hops[a][b]]
    if far:
        notes.append(f"no direct XGMI link, over other GPUs instead: {some(far)}")
    if odd:
        notes.append(f"weights that are not {WEIGHT_PER_HOP} for each cable of the shortest way: {some(odd)}")
    return tuple(notes)


def hops_between(node: FoundNode) -> list[list[int]]:
    """Cables of NVLink or XGMI on the shortest way between every two GPUs: [gpu][gpu]; -1 where there is none."""
    near: dict[int, set[int]] = {gpu: set() for gpu in range(node.gpus)}
    for a, b, _, kind in node.links:
        if kind != "pcie":
            near[a].add(b)
            near[b].add(a)
    return [_from(gpu, near) for gpu in range(node.gpus)]


def _from(start: int, near: dict[int, set[int]]) -> list[int]:
    hops = [-1] * len(near)
    hops[start], edge = 0, {start}
    while edge:
        edge = {b for a in edge for b in near[a] if hops[b] < 0}
        step = max(hops) + 1
        for b in edge:
            hops[b] = step
    return hops
