"""What `ibnetdiscover` prints: the switches, adapters and cables of an InfiniBand fabric."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.importers.found import Found, FoundNic, FoundNode, FoundSwitch, UpLink, some, unique

LANE_GBIT_PER_S = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 14.0625 * 64 / 66,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data of one lane in one direction, after line coding. Source: InfiniBand Trade Association, InfiniBand roadmap."""
_HEAD = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-f]+)"\s+#\s*"(.*)"\s*(.*)')
_EXT, _PORT_ID = r"(?:\[ext [^\]]*\])?", r"(?:\([0-9a-f]+\))?"
_PORT = re.compile(
    rf'\[(\d{{1,4}})\]{_EXT}{_PORT_ID}\s+"([SHR]-[0-9a-f]+)"\[(\d{{1,4}})\]{_EXT}{_PORT_ID}\s*#.*\s(\d{{1,2}})x([A-Z]+\d*)'
)
_ASIDE = re.compile(r"(?:#|(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=|Chassis\b|ibwarn:)")
_NO_HOST = re.compile(r"Aggregation Node|Technologies|ConnectX", re.IGNORECASE)
"""Descriptions of adapters to which no host has given its name, and of those inside switches that sum (SHARP)."""
_ANY_HOST = ("localhost", "localhost.localdomain", "ubuntu")
"""Names that a host has before it is given one: they may stand for several."""


class _Port(NamedTuple):
    number: int
    peer: str
    peer_port: int
    bytes_per_s: float
    where: str


class _Record(NamedTuple):
    kind: str
    guid: str
    text: str
    ports: list[_Port]
    where: str


def looks_like(text: str) -> bool:
    """Whether `text` has a record or the heading of ibnetdiscover."""
    return bool(re.search(r'^(?:(?:Switch|Ca|Rt)\s+\d+\s+"|# Topology file: generated|vendid=)', text, re.MULTILINE))


def read_ibnet(text: str, where: str) -> Found:
    """Switches with their hosts, levels and cables; hosts; the adapters that most hosts have.

    The level of a switch is how many cables it is away from the nearest one with hosts. GPUs are not in the file.
    SpecError where a line is broken, a cable's far end has no record or says otherwise, or there is no switch: what a
    cut file or a run without privileges looks like.
    """
    records = _records(text, where)
    if not any(record.kind == "Switch" for record in records.values()):
        raise SpecError(f"no switches or blocks found in {where}: {len(records)} adapters; run ibnetdiscover as root")
    _check_ends(records)
    hosts = {guid: name for guid, record in records.items() if (name := _host(record))}
    switches = _switches(records, hosts)
    if not hosts:
        raise SpecError(f"{where}: none of the adapters names its host; descriptions such as 'node1 mlx5_0' are right")
    names = unique(tuple(host for switch in switches for host in switch.hosts))
    node, few = _adapters(records, hosts)
    return Found("ibnetdiscover", node, names, switches, (), (*_notes(records, hosts, switches), *few))


def _records(text: str, where: str) -> dict[str, _Record]:
    found: dict[str, _Record] = {}
    current: _Record | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        line, at = raw.strip(), f"{where}: line {number}"
        if not line or _ASIDE.match(line):
            continue
        if head := _HEAD.fullmatch(line):
            current = _Record(head[1], head[3], head[4], [], at)
            if current.guid in found:
                raise SpecError(f"{at}: {current.guid} has a second record; one is right")
            found[current.guid] = current
        elif current is None:
            raise SpecError(f"{at}: {line[:60]!r} before the first record; the whole output of ibnetdiscover is right")
        else:
            current.ports.append(_port(line, at))
    return found


def _port(line: str, where: str) -> _Port:
    match = _PORT.fullmatch(line)
    if match is None or match[5] not in LANE_GBIT_PER_S:
        rates = ", ".join(LANE_GBIT_PER_S)
        raise SpecError(f"{where}: {line[:60]!r} is no record or port with a rate such as 4xNDR ({rates}); is it cut?")
    rate = int(match[4]) * LANE_GBIT_PER_S[match[5]] * 1e9 / 8
    return _Port(int(match[1]), match[2], int(match[3]), rate, where)


def _check_ends(records: dict[str, _Record]) -> None:
    """SpecError with the first cable that only one end knows, or that has two rates: the file is cut or edited.

    Nor is there a record without a cable in a whole file: everything was found over one.
    """
    for record in records.values():
        if not record.ports:
            raise SpecError(f"{record.where}: {record.guid} has no ports; one at least is right; the file may be cut")
    ends = {(guid, port.number): port for guid, record in records.items() for port in record.ports}
    for (guid, number), port in ends.items():
        back = ends.get((port.peer, port.peer_port))
        if port.peer not in records:
            raise SpecError(f"{port.where}: {port.peer} has no record; the file may be cut")
        if back is None or (back.peer, back.peer_port) != (guid, number) or back.bytes_per_s != port.bytes_per_s:
            raise SpecError(
                f"{port.where}: port {port.peer_port} of {port.peer} does not lead back; the file may be cut"
            )


