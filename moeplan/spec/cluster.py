"""What a cluster is: nodes, the network between them, and which of its places a job's nodes take."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import groupby
from math import ceil, gcd

import msgspec

from moeplan.errors import SpecError
from moeplan.hostlist import compress, listed
from moeplan.spec.evenly import evenly
from moeplan.spec.given import of_type
from moeplan.spec.model import Count, Size
from moeplan.spec.network import Dragonfly as Dragonfly
from moeplan.spec.network import FatTree as FatTree
from moeplan.spec.network import Level as Level
from moeplan.spec.network import Network as Network
from moeplan.spec.network import Rail as Rail
from moeplan.spec.network import Switch as Switch
from moeplan.spec.network import Switches as Switches
from moeplan.spec.network import Torus as Torus
from moeplan.spec.network import Tree as Tree
from moeplan.spec.network import bandwidths, check_network, single_hop_places
from moeplan.spec.node import Bridge as Bridge
from moeplan.spec.node import Gpu as Gpu
from moeplan.spec.node import Link as Link
from moeplan.spec.node import Node as Node
from moeplan.spec.node import check_node, first_of, without_nic
from moeplan.spec.node import nic_of as nic_of
from moeplan.spec.record import Record


class Kind(Record):
    """Nodes that are not like the others. They have as many GPUs, none of them slower than the cluster's `gpu`."""

    nodes: str
    """Host list of their names."""
    node: Node


class ClusterSpec(Record):
    """A cluster; a job's ranks are numbered node by node."""

    name: str
    nodes: Size
    """Nodes of a job, which are all of the machine where `use` is empty and no other number is asked for."""
    gpu: Gpu
    node: Node
    network: Network
    calibration: str = "generic"
    """Name or path of the calibration to use when none is given."""
    hosts: str = ""
    """Host list of the machine's nodes by their places in the network; empty: they are called 0, 1, ..."""
    use: str = ""
    """Host list of a job's nodes, in the order of its ranks; empty: the first `nodes`."""
    exclude: str = ""
    """Host list of nodes that no job gets; only in files and settings, as it is turned into `use`."""
    kinds: tuple[Kind, ...] = ()
    without_nics: tuple[tuple[str, Count], ...] = ()
    """NICs that are out of order: [["node7", 1], ...], each with the node's name and its number there."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """Where each number came from, for readers."""


def num_ranks(cluster: ClusterSpec) -> int:
    """GPUs of the job's nodes."""
    return cluster.nodes * cluster.node.gpus


def node_of(cluster: ClusterSpec, rank: int) -> int:
    """The node, counted from 0 in the order of the job, that `rank` sits on."""
    return rank // cluster.node.gpus


def hosts_of(cluster: ClusterSpec) -> tuple[str, ...]:
    """The names of the job's nodes, in the order of its ranks."""
    if cluster.use:
        return listed(cluster.use)
    named = listed(cluster.hosts)
    return named[: cluster.nodes] if named else tuple(map(str, range(cluster.nodes)))


def places_of(cluster: ClusterSpec) -> tuple[int, ...]:
    """Where in the network the job's nodes are, in the order of its ranks."""
    return _places(cluster.hosts, cluster.use, cluster.nodes)


@lru_cache(maxsize=256)
def _places(hosts: str, use: str, nodes: int) -> tuple[int, ...]:
    if not use:
        return tuple(range(nodes))
    if not hosts:
        return tuple(int(name) for name in listed(use))
    place = {name: i for i, name in enumerate(listed(hosts))}
    return tuple(place[name] for name in listed(use))


def pick(cluster: ClusterSpec, hostlist: str) -> ClusterSpec:
    """`cluster` with a job on the nodes of `hostlist`, in that order; SpecError for one that is not there, or twice."""
    return check_cluster(msgspec.structs.replace(cluster, use=hostlist, nodes=max(1, len(listed(hostlist)))))


