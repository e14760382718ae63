"""Where the ranks of a log sit on a cluster, and what its collective costs there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import structs

from moeplan.calibrate.collectives import PRICES
from moeplan.calibrate.logs import Log
from moeplan.cost import communication as network
from moeplan.errors import SpecError
from moeplan.hostlist import compress, listed
from moeplan.spec.calibration import Calibration
from moeplan.spec.cluster import ClusterSpec, check_cluster
from moeplan.spec.node import first_of
from moeplan.spec.shipped import load_cluster, shipped
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

NAMED = {"all_to_all": "alltoall"}
"""Patterns whose price goes by another name."""


def clusters_of(gpu: str) -> tuple[str, ...]:
    """Shipped clusters whose GPU is the one that a driver calls `gpu`: "NVIDIA H100 80GB HBM3" is H100."""
    words = re.split(r"[^A-Z0-9]+", gpu.upper())
    return tuple(name for name in shipped("cluster") if load_cluster(name).gpu.name.split()[0].upper() in words)


def domains(cluster: ClusterSpec, log: Log) -> tuple[int, ...]:
    """The node, or NVLink domain, of `cluster` that each rank of `log` sits on [ranks].

    A host is a node. Hosts fill as few domains as they can, evenly. SpecError where a host of the log has more ranks
    than a node has GPUs.
    """
    gpus, local = cluster.node.gpus, log.per_node
    if local > gpus:
        raise SpecError(
            f"{log.name}: line {log.line}: {local} ranks on one host; a node of cluster {cluster.name} has {gpus} GPUs"
        )
    count = -(-log.nodes // cluster.node.domain)
    return tuple(host * count // log.nodes for host in log.hosts)


def price(cluster: ClusterSpec, log: Log) -> Callable[[Calibration, float], float]:
    """Seconds of the collective of `log` for a calibration and bytes, on the GPUs of `cluster` that it used.

    A node that is used in part keeps the NICs that these GPUs use. A sendrecv sends from each rank to the next.
    All nodes are taken as the usual ones of the cluster, its first: a log does not say which they are. SpecError where
    the cluster's nodes have names and are fewer than the log needs.
    """
    local, domain, homes = log.per_node, cluster.node.domain, domains(cluster, log)
    node = first_of(cluster.node, local) if local < cluster.node.gpus else cluster.node
    home_of = dict(zip(log.hosts, homes, strict=True))
    begun: Counter[int] = Counter()
    places = []
    for host in sorted(home_of):
        places.append(home_of[host] * domain + begun[home_of[host]])
        begun[home_of[host]] += 1
    names = listed(cluster.hosts) or tuple(map(str, range(max(places) + 1)))
    if max(places) >= len(names):
        raise SpecError(
            f"{log.name}: line {log.line}: {log.nodes} hosts; cluster {cluster.name} has {len(names)} named nodes"
        )
    use = compress(names[place] for place in places)
    job = structs.replace(cluster, node=node, nodes=len(places), use=use, kinds=(), without_nics=())
    fabric = Fabric(build(check_cluster(job)))
    ranks = _seats([sorted(home_of).index(host) for host in log.hosts], local)
    if log.collective == "point_to_point":
        pairs = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
        return lambda calibration, size: network.point_to_point(fabric, calibration, pairs, size).seconds
    of = PRICES[NAMED.get(log.collective, log.collective)]
    return lambda calibration, size: of(fabric, calibration, [ranks], size).seconds


def _seats(homes: Sequence[int], local: int) -> list[int]:
    """The rank of the cluster that each rank of a log is, on nodes of `local` GPUs."""
    taken: Counter[int] = Counter()
    seats = []
    for home in homes:
        seats.append(home * local + taken[home])
        taken[home] += 1
    return seats
