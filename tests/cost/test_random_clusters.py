"""Costs on random cluster files, recomputed from the edges of the graph alone."""

import itertools
from collections import Counter, defaultdict

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.cost.communication import all_gather, all_reduce, all_to_all, point_to_point, reduce_scatter
from moeplan.spec.calibration import Attention, Calibration, Grouped, Surface, Tier
from moeplan.spec.shipped import load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Bytes, Seconds

TREE = """kind = "tree"
nodes_per_leaf = {together}
uplink = "{up} GB/s"
"""
DRAGONFLY = """kind = "dragonfly"
nodes_per_switch = {together}
switches_per_group = {switches}
local_link = "{up} GB/s"
links_per_switch_pair = {few}
global_link = "{across} GB/s"
links_per_group_pair = {many}
"""
CLUSTER = """name = "random"
nodes = {nodes}
[gpu]
name = "gpu"
hbm = "64 GB"
hbm_bandwidth = "1.6 TB/s"
peak = {{ bf16 = "191.5 TFLOP/s" }}
[node]
gpus = {gpus}
nics = {nics}
link = "{link} GB/s"
link_latency = "{link_us} us"
nic = "{nic} GB/s"
nic_latency = "{nic_us} us"
links = {links}
[network]
hop_latency = "{hop_us} us"
"""


def tier(efficiency, half, latency):
    return Tier(
        efficiency=efficiency, half_message_bytes=Bytes(half), latency_s=Seconds(latency), source="assumed", note=""
    )


NODE, NETWORK = tier(0.7, 1e5, 5e-6), tier(0.9, 3e6, 2e-5)
REAL = Calibration(
    name="test",
    gemm={"bf16": Surface(m=(1.0,), share=(1.0,), source="assumed", note="")},
    grouped=Grouped(half_rows=0.0, source="assumed", note=""),
    attention=Attention(forward=1.0, backward=1.0, half_sequence=0.0, source="assumed", note=""),
    hbm=1.0,
    node=NODE,
    network=NETWORK,
    kernel_s=Seconds(0),
)
gbytes, micros, small = st.integers(1, 400), st.integers(0, 9), st.integers(1, 3)


@st.composite
def links_of(draw, gpus):
    """No links, hence a switch; or a random tree over the GPUs with some more pairs."""
    if gpus == 1 or draw(st.booleans()):
        return []
    tree = {(draw(st.integers(0, b - 1)), b) for b in range(1, gpus)}
    chosen = [pair for pair in itertools.combinations(range(gpus), 2) if pair in tree or draw(st.booleans())]
    return [[a, b, f"{draw(gbytes)} GB/s"] for a, b in chosen]


@st.composite
def cluster_files(draw):
    nodes, gpus = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    kind = draw(st.sampled_from([TREE, DRAGONFLY]))
    numbers = {
        "nodes": nodes,
        "gpus": gpus,
        "nics": draw(st.integers(0 if nodes == 1 else 1, 5)),
        "links": draw(links_of(gpus)),
        **{name: draw(gbytes) for name in ("link", "nic", "up", "across")},
        **{name: draw(micros) for name in ("link_us", "nic_us", "hop_us")},
        **{name: draw(small) for name in ("together", "few", "many")},
        "switches": draw(st.integers(2, 3)),
    }
    return (CLUSTER + kind).format(**numbers)


@st.composite
def cases(draw):
    """A cluster file, disjoint groups of its ranks in any order, and bytes."""
    text = draw(cluster_files())
    numbers = dict(line.split(" = ") for line in text.splitlines() if line.startswith(("nodes =", "gpus =")))
    order = draw(st.permutations(range(int(numbers["nodes"]) * int(numbers["gpus"]))))
    cut = draw(st.integers(0, len(order)))
    return text, [group for group in (order[:cut], order[cut:]) if group], float(draw(st.integers(1, 10**9)))


@pytest.fixture(scope="module")
def graph_of(tmp_path_factory):
    """graph_of(text): the graph of the cluster that a file with this text describes."""
    path = tmp_path_factory.mktemp("clusters") / "random.toml"

    def read(text):
        path.write_text(text)
        return build(load_cluster(str(path)))

    return read


