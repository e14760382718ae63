"""A cluster in a few tables: what `moeplan topology list` and `show` print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeplan.machine.halves import bisection_bytes_per_s
from moeplan.machine.levels import Level, global_of, level_rows, levels_of
from moeplan.machine.warned import warnings_of
from moeplan.machine.words import GB, joined_by, network_in_words, nics_in_words
from moeplan.spec.cluster import ClusterSpec, domain_gpus, first_gpus, homes, num_ranks
from moeplan.spec.shipped import cluster_of, load_cluster, shipped
from moeplan.tables import Rows, cell, heading, html_lines, html_table
from moeplan.topology.core import Core, core
from moeplan.topology.graph import build

if TYPE_CHECKING:
    import pandas as pd

LEVELS_TITLE = "levels of the network, one switch each, per direction"
LINKS_TITLE = "links between GPUs of a node, GB/s per direction"
SOURCES_TITLE = "where the numbers are from"


@dataclass(frozen=True)
class ClusterSummary:
    """What a cluster is. Bandwidths in GB/s are per direction."""

    cluster: ClusterSpec
    facts: dict[str, Any]
    levels: Rows
    links: Rows
    sources: Rows
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            **self.facts,
            "levels": self.levels,
            "links": self.links,
            "sources": self.sources,
            "warnings": list(self.warnings),
        }

    def to_rows(self) -> Rows:
        """The facts, one a row."""
        return [{"what": key, "value": value} for key, value in self.facts.items()]

    def to_dataframe(self) -> pd.DataFrame:
        """`to_rows` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def _repr_html_(self) -> str:
        from moeplan.plots.cluster import svg

        facts = [{"what": heading(key), "value": cell(value, key)} for key, value in self.facts.items()]
        tables = [html_table(facts, title=self.cluster.name), html_table(self.levels, title=LEVELS_TITLE)]
        tables += [html_table(self.links, title=LINKS_TITLE)] if self.links else []
        return "".join([*tables, html_lines(self.warnings), svg(self.cluster)])


def cluster_summary(cluster: str | Path | ClusterSpec) -> ClusterSummary:
    """What `cluster`, a shipped name, a TOML file or a record, is; SpecError as `load_cluster`."""
    cluster = cluster_of(cluster)
    found = core(cluster)
    levels = levels_of(cluster, found)
    return ClusterSummary(
        cluster,
        _facts(cluster, found, levels),
        level_rows(levels),
        _link_rows(cluster),
        source_rows(cluster),
        warnings_of(cluster, found),
    )


def cluster_rows() -> Rows:
    """The clusters that ship, one a row; the network between nodes in GB/s per direction."""
    return [_row(load_cluster(name)) for name in shipped("cluster")]


def counts(cluster: ClusterSpec) -> str:
    """`frontier: 9,408 nodes, 75,264 GPUs, 37,632 NICs, 2,352 switches, 74 groups`."""
    node = "node" if cluster.nodes == 1 else "nodes"
    parts = [f"{cluster.nodes:,} {node}", f"{num_ranks(cluster):,} GPUs", f"{cluster.nodes * cluster.node.nics:,} NICs"]
    plural = {"leaf": "leaves", "switch": "switches"}
    levels = levels_of(cluster, core(cluster)) if cluster.nodes > 1 else []
    parts += [
        f"{level.switches:,} {plural.get(level.name, level.name + 's') if level.switches != 1 else level.name}"
        if not level.name.startswith("level")
        else f"{level.switches:,} of {level.name}"
        for level in levels
    ]
    return f"{cluster.name}: {', '.join(parts)}"


def source_rows(cluster: ClusterSpec) -> Rows:
    """Where the numbers of `cluster` came from, and which of them are assumed."""
    return [
        {"number": number, "assumed": _assumed(source.lower()), "source": source}
        for number, source in cluster.sources.items()
    ]


def _assumed(source: str) -> str:
    return "yes" if source.startswith("assumed") else "in part" if "assumed" in source else "no"


def _row(cluster: ClusterSpec) -> dict[str, Any]:
    found = core(cluster)
    return {
        "cluster": cluster.name,
        "nodes": cluster.nodes,
        "gpus": num_ranks(cluster),
        "gpus_per_node": cluster.node.gpus,
        "gpus_per_domain": domain_gpus(cluster),
        "network": network_in_words(cluster),
        "injection_gb_per_s": sum(found.injected[0].values()) / GB,
        "bisection_gb_per_s": bisection_bytes_per_s(cluster, found) / GB,
    }


def _facts(cluster: ClusterSpec, found: Core, levels: list[Level]) -> dict[str, Any]:
    node, injection = cluster.node, [sum(one.values()) for one in found.injected]
    facts: dict[str, Any] = {
        "cluster": cluster.name,
        "nodes": cluster.nodes,
        "gpus": num_ranks(cluster),
        "gpu": cluster.gpu.name,
        "gpus_per_node": node.gpus,
        "gpus_per_domain": domain_gpus(cluster),
        "gpus_joined_by": joined_by(node),
        "nics_per_node": node.nics,
        "nic_gb_per_s": node.nic_bytes_per_s / GB,
        "nic_of_each_gpu": nics_in_words(node),
        "network": network_in_words(cluster),
        "injection_per_node_gb_per_s": injection[0] / GB,
    }
    if min(injection) < max(injection):
        facts["injection_of_least_node_gb_per_s"] = min(injection) / GB
    facts |= _inside(cluster)
    facts["between_nodes_per_gpu_gb_per_s"] = injection[0] / node.gpus / GB
    facts["bisection_gb_per_s"] = bisection_bytes_per_s(cluster, found) / GB
    if leaving := global_of(cluster, levels):
        facts |= {
            "group_injection_gb_per_s": leaving.injected_bytes_per_s / GB,
            "out_of_group_gb_per_s": leaving.leaving_bytes_per_s / GB,
            "blocking": leaving.blocking,
            "taper": leaving.taper,
        }
    return facts


def _inside(cluster: ClusterSpec) -> dict[str, Any]:
    """Bandwidths inside the first node or NVLink domain; the best all-to-all only where there are several ways."""
    from moeplan.optimizer.uniform import best_uniform, shortest_uniform

    together = sum(home == 0 for home in homes(cluster)[: cluster.node.domain])
    graph = build(first_gpus(cluster, together * cluster.node.gpus))
    first = graph.succ["gpu", 0].items()
    out = sum(data["bandwidth_bytes_per_s"] for other, data in first if other[0] != "nic")
    shortest = shortest_uniform(graph)
    best = best_uniform(graph) if cluster.node.links else shortest
    return {
        "inside_per_gpu_gb_per_s": out / GB,
        "all_to_all_shortest_paths_gb_per_s": shortest / GB,
        "all_to_all_all_paths_gb_per_s": best / GB,
    }


def _link_rows(cluster: ClusterSpec) -> Rows:
    """One row per GPU: the GPUs that it is linked to."""
    rows: Rows = []
    for gpu in range(cluster.node.gpus if cluster.node.links else 0):
        ends = {a + b - gpu: bytes_per_s for a, b, bytes_per_s in cluster.node.links if gpu in (a, b)}
        rows.append({"gpu": gpu, "to": ", ".join(f"{other}: {ends[other] / GB:g}" for other in sorted(ends))})
    return rows