def _host(record: _Record) -> str:
    """The host in an adapter's description, "name adapter" or "name"; "" where there is none."""
    words = record.text.split()
    return words[0] if record.kind == "Ca" and 1 <= len(words) <= 2 and not _NO_HOST.search(record.text) else ""


def _switches(records: dict[str, _Record], hosts: dict[str, str]) -> tuple[FoundSwitch, ...]:
    guids = [guid for guid, record in records.items() if record.kind == "Switch"]
    levels = _levels({guid: records[guid] for guid in guids}, hosts)
    names = _switch_names([records[guid] for guid in guids])
    rank = {guid: i for i, guid in enumerate(guids)}
    return tuple(
        FoundSwitch(
            names[guid],
            unique(tuple(hosts[port.peer] for port in records[guid].ports if port.peer in hosts)),
            _up(records[guid], levels, rank, names),
            levels[guid],
        )
        for guid in guids
    )


def _levels(switches: dict[str, _Record], hosts: dict[str, str]) -> dict[str, int]:
    edge = {guid for guid, record in switches.items() if any(port.peer in hosts for port in record.ports)}
    levels, level = dict.fromkeys(edge, 0), 0
    while edge:
        level += 1
        edge = {port.peer for guid in edge for port in switches[guid].ports if port.peer in switches} - levels.keys()
        levels |= dict.fromkeys(edge, level)
    return {guid: levels.get(guid, 0) for guid in switches}


def _up(record: _Record, levels: dict[str, int], rank: dict[str, int], names: dict[str, str]) -> tuple[UpLink, ...]:
    """Cables of a switch to those above it, and within its level to those after it, by peer and rate."""
    own = (levels[record.guid], rank[record.guid])
    cables = Counter(
        (names[port.peer], port.bytes_per_s)
        for port in record.ports
        if port.peer in levels and (levels[port.peer], rank[port.peer]) > own
    )
    return tuple((name, rate, count) for (name, rate), count in cables.items())


def _switch_names(records: list[_Record]) -> dict[str, str]:
    """The shortest of three names that no other switch has: S of "MF0;S:MODEL/U1", the description, the GUID."""
    short = {record.guid: _middle(record.text) for record in records}
    counts = [Counter(short.values()), Counter(record.text for record in records)]
    found = {}
    for record in records:
        choices = [short[record.guid], record.text]
        found[record.guid] = next(
            (name for name, count in zip(choices, counts, strict=True) if count[name] == 1), record.guid
        )
    return found


def _middle(text: str) -> str:
    match = re.fullmatch(r"MF0;([^:;]+):.*", text)
    return match[1] if match else text


def _adapters(records: dict[str, _Record], hosts: dict[str, str]) -> tuple[FoundNode | None, list[str]]:
    """The adapter ports of the first host that has as many as most hosts; a note on those with other numbers."""
    ports: dict[str, list[FoundNic]] = {}
    for guid, host in hosts.items():
        words = records[guid].text.split()
        for port in records[guid].ports:
            ports.setdefault(host, []).append(FoundNic(words[-1] if words[1:] else guid, port.bytes_per_s, -1))
    counts = Counter(len(nics) for nics in ports.values())
    if not counts:
        return None, []
    most = max(counts, key=lambda count: (counts[count], count))
    nics = next(tuple(sorted(nics)) for nics in ports.values() if len(nics) == most)
    other = [host for host, nics in ports.items() if len(nics) != most]
    notes = [f"{len(other)} of {len(ports)} hosts have not {most} named adapter ports: {some(other)}"] if other else []
    return FoundNode(0, "", nics, (), (), False, (), ()), notes


def _notes(records: dict[str, _Record], hosts: dict[str, str], switches: tuple[FoundSwitch, ...]) -> list[str]:
    notes = ["GPUs of the hosts are not in the file"]
    adapters = [record for record in records.values() if record.kind == "Ca" and record.guid not in hosts]
    summing = [record for record in adapters if "aggregation node" in record.text.lower()]
    if summing:
        notes.append(f"{len(summing)} aggregation nodes inside switches are no hosts")
    if len(adapters) > len(summing):
        notes.append(f"{len(adapters) - len(summing)} adapters do not name their host and are left out")
    places = Counter(host for switch in switches for host in switch.hosts)
    if railed := [host for host, count in places.items() if count > 1]:
        notes.append(f"{len(railed)} hosts are on more than one switch, as in a network of rails: {some(railed)}")
    if general := sorted({host for host in hosts.values() if host in _ANY_HOST}):
        notes.append(f"these names may stand for several hosts: {some(general)}")
    levels = {switch.name: switch.level for switch in switches}
    if any(levels[name] == switch.level for switch in switches for name, _, _ in switch.up):
        notes.append("switches of one level are linked with each other")
    return notes