class Edges:
    """Routes found by networkx; nodes are what stays joined when NICs and all beyond them are taken away."""

    def __init__(self, graph):
        self.graph = graph
        self.inside = graph.subgraph([vertex for vertex in graph if vertex[0] in ("gpu", "node")])
        nodes = sorted(nx.strongly_connected_components(self.inside), key=min_rank)
        self.node = {vertex[1]: n for n, node in enumerate(nodes) for vertex in node if vertex[0] == "gpu"}

    def paths(self, a, b):
        where = self.inside if self.node[a] == self.node[b] else self.graph
        paths = [list(itertools.pairwise(p)) for p in nx.all_shortest_paths(where, ("gpu", a), ("gpu", b))]
        assert where is self.inside or len(paths) == 1
        return paths

    def latency_s(self, a, b):
        paths = self.paths(a, b)
        return sum(self.graph.edges[edge]["latency_s"] for path in paths for edge in path) / len(paths)

    def seconds(self, sent, latency_s=None):
        """(latency, bandwidth part) of `sent`: (bytes, messages) by (source, target)."""
        moved = {ends: what for ends, what in sent.items() if ends[0] != ends[1]}
        if not moved:
            return 0.0, 0.0
        loads = defaultdict(float)
        for (a, b), (num_bytes, messages) in moved.items():
            paths = self.paths(a, b)
            for edge in itertools.chain(*paths):
                half = NODE if edge in self.inside.edges else NETWORK
                loads[edge] += (num_bytes + messages * half.half_message_bytes) / len(paths)
        near = all(self.node[a] == self.node[b] for a, b in moved)
        start = (NODE if near else NETWORK).latency_s
        busiest = max(load / self.reached(edge) for edge, load in loads.items())
        return start + (max(self.latency_s(*ends) for ends in moved) if latency_s is None else latency_s), busiest

    def reached(self, edge):
        tier = NODE if edge in self.inside.edges else NETWORK
        return self.graph.edges[edge]["bandwidth_bytes_per_s"] * tier.efficiency

    def rings(self, group):
        """Node by node; as many rings as the smallest node has ranks, each entering every node one rank later."""
        blocks = [[r for r in group if self.node[r] == n] for n in sorted({self.node[r] for r in group})]
        if len(blocks) == 1:
            return [group]
        turns = range(min(map(len, blocks)))
        return [[rank for block in blocks for rank in np.roll(block, -turn).tolist()] for turn in turns]


def min_rank(component):
    return min(vertex[1] for vertex in component if vertex[0] == "gpu")


def added(parts):
    total = Counter(), Counter()
    for ends, num_bytes, messages in parts:
        total[0][ends] += num_bytes
        total[1][ends] += messages
    return {ends: (total[0][ends], total[1][ends]) for ends in total[0]}


def spread(edges, groups, size):
    return edges.seconds(added(((a, b), size / len(g), 1) for g in groups for a in g for b in g))


def ring(passes):
    def seconds(edges, groups, size):
        parts, latencies = [], [0.0]
        for group in groups:
            steps, rings = passes * (len(group) - 1), edges.rings(group)
            latencies.append(0.0)
            for order in rings:
                following = [*order[1:], order[0]]
                sent = size / len(rings) / len(group) * steps
                hops = list(zip(order, following, strict=True))
                parts += [(ends, sent, steps) for ends in hops]
                mean = sum(edges.latency_s(*ends) for ends in hops if len(group) > 1) / len(group)
                latencies[-1] += steps * mean / len(rings)
        return edges.seconds(added(parts), max(latencies))

    return seconds


def pairs_of(groups):
    return [(group[0], group[-1]) for group in groups]


PATTERNS = {
    "all_to_all": (all_to_all, spread),
    "all_gather": (all_gather, ring(1)),
    "reduce_scatter": (reduce_scatter, ring(1)),
    "all_reduce": (all_reduce, ring(2)),
    "point_to_point": (
        lambda fabric, calibration, groups, size: point_to_point(fabric, calibration, pairs_of(groups), size),
        lambda edges, groups, size: edges.seconds(added((ends, size, 1) for ends in pairs_of(groups))),
    ),
}
every_pattern = pytest.mark.parametrize(("pattern", "recomputed"), PATTERNS.values(), ids=PATTERNS.keys())


def about(seconds):
    return pytest.approx(seconds, rel=1e-9)


@given(text=cluster_files())
def test_every_edge_of_a_random_cluster_has_numbers_and_joins_all(graph_of, text):
    graph = graph_of(text)
    assert all(data["bandwidth_bytes_per_s"] > 0 and data["latency_s"] >= 0 for *_, data in graph.edges(data=True))
    assert nx.is_strongly_connected(graph.subgraph([v for v in graph if graph.degree(v)] or [("gpu", 0)]))
    assert all(graph.edges[b, a] == data for a, b, data in graph.edges(data=True))


@every_pattern
@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_costs_follow_from_the_edges_alone(graph_of, pattern, recomputed, case, seed):
    text, groups, size = case
    graph = graph_of(text)
    assert pattern(Fabric(graph), REAL, groups, size).seconds == about(sum(recomputed(Edges(graph), groups, size)))
    random = np.random.default_rng(seed)
    for *_, data in graph.edges(data=True):
        data["bandwidth_bytes_per_s"], data["latency_s"] = random.uniform(1e9, 1e12), random.uniform(0, 1e-5)
    assert pattern(Fabric(graph), REAL, groups, size).seconds == about(sum(recomputed(Edges(graph), groups, size)))


@every_pattern
@given(case=cases(), factor=st.floats(0.01, 100))
def test_all_edges_x_times_as_fast_divide_the_bandwidth_part_by_x(graph_of, pattern, recomputed, case, factor):
    text, groups, size = case
    graph = graph_of(text)
    before = pattern(Fabric(graph), REAL, groups, size).seconds
    for *_, data in graph.edges(data=True):
        data["bandwidth_bytes_per_s"] *= factor
    latency, _ = recomputed(Edges(graph), groups, size)
    after = pattern(Fabric(graph), REAL, groups, size).seconds
    assert after == about(latency + (before - latency) / factor)
