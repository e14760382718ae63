"""Topology files of NCCL and RCCL: what NCCL_TOPO_DUMP_FILE holds, and what clouds ship for NCCL_TOPO_FILE."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree.ElementTree import Element

from moeplan.errors import SpecError
from moeplan.importers.found import Found, FoundLink, FoundNic, FoundNode, LinkKind, some
from moeplan.importers.xml_tree import Path, bus_key, cpus_in, nearest, paths

GPU_CLASSES = ("0x0302", "0x0380", "0x1200")
NIC_CLASSES = ("0x0200", "0x0207")
"""Classes of PCI devices: 3D controller (NVIDIA), other display controller and processing accelerator (AMD); Ethernet
and InfiniBand. Source: PCI Code and ID Assignment Specification, section 1. A VGA controller (0x0300) is a console."""
SWITCH_CLASS = "0x0680"
"""Class of the far end of an NVLink that is an NVSwitch: "other bridge", as src/graph/xml.cc of NCCL compares it."""


class _Device(NamedTuple):
    path: Path
    bus_id: str
    element: Element
    """What describes it: <gpu>, <net>, or <pci> where there is only that."""


def read_nccl(root: Element, where: str) -> Found:
    """GPUs, NIC ports with their speeds, NVLink or XGMI cables, NUMA nodes and CPUs of one node.

    GPUs are counted by `dev`, else by PCI address. NICs near a GPU share the longest way of PCI bridges with it. Speeds
    of <net> are in Mbit/s. SpecError where there is no GPU, or two ends of a cable disagree.
    """
    every = paths(root, where)
    _check_one_host(every, where)
    gpus = _gpus(every, where)
    nics = _nics(every, where)
    if not gpus:
        classes = ", ".join(GPU_CLASSES)
        raise SpecError(
            f"{where}: no GPU: neither <gpu> nor a <pci> of class {classes}; the file of a GPU node is right"
        )
    cpus = [_cpu(gpu.path) for gpu in gpus]
    links, switch, notes = _links(gpus, where)
    node = FoundNode(
        len(gpus),
        "",
        tuple(_nic(nic, where) for nic in nics),
        tuple(nearest(gpu.path, [nic.path for nic in nics]) for gpu in gpus),
        links,
        switch,
        tuple(_numa(cpu, where) for cpu in cpus),
        tuple(cpus_in("" if cpu is None else cpu.get("affinity", ""), where) for cpu in cpus),
    )
    return Found("nccl-xml", node, (), (), (), (*_missing(node), *notes))


def _missing(node: FoundNode) -> tuple[str, ...]:
    notes = ["names of GPUs, bandwidths of NVLink and XGMI, and other nodes are not in the file"]
    if silent := [nic.name for nic in node.nics if not nic.bytes_per_s]:
        notes.append(f"speeds of NICs are not in the file: {some(silent)}")
    if not node.links:
        notes.append("NVLink or XGMI between GPUs is not in the file")
    return tuple(notes)


def _check_one_host(every: list[Path], where: str) -> None:
    hosts = {path[-1].get("host_hash") for path in every if path[-1].tag == "cpu"}
    if len(hosts) > 1:
        raise SpecError(f"{where}: holds {len(hosts)} hosts; the file of one is right")


def _is(element: Element, classes: tuple[str, ...]) -> bool:
    return element.tag == "pci" and element.get("class", "").lower().startswith(classes)


def _above(path: Path, where: str) -> str:
    """The PCI address of the nearest <pci> on a path, "" where there is none (a NIC that is no PCI device)."""
    for element in reversed(path):
        if element.tag == "pci":
            bus_id = element.get("busid", "")
            bus_key(bus_id, where)
            return bus_id.lower()
    return ""


def _gpus(every: list[Path], where: str) -> list[_Device]:
    tagged = {path[-2]: path[-1] for path in every if path[-1].tag == "gpu" and len(path) > 1}
    found = [
        _Device(path, _above(path, where), tagged.get(path[-1], path[-1]))
        for path in every
        if path[-1] in tagged or _is(path[-1], GPU_CLASSES)
    ]
    addresses = [gpu.bus_id for gpu in found]
    if len(set(addresses)) < len(addresses) or "" in addresses:
        raise SpecError(f"{where}: GPUs at PCI addresses {some(addresses, 16)}; one address each is right")
    return _ordered(found, where)


def _nics(every: list[Path], where: str) -> list[_Device]:
    """Ports: every <net>, and every <pci> of a NIC's class that has none below it."""
    nets = [path for path in every if path[-1].tag == "net"]
    above = {element for path in nets for element in path}
    bare = [path for path in every if _is(path[-1], NIC_CLASSES) and path[-1] not in above]
    return _ordered([_Device(path, _above(path, where), path[-1]) for path in (*nets, *bare)], where)


