"""What Piper (arXiv 2605.05049) and its sources say of networks, beside what moeplan finds on its graph of Frontier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec import structs

from moeplan.cost.exchange import exchange
from moeplan.optimizer.uniform import best_uniform, shortest_uniform
from moeplan.papers.disagmoe_pipeline import copies_share_exact
from moeplan.papers.piper import PARAMETER_BYTES, Shape, attention_parameters_paper, expert_parameters_paper
from moeplan.papers.piper_network import all_to_all_bound_paper_s, gpu_network_bytes_per_s
from moeplan.spec.calibration import Calibration
from moeplan.spec.cluster import Dragonfly, first_gpus
from moeplan.spec.network import global_bytes_per_s
from moeplan.spec.shipped import load_calibration, load_cluster
from moeplan.tables import Rows
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

PIPER: Final = "Piper (arXiv 2605.05049)"
X_MOE: Final = "X-MoE (arXiv 2508.13337)"
OLCF: Final = "OLCF Frontier user guide, node diagram"
NOTES: Final = "public notes on Frontier's Slingshot"
NODES = (16, 32, 64, 128, 256, 512)
"""Of Piper's measurements of HALO."""
SIZES = (2**10, 2**12, 2**14, 2**16, 2**18, 2**20, 2**23)
"""Bytes per pair of ranks."""
LARGE = 2**23
MEDIUM = Shape(hidden=5120, expert_width=1536, layers=28, experts=128, top_k=6, matrices=2)
"""X-MoE's Medium model."""


class Fact(NamedTuple):
    """One number of a paper."""

    what: str
    source: str
    told: float
    found: float
    least: float
    most: float
    """Between these `found` agrees."""
    counts: bool = True
    """Whether it says something of moeplan: not where the number rests on an assumed factor."""

    @property
    def reached(self) -> bool:
        """Whether it agrees."""
        return self.least <= self.found <= self.most


class Gain(NamedTuple):
    """Seconds of a flat all-to-all over those of HALO at so many nodes, by bytes per pair of ranks."""

    contention: float
    nodes: int
    plain: tuple[float, ...]
    """max(I, II + III)"""
    chunked: tuple[float, ...]
    """III beside II, window by window, as `moeplan.cost.exchange` has it."""


def piper_facts() -> list[Fact]:
    """Formulas, the graph of Frontier, and what all-to-alls take on it."""
    return [*_formulas(), *_graph(), *_times()]


def _near(what: str, source: str, told: float, found: float, within: float) -> Fact:
    return Fact(what, source, told, found, told * (1 - within), told * (1 + within))


def _formulas() -> Iterator[Fact]:
    per_gpu = gpu_network_bytes_per_s(4, 25e9, 8)
    for what, hidden, top_k, told in (("d 5120, k 2", 5120, 2, 13.4), ("d 7168, k 8", 7168, 8, 75.2)):
        bound_s = all_to_all_bound_paper_s(8, 4096, top_k, hidden, 8, per_gpu)
        yield _near(f"all-to-all bound, {what}, ms", f"{PIPER}, section on all-to-all", told, 1e3 * bound_s, 0.005)
    experts = MEDIUM.layers * expert_parameters_paper(MEDIUM, MEDIUM.experts) / 32
    held = PARAMETER_BYTES * (MEDIUM.layers * attention_parameters_paper(MEDIUM.hidden) + experts)
    yield _near("55.2B on 32 GPUs, EP 32, static GB: does not fit", f"{PIPER}, memory formulas", 75.0, held / 1e9, 0.02)
    for nodes, told in ((2, 75.1), (4, 54.8)):
        found = 100 * (1 - copies_share_exact(nodes, 8, 256))
        source = f"{X_MOE}, redundant copies"
        yield Fact(f"copies that EP {8 * nodes} sends twice to a node, %", source, told, found, told - 0.1, told + 0.1)


