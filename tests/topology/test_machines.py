"""The graphs of shipped machines: counts, and bandwidths that their makers print."""

import pytest

from moeplan.spec.cluster import Rail, first_gpus, num_ranks
from moeplan.spec.shipped import load_cluster, shipped
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

GB = 1e9


@pytest.fixture(scope="module")
def frontier():
    return build(load_cluster("frontier"))


@pytest.fixture(scope="module")
def lumi():
    return build(load_cluster("lumi-g"))


@pytest.fixture(scope="module")
def dgx():
    return build(load_cluster("dgx-h100"))


def count(graph, kind):
    return sum(vertex[0] == kind for vertex in graph)


def leaving(graph, vertex, kind):
    """Bytes per second from `vertex` to all its neighbours of a kind."""
    return sum(graph.edges[vertex, other]["bandwidth_bytes_per_s"] for other in graph[vertex] if other[0] == kind)


def test_frontier_has_its_gpus_nics_switches_and_groups(frontier):
    kinds = {"gpu": 9408 * 8, "nic": 9408 * 4, "switch": 9408 // 4, "group": 74, "node": 0, "leaf": 0, "spine": 0}
    assert {kind: count(frontier, kind) for kind in kinds} == kinds
    pairs = 9408 * (12 + 8 + 4) + 9408 // 4 + 74 * 73 // 2
    assert frontier.number_of_edges() == 2 * pairs


def test_frontier_gcds_leave_at_350_and_300_gb_per_s_as_in_the_node_diagram(frontier):
    out = [leaving(frontier, ("gpu", rank), "gpu") / GB for rank in range(8)]
    assert out == [350, 300] * 4
    assert sum(other[0] == "gpu" for rank in range(8) for other in frontier[("gpu", rank)]) == 2 * 12


def test_frontier_nodes_inject_100_gb_per_s_and_two_gcds_share_a_nic(frontier):
    node = [("nic", 9407, j) for j in range(4)]
    assert [leaving(frontier, nic, "switch") / GB for nic in node] == [25] * 4
    assert {("gpu", 9407 * 8 + i): ("nic", 9407, i * 4 // 8) for i in range(8)} == {
        gpu: nic for nic in node for gpu in frontier[nic] if gpu[0] == "gpu"
    }


def test_a_switch_of_frontier_has_31_local_links(frontier):
    assert leaving(frontier, ("switch", 0), "group") == 31 * 25 * GB


def test_frontiers_groups_leave_at_57_percent_of_what_they_inject(frontier):
    nics = [n for switch in frontier[("group", 0)] if switch[0] == "switch" for n in frontier[switch] if n[0] == "nic"]
    injected = sum(leaving(frontier, nic, "switch") for nic in nics)
    assert injected == 128 * 4 * 25 * GB
    assert leaving(frontier, ("group", 0), "group") == 73 * 4 * 25 * GB
    assert leaving(frontier, ("group", 0), "group") / injected == pytest.approx(0.570, abs=5e-4)


def test_dgx_has_its_gpus_nics_and_scalable_units(dgx):
    kinds = {"gpu": 2048, "nic": 2048, "node": 256, "rail": 8 * 8, "spine": 1, "leaf": 0, "switch": 0, "group": 0}
    assert {kind: count(dgx, kind) for kind in kinds} == kinds
    assert dgx.number_of_edges() == 2 * (3 * 2048 + 8 * 8)


def test_dgx_is_not_oversubscribed(dgx):
    nics = [nic for nic in dgx[("rail", 3, 5)] if nic[0] == "nic"]
    assert nics == [("nic", node, 5) for node in range(3 * 32, 4 * 32)]
    assert leaving(dgx, ("rail", 3, 5), "spine") == sum(leaving(dgx, nic, "rail") for nic in nics) == 1.6e12


def test_a_dgx_gpu_reaches_the_nvswitches_at_half_of_nvlinks_900_gb_per_s(dgx):
    assert leaving(dgx, ("gpu", 5), "node") == 450 * GB


@pytest.mark.parametrize("name", [name for name in shipped("cluster") if name != "frontier"])
def test_every_shipped_edge_has_both_numbers(name):
    graph = build(load_cluster(name))
    assert all(data["bandwidth_bytes_per_s"] > 0 and data["latency_s"] > 0 for *_, data in graph.edges(data=True))


def test_every_edge_of_frontier_has_both_numbers(frontier):
    assert all(data["bandwidth_bytes_per_s"] > 0 and data["latency_s"] > 0 for *_, data in frontier.edges(data=True))


@pytest.mark.parametrize("name", ["frontier", "dgx-h100"])
def test_1024_gpus_talk_all_to_all_over_every_nic_alike(name):
    graph = build(first_gpus(load_cluster(name), 1024))
    fabric = Fabric(graph)
    ranks = range(fabric.num_ranks)
    loads = fabric.loads([a for a in ranks for _ in ranks], [b for _ in ranks for b in ranks], [1.0] * 1024**2)
    sent = {load for (a, b), load in zip(fabric.edges, loads, strict=True) if (a[0], b[0]) == ("gpu", "nic")}
    assert sent == {1024 - 8}


def test_the_last_frontier_group_is_half_full():
    cluster = load_cluster("frontier")
    per_group = cluster.network.nodes_per_switch * cluster.network.switches_per_group
    assert divmod(num_ranks(cluster), 8 * per_group) == (73, 8 * 64)


MACHINES = {
    "dgx-a100": (8, 300, 25, {"bf16": 312}),
    "dgx-h100": (8, 450, 50, {"bf16": 989, "fp8": 1979}),
    "dgx-h200": (8, 450, 50, {"bf16": 989, "fp8": 1979}),
    "h800-16x8": (8, 200, 50, {"bf16": 989, "fp8": 1979}),
    "dgx-b200": (8, 900, 50, {"bf16": 2250, "fp8": 4500, "fp4": 9000}),
    "dgx-b300": (8, 900, 100, {"bf16": 2250, "fp8": 4500, "fp4": 13500}),
    "gb200-nvl72": (4, 900, 50, {"bf16": 2500, "fp8": 5000, "fp4": 10000}),
    "gb300-nvl72": (4, 900, 100, {"bf16": 2500, "fp8": 5000, "fp4": 15000}),
    "mi300x": (8, 448, 50, {"bf16": 1307.4, "fp8": 2614.9}),
    "mi355x": (8, 537.6, 50, {"bf16": 2516.6, "fp8": 5033.2, "fp4": 10066.3}),
}
"""GPUs of a node, GB/s of one to the others and of its NIC, TFLOP/s without sparsity (data sheets)."""


@pytest.mark.parametrize("name", MACHINES)
def test_a_gpu_reaches_its_switch_and_its_nic_at_the_rates_of_the_data_sheet(name):
    gpus, link, nic, peaks = MACHINES[name]
    cluster = load_cluster(name)
    graph, leaf = build(first_gpus(cluster, 2 * gpus)), "rail" if isinstance(cluster.network, Rail) else "leaf"
    assert count(graph, "gpu") == 2 * gpus == count(graph, "nic")
    assert count(graph, "node") == (1 if cluster.node.domain > 1 else 2)
    assert {round(leaving(graph, ("gpu", rank), "node") / GB, 6) for rank in range(2 * gpus)} == {link}
    assert {round(leaving(graph, ("nic", 1, j), leaf) / GB, 6) for j in range(gpus)} == {nic}
    found = {kind: peak / 1e12 for kind, peak in cluster.gpu.peak_flop_per_s.items()}
    assert {kind: found[kind] for kind in peaks} == pytest.approx(peaks)
    assert "fp8" in peaks or "fp8" not in found


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
def test_a_rack_is_18_trays_whose_72_gpus_one_switch_joins(name):
    whole = build(load_cluster(name))
    kinds = {"gpu": 2304, "nic": 2304, "node": 32, "leaf": 4, "spine": 1}
    assert {kind: count(whole, kind) for kind in kinds} == kinds
    assert {sum(other[0] == "gpu" for other in whole[("node", rack)]) for rack in range(32)} == {72}
    assert sum(leaving(whole, ("gpu", rank), "node") for rank in range(72)) == pytest.approx(65e12, rel=5e-3)


@pytest.mark.parametrize("name", shipped("cluster"))
def test_every_number_of_a_machine_has_a_source_and_its_calibration_ships(name):
    cluster = load_cluster(name)
    assert cluster.calibration in shipped("calibration")
    told = " ".join(cluster.sources)
    for part in ("nodes", "gpu", "node", "network") if "all" not in cluster.sources else ():
        assert part in told


FULL = ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300", "gb200-nvl72", "gb300-nvl72"]


@pytest.mark.parametrize("name", FULL)
def test_leaves_of_a_full_fat_tree_carry_what_their_nodes_send(name):
    cluster = load_cluster(name)
    network, node = cluster.network, cluster.node
    nics = network.nodes_per_unit if isinstance(network, Rail) else network.nodes_per_leaf * node.nics
    assert network.uplink_bytes_per_s == pytest.approx(nics * node.nic_bytes_per_s)


def test_lumi_g_has_its_nodes_switches_and_groups(lumi):
    kinds = {"gpu": 2978 * 8, "nic": 2978 * 4, "group": 24}
    assert {kind: count(lumi, kind) for kind in kinds} == kinds
    nics = [
        sum(n[0] == "nic" for switch in lumi[("group", g)] if switch[0] == "switch" for n in lumi[switch])
        for g in range(24)
    ]
    assert nics == [124 * 4] * 23 + [126 * 4]
    assert max(sum(n[0] == "nic" for n in lumi[v]) for v in lumi if v[0] == "switch") == 16


def test_a_lumi_g_nodes_nics_are_on_four_switches_that_16_nodes_share(lumi):
    switches = [[n for n in lumi[("nic", 5, j)] if n[0] == "switch"] for j in range(4)]
    assert switches == [[("switch", j)] for j in range(4)]
    assert {n[1] for n in lumi[("switch", 2)] if n[0] == "nic"} == set(range(16))


def test_lumi_gs_groups_reach_each_other_at_276_tb_per_s_both_ways(lumi):
    assert sum(leaving(lumi, ("group", g), "group") for g in range(24)) == 276e12


def test_global_links_fit_the_ports_that_lumi_gs_switches_have_left():
    network = load_cluster("lumi-g").network
    left = network.switches_per_group * (64 - 16 - (network.switches_per_group - 1) * network.links_per_switch_pair)
    assert 23 * network.links_per_group_pair <= left < 23 * 2 * network.links_per_group_pair
