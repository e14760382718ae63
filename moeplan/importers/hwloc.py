"""hwloc's XML of one node, as `lstopo file.xml` writes it: versions 1, 2 and 3."""

from __future__ import annotations

import re
from itertools import combinations
from math import comb
from typing import NamedTuple
from xml.etree.ElementTree import Element

from moeplan.errors import SpecError
from moeplan.importers.found import Found, FoundLink, FoundNic, FoundNode, LinkKind, some
from moeplan.importers.xml_tree import Path, bus_key, cpus_in, nearest, paths

GPU_CLASSES = ("0302", "0380", "1200")
"""Classes of PCI devices as in `nccl_xml`: 3D controller, other display controller, processing accelerator."""
GPU_NAMES = r"(?:nvml|cuda|rsmi|opencl|ze)\d"
"""Names of a GPU's devices, one set per library that hwloc was built with: one GPU may have several."""
NETWORK, OPENFABRICS = (("2", "16"), ("3", "32"))
"""osdev_type of network and OpenFabrics devices, in versions 1 and 2 a number, in version 3 a bit (hwloc.h)."""
MATRICES: dict[str, LinkKind] = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}
"""Distances that hwloc takes from NVML and ROCm SMI, in MB/s of one direction (hwloc/distances.h)."""
LANE_MB_PER_S = 25000
"""One NVLink of generations 2 to 4 in one direction. Source: NVIDIA H100 Tensor Core GPU Architecture (white paper)."""


class _Machine(NamedTuple):
    every: list[Path]
    gpus: list[Path]
    where: str


def read_hwloc(root: Element, where: str) -> Found:
    """GPUs, each once however many libraries list it, their NUMA nodes and CPUs, NICs, and the NVLink or XGMI matrix.

    GPUs and NICs are counted by PCI address. What two GPUs get of the switches that both are cabled to is a link. NIC
    speeds are not in such files: that of a PCI link is none. SpecError where there is no GPU, or a matrix has not n x n
    values.
    """
    if root.find("object") is None:
        raise SpecError(f"{where}: a topology without objects; the whole output of lstopo is right")
    every = paths(root, where)
    machine = _Machine(every, _gpus(every, where), where)
    if not machine.gpus:
        raise SpecError(f"{where}: no GPU among {len(every)} objects; lstopo --filter all, on a GPU node, is right")
    nics = _nics(every, where)
    links, rates, switch, notes = _links(root, machine)
    names, name_notes = _names(machine)
    node = FoundNode(
        len(machine.gpus),
        names,
        tuple(FoundNic(path[-1].get("name", ""), 0.0, _numa(path)) for path in nics),
        tuple(nearest(path, nics) for path in machine.gpus),
        links,
        switch,
        tuple(_numa(path) for path in machine.gpus),
        tuple(cpus_in(_from_above(path, "cpuset"), where) for path in machine.gpus),
        rates,
    )
    missing = f"{'speeds of NICs' if nics else 'NICs'} and other nodes are not in the file"
    return Found("hwloc", node, (), (), (), (missing, *name_notes, *notes))


def _gpus(every: list[Path], where: str) -> list[Path]:
    """PCI devices that are GPUs by class or by a device below them; without PCI devices, those of one library."""
    devices = [path for path in every if path[-1].get("type") == "OSDev" and _names_gpu(path[-1])]
    owners = {element for path in devices for element in path if element.get("type") == "PCIDev"}
    found = [
        path
        for path in every
        if path[-1].get("type") == "PCIDev"
        and (path[-1] in owners or path[-1].get("pci_type", "").startswith(GPU_CLASSES))
    ]
    if not found:
        return _of_one_library(devices)
    return sorted(found, key=lambda path: bus_key(path[-1].get("pci_busid", ""), where))


def _names_gpu(device: Element) -> bool:
    return bool(re.match(GPU_NAMES, device.get("name", "")))


def _of_one_library(devices: list[Path]) -> list[Path]:
    """The longest list of devices by one library: all list the same GPUs."""
    by_library: dict[str, list[Path]] = {}
    for path in devices:
        by_library.setdefault(re.sub(r"\d.*", "", path[-1].get("name", "")), []).append(path)
    return max(by_library.values(), key=len, default=[])


def _nics(every: list[Path], where: str) -> list[Path]:
    """OpenFabrics devices, and network devices on PCI devices that have none of those; by PCI address."""
    ports = [path for path in every if path[-1].get("osdev_type") in OPENFABRICS and _pci(path) is not None]
    taken = {_pci(path) for path in ports}
    ports += [
        path
        for path in every
        if path[-1].get("osdev_type") in NETWORK and _pci(path) is not None and _pci(path) not in taken
    ]

    def address(path: Path) -> tuple[int, ...]:
        pci = _pci(path)
        return bus_key("" if pci is None else pci.get("pci_busid", ""), where)

    return sorted(ports, key=address)


