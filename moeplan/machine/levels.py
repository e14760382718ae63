"""The levels of a network, from the switches next to nodes upwards."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from moeplan.machine.words import GB
from moeplan.spec.network import Dragonfly, Switches, plain
from moeplan.tables import Rows

if TYPE_CHECKING:
    from moeplan.spec.cluster import ClusterSpec
    from moeplan.topology.core import Core
    from moeplan.topology.links import Vertex

TOP = 10**6
"""Above any other level."""


class Level(NamedTuple):
    """Switches of one level. Bandwidths are of one switch, the largest from below and the smallest upwards."""

    name: str
    switches: int
    from_below_bytes_per_s: float
    """What its nodes or the switches below can put into it: of each the smaller of what it has and its cables."""
    up_bytes_per_s: float
    across_bytes_per_s: float
    """To others of its level."""
    ratio: float
    """The largest from below / (up + across) of any of them; 0 where neither is there."""


def levels_of(cluster: ClusterSpec, found: Core) -> list[Level]:
    """The levels of `found`, which is `topology.core` of `cluster`, from below."""
    height = _heights(cluster, found)
    below = _from_below(found, height)
    by_height: dict[int, list[Vertex]] = defaultdict(list)
    for vertex in found.graph:
        by_height[height[vertex]].append(vertex)
    return [_level(found, height, below, by_height[h]) for h in sorted(by_height)]


def level_rows(levels: list[Level]) -> Rows:
    """`levels` as a table, in GB/s per direction and switch."""
    return [
        {
            "level": level.name,
            "switches": level.switches,
            "from_below_gb_per_s": level.from_below_bytes_per_s / GB,
            "up_gb_per_s": level.up_bytes_per_s / GB,
            "across_gb_per_s": level.across_bytes_per_s / GB,
            "oversubscription": level.ratio,
        }
        for level in levels
    ]


def _heights(cluster: ClusterSpec, found: Core) -> dict[Vertex, int]:
    if isinstance(cluster.network, Switches):
        heights = _switch_height(cluster.network)
        return {vertex: heights[str(vertex[1])] for vertex in found.graph}
    of = {"leaf": 0, "rail": 0, "router": 0, "switch": 0, "group": 1, "spine": TOP}
    return {vertex: of[str(vertex[0])] if vertex[0] in of else 1 + int(vertex[1]) for vertex in found.graph}


def _switch_height(network: Switches) -> dict[str, int]:
    """How many switches are below each one, on the longest way."""
    above = {one.name: one.up for one in network.switches}
    found = dict.fromkeys(above, 0)
    for name in above:
        at, steps = name, 0
        while at := above[at]:
            steps += 1
            found[at] = max(found[at], steps)
    return found


def _from_below(found: Core, height: dict[Vertex, int]) -> dict[Vertex, float]:
    below: dict[Vertex, float] = dict.fromkeys(found.graph, 0.0)
    for injected in found.injected:
        for vertex, bytes_per_s in injected.items():
            below[vertex] += bytes_per_s
    for vertex in sorted(found.graph, key=height.__getitem__):
        for up, data in found.graph.succ[vertex].items():
            if height[up] > height[vertex]:
                below[up] += min(below[vertex], data["bandwidth_bytes_per_s"])
    return below


def _level(found: Core, height: dict[Vertex, int], below: dict[Vertex, float], vertices: list[Vertex]) -> Level:
    up, across = dict.fromkeys(vertices, 0.0), dict.fromkeys(vertices, 0.0)
    for vertex in vertices:
        for other, data in found.graph.succ[vertex].items():
            if height[other] >= height[vertex]:
                kind = up if height[other] > height[vertex] else across
                kind[vertex] += data["bandwidth_bytes_per_s"]
    out = {vertex: up[vertex] + across[vertex] for vertex in vertices}
    ratio = max((below[vertex] / out[vertex] for vertex in vertices if out[vertex]), default=0.0)
    name = str(vertices[0][0]) if isinstance(vertices[0][-1], int) or len(vertices[0]) == 1 else "switch"
    if height[vertices[0]] not in (0, TOP) and name in ("level", "switch"):
        name = f"level {height[vertices[0]]}"
    return Level(name, len(vertices), max(below[v] for v in vertices), min(up.values()), min(across.values()), ratio)


class Global(NamedTuple):
    """What leaves a full group of a dragonfly."""

    injected_bytes_per_s: float
    leaving_bytes_per_s: float

    @property
    def blocking(self) -> float:
        """injection / what leaves."""
        return self.injected_bytes_per_s / self.leaving_bytes_per_s

    @property
    def taper(self) -> float:
        """What leaves / injection."""
        return self.leaving_bytes_per_s / self.injected_bytes_per_s


def global_of(cluster: ClusterSpec, levels: list[Level]) -> Global | None:
    """The fullest group of a dragonfly; None for another network, or one group."""
    groups = [level for level in levels if level.name == "group" and level.across_bytes_per_s]
    if not groups or not isinstance(plain(cluster.network, cluster.node), Dragonfly):
        return None
    return Global(groups[0].from_below_bytes_per_s, groups[0].across_bytes_per_s)