def leave_out(cluster: ClusterSpec, hostlist: str) -> ClusterSpec:
    """`cluster` without the nodes of `hostlist`; SpecError for one that the job has not, or where none is left."""
    have, lost = hosts_of(cluster), set(listed(hostlist))
    if wrong := sorted(lost - set(have)):
        raise SpecError(f"cluster {cluster.name}: node {wrong[0]!r} is to be left out, and not there")
    if not (left := [host for host in have if host not in lost]):
        raise SpecError(f"cluster {cluster.name}: no node is left without {hostlist!r}")
    return msgspec.structs.replace(cluster, use=compress(left), nodes=len(left))


def node_at(cluster: ClusterSpec, host: str) -> Node:
    """The node called `host`: one of `kinds` or the usual one, without the NICs that are out of order."""
    found = next((kind.node for kind in cluster.kinds if host in listed(kind.nodes)), cluster.node)
    lost = [nic for name, nic in cluster.without_nics if name == host]
    return without_nic(found, lost) if lost else found


def domain_gpus(cluster: ClusterSpec) -> int:
    """GPUs that one switch inside nodes joins: those of a node, or of the nodes of a job in one NVLink domain.

    Where domains have different numbers of the job's nodes, the largest number that all are made of.
    """
    if cluster.node.domain == 1:
        return cluster.node.gpus
    return cluster.node.gpus * gcd(*(len(list(run)) for _, run in groupby(homes(cluster))))


def homes(cluster: ClusterSpec) -> tuple[int, ...]:
    """The NVLink domain of each of the job's nodes, counted from 0 in the order in which the job meets them."""
    return _homes(places_of(cluster), cluster.node.domain)