def _pci(path: Path) -> Element | None:
    return next((element for element in reversed(path) if element.get("type") == "PCIDev"), None)


def _from_above(path: Path, name: str) -> str:
    """The attribute `name` of the nearest object on a path that has it."""
    return next((element.get(name, "") for element in reversed(path) if element.get(name)), "")


def _numa(path: Path) -> int:
    """The NUMA node in the nearest node set above a device; -1 unless it is one."""
    nodes = cpus_in(_from_above(path, "nodeset"), "nodeset")
    return int(nodes) if nodes.isdigit() else -1


def _names(machine: _Machine) -> tuple[str, list[str]]:
    below = {element: path for path in machine.gpus for element in path[-1].iter("info")}
    models = [element.get("value", "") for element in below if element.get("name") == "GPUModel"]
    different = list(dict.fromkeys(models))
    if len(different) > 1:
        return different[0], [f"GPUs of several models, the first is taken: {some(different)}"]
    return (different[0], []) if different else ("", ["the name of the GPUs is not in the file"])


def _links(root: Element, machine: _Machine) -> tuple[tuple[FoundLink, ...], tuple[float, ...], bool, list[str]]:
    """The cables of the first matrix of MATRICES, their bandwidths, whether a switch joins all, and notes."""
    for element in (*root.iter("distances2"), *root.iter("distances2hetero")):
        kind = MATRICES.get(element.get("name", ""))
        if kind:
            labels, values = _matrix(element, machine.where)
            return _read_matrix(labels, values, kind, machine)
    return (), (), False, ["NVLink or XGMI between GPUs is not in the file"]


def _matrix(element: Element, where: str) -> tuple[list[str], list[list[int]]]:
    """Numbers of the objects (gp_index) and the values between them, in MB/s."""
    name = element.get("name")
    labels = [word.rpartition(":")[2] for part in element.iterfind("indexes") for word in (part.text or "").split()]
    words = [word for part in element.iterfind("u64values") for word in (part.text or "").split()]
    count = len(labels)
    if (
        element.get("nbobjs") != str(count)
        or len(words) != count**2
        or not all(re.fullmatch(r"[0-9]{1,12}", word) for word in words)
    ):
        what = f"nbobjs={element.get('nbobjs')!r}, {count} indexes and {len(words)} values"
        raise SpecError(f"{where}: {name} has {what}; n, n and n x n are right")
    if element.get("indexing", "gp") != "gp":
        raise SpecError(f"{where}: {name} has indexing={element.get('indexing')!r}; 'gp' is read")
    return labels, [[int(word) for word in words[i : i + count]] for i in range(0, count**2, count)]


def _read_matrix(
    labels: list[str], values: list[list[int]], kind: LinkKind, machine: _Machine
) -> tuple[tuple[FoundLink, ...], tuple[float, ...], bool, list[str]]:
    gpu_of = {
        element.get("gp_index", ""): i for i, path in enumerate(machine.gpus) for element in path[-1].iter("object")
    }
    rows = {gpu_of[label]: at for at, label in enumerate(labels) if label in gpu_of}
    switches = [at for at, label in enumerate(labels) if label not in gpu_of]
    gpus = range(len(machine.gpus))
    if rows.keys() != set(gpus):
        lost = [str(gpu) for gpu in gpus if gpu not in rows]
        raise SpecError(f"{machine.where}: the matrix of {kind} lacks GPUs {some(lost)}; all {len(gpus)} are right")
    rate, direct = {}, 0
    for a, b in combinations(gpus, 2):
        from_a, from_b = values[rows[a]], values[rows[b]]
        direct += from_a[rows[b]] > 0
        if value := from_a[rows[b]] + sum(min(from_a[at], from_b[at]) for at in switches):
            rate[a, b] = value
    lane = LANE_MB_PER_S if kind == "nvlink" else max(rate.values(), default=1)
    links = tuple((a, b, max(1, value // lane), kind) for (a, b), value in rate.items())
    switch = not direct and len(rate) == comb(len(gpus), 2) > 0
    notes = [f"assumed: {lane / 1000:g} GB/s a cable; the matrix gives bandwidths only"] if links else []
    if switches and not switch and not direct:
        notes.append("cables between switches are not in the file: GPUs without a common one have no link")
    return links, tuple(value * 1e6 for value in rate.values()), switch, notes