def _graph() -> Iterator[Fact]:
    cluster = load_cluster("frontier")
    network, node = cluster.network, cluster.node
    if isinstance(network, Dragonfly):
        nodes = network.nodes_per_switch * network.switches_per_group
        injected, between = nodes * node.nics * node.nic_bytes_per_s, global_bytes_per_s(network, node)
        groups = -(-cluster.nodes // nodes)
        yield _near("from group to group, GB/s", NOTES, 100, between / 1e9, 1e-9)
        yield _near("a node injects, GB/s", OLCF, 100, node.nics * node.nic_bytes_per_s / 1e9, 1e-9)
        yield _near("blocking of a group", NOTES, 1.753, injected / ((groups - 1) * between), 1e-3)
        yield _near("taper of a group, %", NOTES, 57.0, 100 * (groups - 1) * between / injected, 1e-3)
    graph = build(first_gpus(cluster, 8))
    egress = [
        sum(graph.edges[("gpu", r), b]["bandwidth_bytes_per_s"] for b in graph[("gpu", r)] if b[0] == "gpu")
        for r in (0, 1)
    ]
    pairs = sum(a[0] == b[0] == "gpu" for a, b in graph.edges) // 2
    yield _near("pairs of GCDs that are linked", OLCF, 12, pairs, 1e-9)
    for which, most, sent in zip(("without", "with"), (350, 300), egress, strict=True):
        yield _near(f"a GCD {which} a NIC sends to others, GB/s", OLCF, most, sent / 1e9, 1e-9)
    for ways, told, found in (
        ("shortest paths", 87.5, shortest_uniform(graph)),
        ("all paths", 131.0, best_uniform(graph)),
    ):
        yield _near(f"all-to-all of a node over {ways}, GB/s per GCD", OLCF, told, found / 1e9, 0.01)


def _times() -> Iterator[Fact]:
    plain = _uncrowded(load_calibration("mi250x"), 1.0)
    one, two, four, sixteen = (_fabric(nodes) for nodes in (1, 2, 4, 16))
    for fabric, nodes in ((one, 1), (four, 4)):
        found = _gain(fabric, plain, nodes, LARGE, "halo")
        what = f"HALO over flat, {nodes} node{'s'[: nodes > 1]}, {LARGE // 2**20} MiB per pair"
        yield Fact(what, f"{PIPER}, HALO at small scale", 1.0, found, 0.85, 1.3)
    rates = [(8 * n - 1) * LARGE / _seconds(f, plain, n, LARGE, "flat") for f, n in ((one, 1), (two, 2))]
    yield Fact("flat all-to-all per GPU, 8 over 16 GPUs", f"{PIPER}, figure 5", 7.0, rates[0] / rates[1], 3.0, 12.0)
    leaving = 8 * (16 - 1) * 8 * LARGE
    seconds = min(_seconds(sixteen, plain, 16, LARGE, name) for name in ("halo", "halo_chunked"))
    yield Fact(
        "HALO injects per node, GB/s", f"{PIPER}, HALO saturates 4 NICs", 80.0, leaving / seconds / 1e9, 64.0, 96.0
    )


def gains(calibration: Calibration, contention: float, sizes: Sequence[int] = SIZES) -> list[Gain]:
    """How much faster than flat HALO is on 16 to 512 nodes of Frontier, at a factor of contention for all patterns."""
    crowded, found = _uncrowded(calibration, contention), []
    for nodes in NODES:
        fabric = _fabric(nodes)
        each = [tuple(_gain(fabric, crowded, nodes, size, name) for size in sizes) for name in ("halo", "halo_chunked")]
        found.append(Gain(contention, nodes, *each))
    return found


def gain_facts(found: Sequence[Gain]) -> list[Fact]:
    """What Piper reports of gains, for one factor of contention; none of it counts."""
    best = [tuple(map(max, zip(gain.plain, gain.chunked, strict=True))) for gain in found]
    at = f"contention {found[0].contention:g}"
    least, most = min(map(min, best)), max(map(max, best))
    grows = min(after - before for a, b in pairwise(best) for before, after in zip(a, b, strict=True))
    middle = max(range(len(SIZES)), key=lambda i: best[-1][i])
    source = f"{PIPER}, HALO on 16 to 512 nodes"
    return [
        Fact(f"least gain, {at}", source, 1.1, least, 1.0, 10.0, counts=False),
        Fact(f"largest gain, {at}", source, 9.0, most, 1.0, 10.0, counts=False),
        Fact(f"least growth of a gain with the nodes, {at}", source, 0.0, grows, -0.01, 10.0, counts=False),
        Fact(
            f"size of the largest gain, KiB per pair, {at}", source, 4.0, SIZES[middle] / 1024, 0.5, 64.0, counts=False
        ),
    ]


def fact_rows(facts: Sequence[Fact]) -> Rows:
    """Facts for readers."""
    verdicts = {
        (True, True): "reached",
        (True, False): "NOT reached",
        (False, True): "as told",
        (False, False): "not as told",
    }
    return [
        {
            "fact": fact.what,
            "told": fact.told,
            "found": fact.found,
            "agrees_from": fact.least,
            "to": fact.most,
            "": verdicts[fact.counts, fact.reached],
            "source": fact.source,
        }
        for fact in facts
    ]


def gain_rows(found: Sequence[Gain]) -> Rows:
    """Gains for readers: the plain form, and in brackets in chunks."""
    return [
        {"contention": gain.contention, "nodes": gain.nodes}
        | {
            f"{size // 1024}_KiB": f"{a:.2f} ({b:.2f})"
            for size, a, b in zip(SIZES, gain.plain, gain.chunked, strict=True)
        }
        for gain in found
    ]


def _uncrowded(calibration: Calibration, contention: float) -> Calibration:
    return structs.replace(calibration, network=structs.replace(calibration.network, contention=contention))


def _fabric(nodes: int) -> Fabric:
    """The first `nodes` of Frontier, whose routes are adaptive: minimal ones would be all that counts."""
    return Fabric(build(first_gpus(load_cluster("frontier"), 8 * nodes)))


def _seconds(fabric: Fabric, calibration: Calibration, nodes: int, pair_bytes: int, algorithm: str) -> float:
    size = 8 * nodes * pair_bytes
    return exchange(fabric, calibration, [range(8 * nodes)], size, algorithm).seconds  # type: ignore[arg-type]


def _gain(fabric: Fabric, calibration: Calibration, nodes: int, pair_bytes: int, algorithm: str) -> float:
    flat_s = _seconds(fabric, calibration, nodes, pair_bytes, "flat")
    return flat_s / _seconds(fabric, calibration, nodes, pair_bytes, algorithm)
