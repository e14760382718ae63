"""How busy each link is when blocks of ranks (slots) are put on nodes in an order: linear in who is where.

Nodes that are linked to the same switches, and alike, are of one class; which of them a slot takes changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.cost.flows import Flows
from moeplan.errors import SpecError
from moeplan.spec.cluster import ClusterSpec, domains, hosts_of, node_at
from moeplan.topology.detours import Detours
from moeplan.topology.graph import build
from moeplan.topology.inside import Floats, Integers
from moeplan.topology.routes import Fabric

MOST_TRANSFERS = 2**23
"""Routes looked up for one job; more would take minutes."""


class RoutesError(SpecError):
    """A job too large to judge orders of its nodes."""


class Score(NamedTuple):
    """What an order comes to; less is better."""

    busiest_s: float
    """Bytes over bandwidth of the busiest link, those inside nodes and NICs included."""
    total_s: float
    """The sum of bytes over bandwidth of the links that depend on the order."""

    @property
    def rank(self) -> tuple[float, float]:
        """What orders are sorted by: six digits of the busiest link, so that rounding does not decide; then the sum."""
        return float(f"{self.busiest_s:.6g}"), float(f"{self.total_s:.6g}")


class Around(NamedTuple):
    """The links between groups among those that depend on the order."""

    edges: Detours
    links: Integers
    """Where each of `edges` is among the links."""
    together: Floats
    """Seconds per byte: of links that are none of these, and of all that leave or reach one group [links, ones]."""


class Slots(NamedTuple):
    """A job's slots, its nodes' classes, and what slots on classes ask of links."""

    classes: Integers
    """The class of each node of the job, in the order of the job [nodes]."""
    source: Integers
    """Of every pair of slots with traffic of one shape [pairs]; a shape is which GPU of a node sends to which."""
    target: Integers
    shape: Integers
    bytes: Floats
    row: Integers
    """Of every link that pairs cross: the number (shape, class, class), in ascending order [crossings]."""
    link: Integers
    """The crossed one, counted from 0 among `edges` [crossings]."""
    share: Floats
    edges: Integers
    """The links that depend on the order, by their numbers in the graph [links]."""
    fabric: Fabric
    fixed_s: float
    """Bytes over bandwidth of the busiest link that does not depend on the order."""
    detours: Around | None = None
    """With adaptive routing."""

    @property
    def width(self) -> int:
        """Classes."""
        return int(self.classes.max(initial=-1)) + 1

    @property
    def shapes(self) -> int:
        """Shapes of traffic."""
        return int(self.shape.max(initial=-1)) + 1

    def loads(self, orders: Integers) -> Floats:
        """Bytes over bandwidth of every link [orders, links], where slot s is on a node of class `orders[:, s]`."""
        carried = self.carried(orders)
        if self.detours is not None:
            at = self.detours.links
            edges = self.detours.edges
            kept = edges.kept(carried[:, at], self.bandwidth[at])
            carried[:, at] = edges.carried(carried[:, at], kept)
        return carried / self.bandwidth

    def least(self, orders: Integers) -> Floats:
        """As `loads`, but with adaptive routing no more than that: instead of the links between groups, what each group
        sends to all others and gets from them over all its links together [orders, links].
        """
        if self.detours is None:
            return self.loads(orders)
        return self.carried(orders) @ self.detours.together

    def carried(self, orders: Integers) -> Floats:
        """Bytes that go over every link [orders, links] without detours."""
        width, rows = self.width, self.shapes * self.width**2
        number = self.shape * width**2 + orders[:, self.source] * width + orders[:, self.target]
        number += np.arange(len(orders))[:, None] * rows
        sent = np.bincount(number.ravel(), np.tile(self.bytes, len(orders)), minlength=len(orders) * rows)
        sent = sent.reshape(len(orders), rows)
        at = np.arange(len(orders))[:, None] * self.edges.size + self.link
        size = len(orders) * self.edges.size
        carried = np.bincount(at.ravel(), (sent[:, self.row] * self.share).ravel(), size).astype(np.float64)
        return np.asarray(carried.reshape(len(orders), -1), dtype=np.float64)

    @property
    def bandwidth(self) -> Floats:
        """Bytes per second of every link [links]."""
        return self.fabric.bandwidth_bytes_per_s[self.edges]

    def score(self, order: Integers) -> Score:
        """What one order of classes comes to [nodes]."""
        (loads,) = self.loads(order[None])
        return Score(max(self.fixed_s, float(loads.max(initial=0.0))), float(loads.sum()))


def slots_of(cluster: ClusterSpec, flows: Flows) -> Slots:
    """The slots of a job on the nodes of `cluster` whose ranks send each other `flows`.

    Where nodes are alike, on one switch each and no NVLink domain joins several, only links between switches depend on
    the order; else a node is a class of its own and all links count. RoutesError where that is too much to look up.
    """
    fabric, gpus = Fabric(build(cluster)), cluster.node.gpus
    attached = _attached(fabric, cluster.nodes)
    alike = _alike(cluster) and all(len(switches) == 1 for switches in attached)
    keys = attached if alike else [*range(cluster.nodes)]
    first, classes = _numbered(keys)
    source, target = flows.source // gpus, flows.target // gpus
    far = np.flatnonzero(source != target)
    pair = source[far] * cluster.nodes + target[far]
    pairs, number = np.unique(pair, return_inverse=True)
    total = np.asarray(np.bincount(number, flows.bytes[far], minlength=pairs.size), dtype=np.float64)
    inner = (flows.source[far] % gpus) * gpus + flows.target[far] % gpus
    parts = [(np.zeros(1, np.intp), np.ones(1))]
    shape = np.zeros(pairs.size, np.intp)
    if not alike:
        shape, parts = _shapes(number, inner, flows.bytes[far] / total[number], pairs.size)
    row, edge, share = _crossings(fabric, gpus, first, parts)
    loads = fabric.loads(flows.source, flows.target, flows.bytes) / fabric.bandwidth_bytes_per_s
    moving = between_switches(fabric) if alike else np.ones(len(fabric.edges), dtype=np.bool_)
    kept = moving[edge]
    edges, link = np.unique(edge[kept], return_inverse=True)
    if fabric.adaptive:  # detours load further links
        edges = np.flatnonzero(moving)
        link = np.searchsorted(edges, edge[kept])
    return Slots(
        classes,
        pairs // cluster.nodes,
        pairs % cluster.nodes,
        shape,
        total,
        row[kept],
        link,
        share[kept],
        edges,
        fabric,
        float(loads[~moving].max(initial=0.0)),
        _around(fabric, edges),
    )


def _around(fabric: Fabric, links: Integers) -> Around | None:
    """Detours over `links`, the numbers of edges that depend on the order."""
    detours = fabric.detours
    if detours is None or not fabric.adaptive:
        return None
    speed, at = fabric.bandwidth_bytes_per_s, np.searchsorted(links, detours.edge)
    alone = np.delete(np.eye(links.size), at, axis=1) / speed[links][:, None]
    sides = np.zeros((2, links.size, detours.groups))
    for side, group in zip(sides, (detours.tail, detours.head), strict=True):
        side[at, group] = 1 / np.bincount(group, speed[detours.edge])[group]
    return Around(detours, at, np.concatenate([alone, *sides], axis=1))


def _alike(cluster: ClusterSpec) -> bool:
    """Whether nodes are all of one kind, or those of the job are, and each is its own NVLink domain."""
    if domains(cluster) < cluster.nodes:
        return False
    if not (cluster.kinds or cluster.without_nics):
        return True
    lost = {host for host, _ in cluster.without_nics}
    hosts = hosts_of(cluster)
    return not lost & set(hosts) and len({node_at(cluster, host) for host in hosts}) == 1


def _attached(fabric: Fabric, nodes: int) -> list[tuple[object, ...]]:
    """What the NICs of each node are linked to."""
    found: list[dict[object, None]] = [{} for _ in range(nodes)]
    for a, b in fabric.edges:
        if a[0] == "nic" and b[0] != "gpu":
            found[int(a[1])][b] = None
    return [tuple(switches) for switches in found]


def _numbered(keys: list[tuple[object, ...]] | list[int]) -> tuple[Integers, Integers]:
    """The first node of each class, and the class of each node; classes in the order in which they are met."""
    met: dict[object, int] = {}
    classes = [met.setdefault(key, len(met)) for key in keys]
    first = [classes.index(number) for number in range(len(met))]
    return np.array(first, dtype=np.intp), np.array(classes, dtype=np.intp)


def between_switches(fabric: Fabric) -> NDArray[np.bool_]:
    """The edges that neither start nor end at a GPU, a NIC or a switch inside a node."""
    inner = ("gpu", "nic", "node", "bridge")
    return np.array([a[0] not in inner and b[0] not in inner for a, b in fabric.edges], dtype=np.bool_)


def _shapes(
    number: Integers, inner: Integers, share: Floats, pairs: int
) -> tuple[Integers, list[tuple[Integers, Floats]]]:
    """The shape of each pair; of each shape the GPUs that send, as source times GPUs plus target, with their shares."""
    order = np.lexsort((inner, number))
    cuts = np.flatnonzero(np.diff(number[order])) + 1
    met: dict[bytes, int] = {}
    shape, parts = np.zeros(pairs, np.intp), []
    for pair, (some, part) in enumerate(
        zip(np.split(inner[order], cuts), np.split(share[order], cuts), strict=True) if pairs else ()
    ):
        key = some.tobytes() + np.round(part, 9).tobytes()
        if key not in met:
            met[key] = len(met)
            parts.append((some, part))
        shape[pair] = met[key]
    return shape, parts


def _crossings(
    fabric: Fabric, gpus: int, first: Integers, parts: list[tuple[Integers, Floats]]
) -> tuple[Integers, Integers, Floats]:
    """The row, link and share of what each shape sends from a node of one class to a node of another."""
    width = first.size
    a, b = (part.ravel() for part in np.meshgrid(np.arange(width), np.arange(width), indexing="ij"))
    apart = np.flatnonzero(a != b)
    if (many := apart.size * sum(inner.size for inner, _ in parts)) > MOST_TRANSFERS:
        raise RoutesError(f"placement: {many} routes between {width} nodes; at most {MOST_TRANSFERS} are looked up")
    rows: list[Integers] = [np.empty(0, np.intp)]
    edges: list[Integers] = [np.empty(0, np.intp)]
    shares: list[Floats] = [np.empty(0)]
    for number, (inner, part) in enumerate(parts):
        pair, sent = np.repeat(apart, inner.size), np.tile(part, apart.size)
        source = first[a[pair]] * gpus + np.tile(inner // gpus, apart.size)
        target = first[b[pair]] * gpus + np.tile(inner % gpus, apart.size)
        crossed = fabric.crossings(source, target)
        key = (number * width**2 + pair[crossed.transfer]) * len(fabric.edges) + crossed.edge
        key, same = np.unique(key, return_inverse=True)
        rows.append(key // len(fabric.edges))
        edges.append(key % len(fabric.edges))
        carried = np.bincount(same, sent[crossed.transfer] * crossed.share, minlength=key.size)
        shares.append(np.asarray(carried, dtype=np.float64))
    return np.concatenate(rows), np.concatenate(edges), np.concatenate(shares)
