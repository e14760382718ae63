"""What joins the GPUs of a node, from the cables that its files name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from moeplan.convert.likeness import Like, rate
from moeplan.importers.found import FoundNode
from moeplan.spec.cluster import Node
from moeplan.toml_text import Noted

NVLINK_BYTES_PER_S, NVLINK5_BYTES_PER_S = 25e9, 50e9
"""One NVLink per direction, of generations 2 to 4 and of generation 5.

Sources: NVIDIA H100 data sheet, 18 links of 900 GB/s in both directions together; NVIDIA B200, 18 of 1,800 GB/s.
"""
XGMI_BYTES_PER_S = 50e9
"""One Infinity Fabric link of an MI250X per direction. Source: OLCF Frontier user guide, node diagram."""
PCIE4_BYTES_PER_S, PCIE5_BYTES_PER_S = 31.5e9, 63e9
"""16 lanes per direction: 16 and 32 GT/s, 128 of 130 bits are data. Source: PCI Express Base Specification, 4 and 5."""
MOST_NVLINKS = 18
"""Of any GPU so far."""


class Joined(NamedTuple):
    """Entries of [node], and what was guessed."""

    entries: dict[str, Noted]
    notes: tuple[str, ...]
    beyond: bool = False
    """Whether it may go beyond the node: a switch does, cables between GPUs and PCIe do not."""


def joined(files: Sequence[tuple[str, FoundNode]], like: Like, node: Node) -> Joined:
    """`link`, and `links` or `bridge`, of a node that `files` describe; as in `node`, that of `like`, where none does.

    A switch: count of cables x bytes of one, unless the file has bandwidths. Cables between pairs: the same, as
    `links`. GPUs that only PCIe joins get its bandwidth, never NVLink's, and share it over all that they reach so.
    """
    cabled = [(name, one) for name, one in files if any(kind != "pcie" for *_, kind in one.links)]
    if cabled:
        name, found = cabled[0]
        return _switched(name, found, like) if _behind_switch(found) else _linked(name, found, like, node)
    over_pcie = [name for name, one in files if one.links]
    if over_pcie:
        return _pcie(over_pcie[0], like, node)
    return Joined(_as_like(like, node), (), beyond=not (node.links or node.bridge))


def _as_like(like: Like, node: Node) -> dict[str, Noted]:
    found = {"link": like.noted(node.link_bytes_per_s.short())}
    if node.links:
        found["links"] = like.noted([[a, b, bytes_per_s.short()] for a, b, bytes_per_s in node.links])
    if node.bridge:
        bridge = {"gpus": node.bridge.gpus, "uplink": node.bridge.uplink_bytes_per_s.short()}
        found["bridge"] = like.noted(bridge)
    return found


def _switched(name: str, found: FoundNode, like: Like) -> Joined:
    links = [link for link in found.links if link[3] != "pcie"]
    each, count = _cable(links[0][3], like, found), min(link[2] for link in links)
    measured = [bytes_per_s for bytes_per_s in found.link_bytes_per_s if bytes_per_s]
    notes = () if found.switch else (f"assumed: {name}: switches join all {found.gpus} GPUs, also those without links",)
    if measured:
        return Joined({"link": Noted(rate(min(measured)), f"{name}: bandwidth to the switch")}, notes, beyond=True)
    told = f"{name}: {count} {_word(links[0][3])} to the switch x {each.words}"
    return Joined({"link": Noted(rate(count * each.bytes_per_s), told)}, notes, beyond=True)


def _linked(name: str, found: FoundNode, like: Like, node: Node) -> Joined:
    kinds = {kind for *_, kind in found.links if kind != "pcie"}
    each = _cable(kinds.pop(), like, found)
    speeds = found.link_bytes_per_s or [count * each.bytes_per_s for _, _, count, _ in found.links]
    cables = {(a, b): s for (a, b, _, kind), s in zip(found.links, speeds, strict=True) if kind != "pcie"}
    apart, notes = _apart(cables, found.gpus), []
    pcie, words = _pcie_rate(like, node)
    if apart:
        peers = max(sum(gpu in pair for pair in apart) for gpu in range(found.gpus))
        cables |= {pair: pcie / peers for pair in apart}
        notes.append(f"assumed: {name}: pairs of GPUs without a way over cables share {words} over {peers} pairs")
    told = f"{name}: " + ("bandwidths of the file" if found.link_bytes_per_s else f"cables x {each.words}")
    links = [[a, b, rate(bytes_per_s)] for (a, b), bytes_per_s in sorted(cables.items())]
    return Joined(
        {"link": Noted(rate(pcie), f"assumed: GPU to NIC, {words}"), "links": Noted(links, told)}, tuple(notes)
    )


def _pcie(name: str, like: Like, node: Node) -> Joined:
    bytes_per_s, words = _pcie_rate(like, node)
    note = f"{name}: no NVLink or XGMI between GPUs: PCIe, whose bandwidth is assumed ({words})"
    return Joined({"link": Noted(rate(bytes_per_s), f"assumed: {words}; {name} has no NVLink")}, (note,))


class _Cable(NamedTuple):
    bytes_per_s: float
    words: str


def _cable(kind: str, like: Like, found: FoundNode) -> _Cable:
    """Bytes of one cable in one direction, and where that is from."""
    gpu, node = found.gpu_name or like.cluster.gpu.name, like.cluster.node
    if kind == "nvlink":
        if re.search(r"\bG?B[23]00\b", f"{gpu} {like.cluster.gpu.name}"):
            return _Cable(NVLINK5_BYTES_PER_S, "50 GB/s (NVLink 5, NVIDIA B200)")
        return _Cable(NVLINK_BYTES_PER_S, "25 GB/s (NVLink 2 to 4, NVIDIA H100 data sheet)")
    if not re.search(r"\bMI\d", like.cluster.gpu.name):
        return _Cable(XGMI_BYTES_PER_S, "50 GB/s (assumed: as in an MI250X, OLCF Frontier user guide)")
    if node.links:
        least = min(bytes_per_s for _, _, bytes_per_s in node.links)
        return _Cable(least, f"{rate(least)} ({like.note}, its smallest link)")
    each = node.link_bytes_per_s / (node.gpus - 1)
    return _Cable(each, f"{rate(each)} ({like.note}, its link over {node.gpus - 1} GPUs)")


def _word(kind: str) -> str:
    return "NVLinks" if kind == "nvlink" else "XGMI links"


def _pcie_rate(like: Like, node: Node) -> tuple[float, str]:
    """PCIe of a GPU: that of `like` where it has one, else the generation that its NICs need."""
    if node.links or node.bridge:
        return node.link_bytes_per_s, f"PCIe {like.note.removeprefix('assumed: ')}"
    if node.nic_bytes_per_s > PCIE4_BYTES_PER_S:
        return PCIE5_BYTES_PER_S, "PCIe 5, 16 lanes"
    return PCIE4_BYTES_PER_S, "PCIe 4, 16 lanes"


def _behind_switch(found: FoundNode) -> bool:
    """Whether the file says so, or every part of the GPUs has as many cables between all pairs as no GPU can have."""
    if found.switch:
        return True
    counts = {(a, b): count for a, b, count, kind in found.links if kind == "nvlink"}
    parts = _parts(list(counts), found.gpus)
    whole = all(len(part) > 1 and all(pair in counts for pair in combinations(part, 2)) for part in parts)
    most = min((len(part) for part in parts), default=1) - 1
    return whole and len(set(counts.values())) == 1 and most * min(counts.values()) > MOST_NVLINKS


def _apart(cables: dict[tuple[int, int], float], gpus: int) -> list[tuple[int, int]]:
    """Pairs of GPUs that no way over cables joins."""
    part_of = {gpu: i for i, part in enumerate(_parts(list(cables), gpus)) for gpu in part}
    return [(a, b) for a, b in combinations(range(gpus), 2) if part_of[a] != part_of[b]]


def _parts(pairs: Sequence[tuple[int, int]], gpus: int) -> list[list[int]]:
    """GPUs that cables join, by the first of them."""
    part = list(range(gpus))
    for a, b in pairs:
        old, new = max(part[a], part[b]), min(part[a], part[b])
        part = [new if one == old else one for one in part]
    return [[gpu for gpu in range(gpus) if part[gpu] == first] for first in sorted(set(part))]