@lru_cache(maxsize=256)
def _homes(places: tuple[int, ...], domain: int) -> tuple[int, ...]:
    met: dict[int, int] = {}
    return tuple(met.setdefault(place // domain, len(met)) for place in places)


def domain_of(cluster: ClusterSpec, rank: int) -> int:
    """The NVLink domain, as in `homes`, that `rank` is in."""
    return homes(cluster)[node_of(cluster, rank)]


def domains(cluster: ClusterSpec) -> int:
    """NVLink domains that the job's nodes are in; its nodes where each is one."""
    return max(homes(cluster)) + 1


def single_hop_nodes(cluster: ClusterSpec) -> int:
    """Nodes that follow each other in the job and share one leaf, unit or switch: the largest number that all runs of
    such nodes are made of. It may be more than the job has where these are the first of the machine.
    """
    if isinstance(cluster.network, Switches):
        return gcd(*(len(list(run)) for _, run in groupby(hosts_of(cluster), switch_of(cluster.network).__getitem__)))
    return _run(cluster, single_hop_places(cluster.network, cluster.node))


def _run(cluster: ClusterSpec, together: int) -> int:
    """Nodes of the shortest runs at `together` neighbouring places, of which all runs are made."""
    if not cluster.use:
        return together
    return gcd(*(len(list(run)) for _, run in groupby(place // together for place in places_of(cluster))))


def switch_of(network: Switches) -> dict[str, str]:
    """The switch of each host."""
    return {host: switch.name for switch in network.switches for host in listed(switch.nodes)}


MOST_GPUS = 2**17
"""More GPUs, or NICs, are taken for a slip: the largest machines have half as many."""


def check_cluster(cluster: ClusterSpec) -> ClusterSpec:
    """`cluster` without the nodes to `exclude`; SpecError where numbers do not go together.

    Where nodes or GPUs cannot reach each other, a GPU has no type to compute in, a node is not there or there twice, or
    the network has fewer places.
    """
    name, node = cluster.name, cluster.node
    if cluster.nodes > 1 and node.nics == 0:
        raise SpecError(f"cluster {name}: nodes {cluster.nodes} with nics 0; a node of several needs a NIC")
    if not cluster.gpu.peak_flop_per_s:
        raise SpecError(f"cluster {name}: gpu.peak is empty; give at least one, such as bf16")
    speeds: dict[str, float] = {f"gpu.peak.{kind}": peak for kind, peak in cluster.gpu.peak_flop_per_s.items()}
    speeds |= {"gpu.hbm": cluster.gpu.hbm_bytes, "gpu.hbm_bandwidth": cluster.gpu.hbm_bytes_per_s}
    speeds |= _node_speeds("node", node)
    for kind in cluster.kinds:
        speeds |= _node_speeds(f"nodes {_short(kind.nodes)}, node", kind.node)
    speeds |= {f"network.{kind}": value for kind, value in bandwidths(cluster.network).items()}
    for what, value in speeds.items():
        if value < 1:
            raise SpecError(f"cluster {name}: {what} is {value}; at least 1 in SI units")
    nics = max(node.nics, *(kind.node.nics for kind in cluster.kinds), 0)
    for what, each in {"GPUs": node.gpus, "NICs": nics}.items():
        if cluster.nodes * each > MOST_GPUS:
            raise SpecError(f"cluster {name}: {cluster.nodes * each} {what}; at most {MOST_GPUS}")
    check_node(name, node)
    _check_hosts(cluster)
    _check_kinds(cluster)
    try:
        check_network(cluster.network, node, places_of(cluster), hosts_of(cluster))
    except SpecError as error:
        raise SpecError(f"cluster {name}: {error}") from None
    if not cluster.exclude:
        return cluster
    return leave_out(msgspec.structs.replace(cluster, exclude=""), cluster.exclude)


def _node_speeds(where: str, node: Node) -> dict[str, float]:
    """The bandwidths of `node` by their names in files, but for `links`, which `check_node` sees to."""
    speeds: dict[str, float] = {f"{where}.link": node.link_bytes_per_s, f"{where}.nic": node.nic_bytes_per_s}
    if node.bridge:
        speeds[f"{where}.bridge.uplink"] = node.bridge.uplink_bytes_per_s
    return speeds


def _check_hosts(cluster: ClusterSpec) -> None:
    """SpecError where names are given twice, a job's node is not there, or there are fewer nodes than it has."""
    for what in ("hosts", "use"):
        names = listed(getattr(cluster, what))
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise SpecError(f"cluster {cluster.name}: {what} has {twice!r} twice")
    named, used = listed(cluster.hosts), listed(cluster.use)
    if named and cluster.nodes > len(named):
        raise SpecError(f"cluster {cluster.name}: nodes is {cluster.nodes}, hosts has {len(named)}")
    if used and len(used) != cluster.nodes:
        raise SpecError(f"cluster {cluster.name}: nodes is {cluster.nodes}, use has {len(used)}")
    known = set(named)
    for host in used:
        if host not in known if named else not (host.isdecimal() and str(int(host)) == host):
            right = f"hosts are {_short(cluster.hosts)}" if named else "without hosts nodes are called 0, 1, ..."
            raise SpecError(f"cluster {cluster.name}: node {host!r} of use is not there; {right}")


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _check_kinds(cluster: ClusterSpec) -> None:
    """SpecError for nodes of other kinds that are not there, have other GPUs, or lack the NIC that is out of order."""
    known = set(listed(cluster.hosts)) or {str(place) for place in places_of(cluster)}
    told = [host for kind in cluster.kinds for host in listed(kind.nodes)]
    if len(set(told)) < len(told):
        twice = next(host for host, count in Counter(told).items() if count > 1)
        raise SpecError(f"cluster {cluster.name}: kinds has node {twice!r} twice; a node is of one kind")
    for kind in cluster.kinds:
        _check_kind(cluster, kind)
    for host in (*told, *(name for name, _ in cluster.without_nics)):
        if host not in known:
            what = "kinds" if host in told else "without_nics"
            raise SpecError(f"cluster {cluster.name}: node {host!r} of {what} is not there")
    together = set(hosts_of(cluster)) - set(listed(cluster.exclude)) if cluster.nodes > 1 else set()
    for kind in cluster.kinds:
        if not kind.node.nics and (apart := [host for host in listed(kind.nodes) if host in together]):
            raise SpecError(f"cluster {cluster.name}: node {apart[0]!r} has nics 0; a node of several needs a NIC")
    for host, nic in cluster.without_nics:
        try:
            left = node_at(cluster, host).nics
        except SpecError as error:
            raise SpecError(f"cluster {cluster.name}: without_nics, node {host!r}: {error}") from None
        if not left and host in together:
            raise SpecError(f"cluster {cluster.name}: node {host!r} has no NIC left without NIC {nic}; exclude it")


def _check_kind(cluster: ClusterSpec, kind: Kind) -> None:
    """SpecError where `kind` is of no nodes, or its node does not go with the others."""
    if not kind.nodes:
        raise SpecError(f"cluster {cluster.name}: nodes of kinds is empty; a host list such as node[01-04,07] is right")
    which = f"nodes {_short(kind.nodes)}"
    check_node(f"{cluster.name}, {which}", kind.node)
    if kind.node.gpus != cluster.node.gpus:
        raise SpecError(
            f"cluster {cluster.name}: {which} have {kind.node.gpus} GPUs, others {cluster.node.gpus}; all nodes of a"
            " job have as many"
        )
    if kind.node.domain != cluster.node.domain:
        raise SpecError(
            f"cluster {cluster.name}: {which} have domain {kind.node.domain}, others {cluster.node.domain}; all are in"
            " domains of as many nodes"
        )


def first_gpus(cluster: ClusterSpec, count: int) -> ClusterSpec:
    """The first `count` GPUs in node order: whole nodes, or one node with fewer GPUs.

    Of NVLink domains larger than a node, the first that can give as many nodes each: 128 GPUs of racks of 72 are 64 of
    each of two (`_evenly`). A part of a node keeps the NICs that its GPUs used; on one node they carry nothing.
    SpecError where `count` is neither, or more than the cluster has, or the GPUs that are left are not joined.
    """
    of_type(cluster, ClusterSpec, "cluster", right="a ClusterSpec, as load_cluster(...) gives")
    of_type(count, int, "count", right="a whole number of GPUs")
    gpus, total = cluster.node.gpus, num_ranks(cluster)
    if count < 1 or count > total:
        raise SpecError(f"cluster {cluster.name}: {count} GPUs asked for, of {total}; take 1 to {total}")
    if count >= gpus and count % gpus:
        raise SpecError(
            f"cluster {cluster.name}: {count} GPUs are not whole nodes of {gpus}; take a multiple of {gpus}"
        )
    nodes = max(1, count // gpus)
    part = msgspec.structs.replace(cluster, nodes=nodes, use=_first_nodes(cluster, nodes))
    if count >= gpus:
        return part
    host = hosts_of(part)[0]
    try:
        node = first_of(node_at(cluster, host), count)
    except SpecError as error:
        raise SpecError(f"cluster {cluster.name}: {error}") from None
    return msgspec.structs.replace(part, node=msgspec.structs.replace(node, domain=1), kinds=(), without_nics=())


def _first_nodes(cluster: ClusterSpec, nodes: int) -> str:
    """Host list of the job's first `nodes` nodes, evenly over its NVLink domains; empty for those of the machine."""
    numbers = evenly(homes(cluster), nodes) if cluster.node.domain > 1 else range(nodes)
    if not cluster.use and max(numbers) < nodes:
        return ""
    hosts = hosts_of(cluster)
    return compress(hosts[n] for n in numbers)


def sized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """`gpus` GPUs of a machine like `cluster` that has enough, in twice as many NVLink domains as they fill.

    SpecError as `first_gpus`; where names or switches say which nodes there are, it stays as large as it is.
    """
    nodes, domain = max(1, gpus // cluster.node.gpus), cluster.node.domain
    room = nodes if domain == 1 else 2 * domain * ceil(nodes / domain)
    fixed = cluster.use or cluster.hosts or isinstance(cluster.network, Switches)
    return first_gpus(cluster if fixed else msgspec.structs.replace(cluster, nodes=room), gpus)


def with_nodes(cluster: ClusterSpec, nodes: int) -> ClusterSpec | None:
    """A job on the first `nodes` nodes of the machine, or of a larger one like it.

    Where switches are given one by one nobody knows how a larger one would be: none if fewer nodes are on them.
    """
    if not isinstance(cluster.network, Switches):
        return msgspec.structs.replace(cluster, nodes=nodes, use="", hosts="")
    on = switch_of(cluster.network)
    there = [host for host in listed(cluster.hosts) or map(str, range(nodes)) if host in on][:nodes]
    return msgspec.structs.replace(cluster, nodes=nodes, use=compress(there)) if len(there) == nodes else None