def _ordered(found: list[_Device], where: str) -> list[_Device]:
    """By `dev` where all have one and none has another's, else by PCI address; those without address last."""
    devs = [device.element.get("dev", "") for device in found]
    if all(re.fullmatch(r"\d{1,6}", dev) for dev in devs) and len(set(devs)) == len(devs):
        return sorted(found, key=lambda device: int(device.element.get("dev", "")))
    return sorted(found, key=lambda device: (not device.bus_id, device.bus_id and bus_key(device.bus_id, where)))


def _nic(nic: _Device, where: str) -> FoundNic:
    speed = nic.element.get("speed", "0")
    if not re.fullmatch(r"\d{1,9}", speed):
        raise SpecError(f"{where}: speed={speed!r} of a <net>; a whole number of Mbit/s is right")
    name = nic.element.get("name") or nic.bus_id
    return FoundNic(name, int(speed) * 1e6 / 8, _numa(_cpu(nic.path), where))


def _cpu(path: Path) -> Element | None:
    return next((element for element in path if element.tag == "cpu"), None)


def _numa(cpu: Element | None, where: str) -> int:
    text = "-1" if cpu is None else cpu.get("numaid", "-1")
    if not re.fullmatch(r"-?\d{1,6}", text):
        raise SpecError(f"{where}: numaid={text!r} of a <cpu>; a whole number is right")
    return int(text)


def _links(gpus: list[_Device], where: str) -> tuple[tuple[FoundLink, ...], bool, list[str]]:
    """Cables between GPUs; behind NVSwitches the same count between all pairs: that of the GPU with fewer."""
    index = {gpu.bus_id: i for i, gpu in enumerate(gpus)}
    direct: dict[tuple[int, int], int] = {}
    kinds: dict[tuple[int, int], LinkKind] = {}
    to_switch, elsewhere = [0] * len(gpus), 0
    for i, gpu in enumerate(gpus):
        for link in (*gpu.element.iterfind("nvlink"), *gpu.element.iterfind("xgmi")):
            target, count = link.get("target", "").lower(), _count(link, where)
            if target in index:
                direct[i, index[target]] = direct.get((i, index[target]), 0) + count
                kinds[i, index[target]] = "nvlink" if link.tag == "nvlink" else "xgmi"
            elif link.get("tclass", "").lower().startswith(SWITCH_CLASS):
                to_switch[i] += count
            else:
                elsewhere += 1
    notes = (
        [f"{elsewhere} cables lead to what is neither a GPU of the file nor a switch: left out"] if elsewhere else []
    )
    if len(gpus) > 1 and all(to_switch):
        pairs = [(a, b) for a in range(len(gpus)) for b in range(a + 1, len(gpus))]
        if len(set(to_switch)) > 1:
            notes.append(f"GPUs have unequal numbers of cables to the switches: {to_switch}")
        return tuple((a, b, min(to_switch[a], to_switch[b]), "nvlink") for a, b in pairs), True, notes
    counts = _both_ways(direct, where)
    links = tuple((a, b, count, kinds[a, b]) for (a, b), count in sorted(counts.items()))
    return links, False, notes


def _count(link: Element, where: str) -> int:
    text = link.get("count", "")
    if not re.fullmatch(r"\d{1,4}", text) or not link.get("target"):
        raise SpecError(f"{where}: <{link.tag}> with target {link.get('target')!r} and count {text!r}; both are needed")
    return int(text)


def _both_ways(direct: dict[tuple[int, int], int], where: str) -> dict[tuple[int, int], int]:
    for (a, b), count in direct.items():
        if direct.get((b, a)) != count or a == b:
            back = direct.get((b, a), 0)
            raise SpecError(f"{where}: GPU {a} has {count} cables to GPU {b}, which has {back} back; the same is right")
    return {(a, b): count for (a, b), count in direct.items() if a < b}
