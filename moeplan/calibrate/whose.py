"""Whether logs are of the machine that they are fitted on: its GPUs, its NICs, its nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from moeplan.calibrate.logs import Log
from moeplan.importers.found import some
from moeplan.spec.cluster import ClusterSpec

SAID_OF_ALL = re.compile(r"NVIDIA|AMD|INSTINCT|TESLA|RADEON|GRAPHICS|GPU|GCD|OAM|SXM\d?|HBM\d?E?")
"""Words in names of GPUs that tell none from another: makers, families, sockets and memory of the usual form."""


def same_gpu(one: str, other: str) -> bool:
    """Whether two names may be of one GPU: what tells it in one is in the other.

    "NVIDIA H100 80GB HBM3" and "H100 SXM 80GB" are, "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB" and "A100 SXM 80GB"
    are not.
    """
    a, b = _telling(one), _telling(other)
    return a <= b or b <= a if a and b else a == b


def _telling(name: str) -> set[str]:
    return {word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word and not SAID_OF_ALL.fullmatch(word)}


def differences(logs: Sequence[Log], cluster: ClusterSpec) -> list[str]:
    """Where logs name other GPUs, NICs or nodes than `cluster` has, a line for each difference with both sides.

    Ranks on a host are compared where there are several hosts: one host is often tested in part. What a log does not
    tell is passed over.
    """
    node, nics = cluster.node, {cluster.node.nics, *(kind.node.nics for kind in cluster.kinds)}
    logs = [log for log in logs if not log.unused]
    gpus = _by(logs, lambda log: "" if not log.gpu or same_gpu(log.gpu, cluster.gpu.name) else log.gpu)
    cards = _by(logs, lambda log: str(log.nics) if log.nics and log.nics not in nics else "")
    ranks = _by(logs, lambda log: str(log.per_node) if log.nodes > 1 and log.per_node < node.gpus else "")
    hosts = _by(logs, lambda log: str(log.nodes) if log.nodes > cluster.nodes else "")
    has = f"cluster {cluster.name} has"
    told = [f"{names}: GPUs are {gpu}; {has} {cluster.gpu.name}" for gpu, names in gpus.items()]
    told += [f"{names}: {count} NICs on a host; {has} {node.nics} on a node" for count, names in cards.items()]
    told += [f"{names}: {count} ranks on a host; {has} {node.gpus} GPUs on a node" for count, names in ranks.items()]
    told += [f"{names}: {count} hosts; {has} {cluster.nodes} nodes" for count, names in hosts.items()]
    return told


def _by(logs: Sequence[Log], what: Callable[[Log], str]) -> dict[str, str]:
    """The logs of each odd value, by name."""
    found: dict[str, list[str]] = {}
    for log in logs:
        if value := what(log):
            found.setdefault(value, []).append(log.name)
    return {value: some(list(dict.fromkeys(names))) for value, names in found.items()}
