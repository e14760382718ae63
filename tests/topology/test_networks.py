"""Networks of every kind: what joins what, at which bandwidth, and what a scattered job sees of them."""

import numpy as np
import pytest
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.cluster import (
    Bridge,
    Dragonfly,
    FatTree,
    Kind,
    Level,
    Rail,
    Switch,
    Switches,
    Torus,
    Tree,
    check_cluster,
    domain_gpus,
    domains,
    hosts_of,
    leave_out,
    pick,
    places_of,
    single_hop_nodes,
)
from moeplan.spec.network import plain
from moeplan.spec.shipped import load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import BytesPerS, Seconds

LEAVES = Tree(nodes_per_leaf=32, uplink_bytes_per_s=BytesPerS(12.8e12), hop_latency_s=Seconds(5e-7))
DGX = structs.replace(load_cluster("dgx-h100"), network=LEAVES)
HOP = Seconds(0.5e-6)
GB = 1e9


def cluster(network, nodes=8, **node):
    return check_cluster(
        structs.replace(DGX, nodes=nodes, network=network, node=structs.replace(DGX.node, **node), hosts="")
    )


def speed(graph, a, b):
    return graph.edges[a, b]["bandwidth_bytes_per_s"]


def edges_of(graph, *kinds):
    """Edges between vertices of these two kinds, in one direction."""
    return [(a, b) for a, b in graph.edges if (a[0], b[0]) == kinds]


def all_to_all(fabric, ranks):
    ranks = np.asarray(ranks)
    return fabric.loads(np.repeat(ranks, ranks.size), np.tile(ranks, ranks.size), np.ones(ranks.size**2))


def test_levels_of_a_tree_join_so_many_switches_each():
    tree = Tree(
        nodes_per_leaf=2,
        uplink_bytes_per_s=BytesPerS(800 * GB),
        hop_latency_s=HOP,
        levels=(Level(children=2, uplink_bytes_per_s=BytesPerS(700 * GB)),),
    )
    graph = build(cluster(tree))
    assert speed(graph, ("leaf", 3), ("level", 0, 1)) == 800 * GB
    assert speed(graph, ("level", 0, 1), ("spine",)) == 700 * GB
    fabric = Fabric(graph)
    hops = {(a, b): len(fabric.route(8 * a, 8 * b)) for a, b in ((0, 1), (0, 3), (0, 7))}
    assert hops == {(0, 1): 4, (0, 3): 6, (0, 7): 8}


def test_a_level_that_joins_nothing_is_not_there():
    tree = Tree(
        nodes_per_leaf=2,
        uplink_bytes_per_s=BytesPerS(800 * GB),
        hop_latency_s=HOP,
        levels=(Level(children=4, uplink_bytes_per_s=BytesPerS(700 * GB)),),
    )
    assert ("spine",) not in build(cluster(tree))
    assert not edges_of(build(cluster(tree, nodes=2)), "leaf", "level")


@pytest.mark.parametrize(
    ("radix", "oversubscription", "nics", "nodes", "uplink"),
    [(64, 1, 8, 4, 32), (64, 3, 8, 6, 16), (40, 1, 1, 20, 20), (36, 2, 4, 6, 12)],
)
def test_a_fat_tree_by_its_ports(radix, oversubscription, nics, nodes, uplink):
    """Down to up is the oversubscription: 48 : 16 of 64 ports at 3 : 1."""
    network = FatTree(
        radix=radix, link_bytes_per_s=BytesPerS(50 * GB), hop_latency_s=HOP, oversubscription=oversubscription
    )
    found = plain(network, structs.replace(DGX.node, nics=nics))
    assert (found.nodes_per_leaf, found.uplink_bytes_per_s) == (nodes, uplink * 50 * GB)
    three = plain(structs.replace(network, levels=3), structs.replace(DGX.node, nics=nics))
    assert (three.levels[0].children, three.levels[0].uplink_bytes_per_s) == (
        radix // 2,
        radix // 2 * uplink * 50 * GB,
    )


def test_a_switch_with_too_few_ports_is_refused():
    network = FatTree(radix=8, link_bytes_per_s=BytesPerS(50 * GB), hop_latency_s=HOP)
    with pytest.raises(SpecError, match="radix 8 at oversubscription 1 leaves 4 ports down and 4 up; a leaf needs 8"):
        cluster(network)


RAIL = Rail(nodes_per_unit=4, uplink_bytes_per_s=BytesPerS(200 * GB), hop_latency_s=HOP)


def test_on_rails_a_gpu_reaches_its_own_number_by_one_switch_and_others_over_nvlink_first():
    """As NCCL's PXN: what goes to GPU 3 of another node leaves by GPU 3's NIC."""
    fabric = Fabric(build(cluster(RAIL)))
    assert [b for _, b in fabric.route(0, 8)] == [("nic", 0, 0), ("rail", 0, 0), ("nic", 1, 0), ("gpu", 8)]
    assert [b for _, b in fabric.route(0, 8 + 3)] == [
        *[("node", 0), ("gpu", 3), ("nic", 0, 3), ("rail", 0, 3), ("nic", 1, 3), ("gpu", 11)]
    ]
    assert ("spine",) in [b for _, b in fabric.route(0, 8 * 4)]


def test_inside_a_unit_of_rails_nothing_crosses_the_spine():
    fabric = Fabric(build(cluster(RAIL)))
    loads = dict(zip(fabric.edges, all_to_all(fabric, range(32)), strict=True))
    assert all(not load for (_, b), load in loads.items() if b == ("spine",))
    assert {load for (a, b), load in loads.items() if (a[0], b[0]) == ("nic", "rail") and a[1] < 4} == {24}


def test_two_units_of_rails_meet_at_the_spine():
    """Each of 64 ranks sends 32 to the other unit, over the 8 rails of its unit alike."""
    fabric = Fabric(build(cluster(RAIL)))
    loads = dict(zip(fabric.edges, all_to_all(fabric, range(64)), strict=True))
    assert {load for (_, b), load in loads.items() if b == ("spine",)} == {32 * 32 / 8}


def test_a_domain_of_several_nodes_is_one_switch():
    """18 trays of 4 GPUs: 64 ranks exchange rows without a NIC."""
    trays = cluster(DGX.network, nodes=36, gpus=4, nics=4, domain=18)
    assert (domain_gpus(trays), domains(trays)) == (72, 2)
    fabric = Fabric(build(trays))
    loads = dict(zip(fabric.edges, all_to_all(fabric, range(64)), strict=True))
    assert not any(load for (a, _), load in loads.items() if a[0] == "nic")
    assert fabric.node_of([0, 71, 72]).tolist() == [0, 0, 1]
    alone = cluster(DGX.network, nodes=2)
    fabric = Fabric(build(alone))
    loads = dict(zip(fabric.edges, all_to_all(fabric, range(16)), strict=True))
    assert {load for (a, b), load in loads.items() if (a[0], b[0]) == ("nic", "leaf")} == {8}


def test_nodes_of_a_domain_at_other_places_are_in_another_one():
    trays = structs.replace(cluster(DGX.network, nodes=36, gpus=4, nics=4, domain=18), hosts="t[00-35]")
    part = pick(trays, "t[16-19]")
    assert (domains(part), domain_gpus(part)) == (2, 8)
    assert Fabric(build(part)).node_of(range(16)).tolist() == [0] * 8 + [1] * 8


def test_gpus_below_two_pcie_switches_share_their_way_through_the_host():
    node = structs.replace(
        DGX.node, link_bytes_per_s=BytesPerS(25 * GB), bridge=Bridge(gpus=4, uplink_bytes_per_s=BytesPerS(20 * GB))
    )
    fabric = Fabric(build(check_cluster(structs.replace(DGX, nodes=1, node=node))))
    loads = dict(zip(fabric.edges, all_to_all(fabric, range(8)), strict=True))
    assert loads[("bridge", 0, 0), ("node", 0)] == 4 * 4
    assert loads[("gpu", 0), ("bridge", 0, 0)] == 7


@pytest.mark.parametrize(
    ("shape", "links", "farthest"), [((4, 4), 32, 4), ((2, 3), 9, 2), ((8,), 8, 4), ((1, 5), 5, 2)]
)
def test_a_torus_joins_neighbours_along_every_side(shape, links, farthest):
    nodes = int(np.prod(shape))
    torus = Torus(shape=shape, link_bytes_per_s=BytesPerS(100 * GB), hop_latency_s=HOP)
    graph = build(cluster(torus, nodes=nodes))
    assert len(edges_of(graph, "router", "router")) == 2 * links
    fabric = Fabric(graph)
    assert max(len(fabric.route(0, 8 * n)) for n in range(1, nodes)) == 4 + farthest


def test_a_torus_has_no_more_places_than_its_shape():
    with pytest.raises(SpecError, match="a node at place 8; the network has 8 places"):
        cluster(Torus(shape=(2, 4), link_bytes_per_s=BytesPerS(1 * GB), hop_latency_s=HOP), nodes=9)


def dragonfly(**more):
    told = {
        "nodes_per_switch": 2,
        "switches_per_group": 2,
        "local_link_bytes_per_s": BytesPerS(200 * GB),
        "global_link_bytes_per_s": BytesPerS(25 * GB),
        "links_per_group_pair": 4,
        "hop_latency_s": HOP,
    }
    return Dragonfly(**told | more)


def test_taper_is_what_leaves_a_group_over_what_it_injects():
    """4 nodes of 8 NICs of 50 GB/s inject 1.6 TB/s; half of that over 4 other groups is 200 GB/s each."""
    graph = build(cluster(dragonfly(links_per_group_pair=0, taper=0.5, groups=5), nodes=8))
    assert speed(graph, ("group", 0), ("group", 1)) == 200 * GB
    for wrong in (dragonfly(taper=0.5, groups=5), dragonfly(links_per_group_pair=0)):
        with pytest.raises(SpecError, match="one of links_per_group_pair and taper"):
            cluster(wrong)


def test_detours_use_the_links_of_groups_that_the_job_is_not_on():
    """Two of g groups: of what one sends the other, a part goes straight and as much over each of the g - 2 others."""
    for groups in (3, 6, 10):
        fabric = Fabric(build(cluster(dragonfly(groups=groups, routing="adaptive"), nodes=8)))
        loads = dict(zip(fabric.edges, all_to_all(fabric, range(64)), strict=True))
        straight = loads[("group", 0), ("group", 1)]
        assert straight == pytest.approx(32 * 32 / (groups - 1), rel=0.01)
        assert loads[("group", 0), ("group", groups - 1)] == pytest.approx((32 * 32 - straight) / (groups - 2))
    minimal = Fabric(build(cluster(dragonfly(groups=10), nodes=8)))
    assert all_to_all(minimal, range(64))[minimal.edges.index((("group", 0), ("group", 1)))] == 32 * 32


def test_where_all_groups_send_to_all_alike_there_are_no_detours():
    adaptive, minimal = (
        Fabric(build(cluster(dragonfly(groups=4, routing=routing), nodes=16))) for routing in ("adaptive", "minimal")
    )
    for a, b in ((adaptive, minimal), (minimal, adaptive)):
        known = dict(zip(b.edges, all_to_all(b, range(128)), strict=True))
        assert all(known[e] == pytest.approx(load) for e, load in zip(a.edges, all_to_all(a, range(128)), strict=True))


def test_adaptive_routing_is_never_worse_than_minimal():
    rng = np.random.default_rng(7)
    adaptive, minimal = (
        Fabric(build(cluster(dragonfly(groups=6, routing=routing), nodes=24))) for routing in ("adaptive", "minimal")
    )
    for _ in range(20):
        a, b, size = rng.integers(0, 192, 500), rng.integers(0, 192, 500), rng.pareto(1.0, 500)
        worst = [(f.loads(a, b, size) / f.bandwidth_bytes_per_s).max() for f in (adaptive, minimal)]
        assert worst[0] <= worst[1] * (1 + 1e-9)


def test_detours_take_two_links_for_one():
    fabric = Fabric(build(cluster(dragonfly(groups=5, routing="adaptive"), nodes=20)))
    between = [i for i, (a, b) in enumerate(fabric.edges) if a[0] == b[0] == "group"]
    crossed = fabric.per_edge(fabric.crossings([0], [32]), [1.0])[between].sum()
    loads = fabric.loads([0], [32], [1.0])[between]
    assert crossed == 1
    assert loads.max() == pytest.approx(0.25, rel=0.01)
    assert loads.sum() == pytest.approx(loads.max() + 2 * (1 - loads.max()))


def test_nics_of_a_node_may_be_on_several_switches():
    """As on LUMI: 4 NICs on 4 switches, which 16 nodes share."""
    frontier = load_cluster("frontier")
    lumi = structs.replace(frontier.network, nodes_per_switch=4, switches_per_node=4)
    graph = build(check_cluster(structs.replace(frontier, nodes=32, network=lumi)))
    for n in (0, 15, 16):
        assert [next(b for b in graph[("nic", n, j)] if b[0] == "switch")[1] for j in range(4)] == [
            4 * (n // 16) + j for j in range(4)
        ]
    assert sum(b[0] == "nic" for b in graph[("switch", 2)]) == 16


NAMED = structs.replace(DGX, hosts="n[001-256]")


def test_a_job_on_scattered_nodes_is_where_they_are():
    job = pick(NAMED, "n[033,002,065,034]")
    assert places_of(job) == (32, 1, 64, 33)
    assert hosts_of(job) == ("n033", "n002", "n065", "n034")
    graph = build(job)
    assert sorted(v[1] for v in graph if v[0] == "leaf") == [0, 1, 2]
    assert ("spine",) not in [b for _, b in Fabric(graph).route(0, 3 * 8)]
    assert ("spine",) in [b for _, b in Fabric(graph).route(0, 8)]


def test_nodes_left_out_leave_the_others_in_place():
    job = leave_out(structs.replace(NAMED, nodes=64), "n[001-031,064]")
    assert job.nodes == 32
    assert places_of(job) == tuple(range(31, 63))
    assert check_cluster(structs.replace(NAMED, nodes=64, exclude="n[001-031,064]")) == job


@pytest.mark.parametrize(("use", "together"), [("n[001-064]", 32), ("n[017-048]", 16), ("n[001-003,033-035]", 3)])
def test_single_hop_groups_are_runs_of_the_nodes_there_are(use, together):
    assert single_hop_nodes(pick(NAMED, use)) == together


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use": "n300", "nodes": 1}, "node 'n300' of use is not there; hosts are n"),
        ({"use": "n[001,001]", "nodes": 2}, "use has 'n001' twice"),
        ({"use": "n[001-002]"}, "nodes is 256, use has 2"),
        ({"nodes": 257}, "nodes is 257, hosts has 256"),
        ({"exclude": "x"}, "node 'x' is to be left out, and not there"),
        ({"exclude": "n[001-256]"}, "no node is left"),
        ({"without_nics": (("n001", 8),)}, "without_nics, node 'n001': NIC 8 is not there; a node has NICs 0 to 7"),
        ({"without_nics": (("m1", 0),)}, "node 'm1' of without_nics is not there"),
        ({"without_nics": tuple(("n001", j) for j in range(8))}, "node 'n001' has no NIC left"),
        ({"kinds": (Kind(nodes="n1", node=DGX.node),)}, "node 'n1' of kinds is not there"),
        ({"kinds": (Kind(nodes="n001", node=structs.replace(DGX.node, gpus=4)),)}, "have 4 GPUs, others 8"),
        ({"node": structs.replace(DGX.node, nic_of_gpu=(0, 1))}, "nic_of_gpu has 2 NICs for 8 GPUs"),
        ({"node": structs.replace(DGX.node, nic_of_gpu=(9,) * 8)}, "nic_of_gpu has 9; the node's NICs are 0 to 7"),
    ],
)
def test_clusters_that_do_not_go_together_are_refused(change, message):
    with pytest.raises(SpecError, match=message) as error:
        check_cluster(structs.replace(NAMED, **change))
    assert "\n" not in str(error.value)


def test_a_nic_out_of_order_gives_its_gpus_to_the_next():
    """7 NICs for 8 GPUs: one carries twice as much."""
    job = check_cluster(structs.replace(NAMED, nodes=2, without_nics=(("n002", 3),)))
    graph = build(job)
    assert ("nic", 1, 3) not in graph
    fabric = Fabric(graph)
    loads = dict(zip(fabric.edges, all_to_all(fabric, range(16)), strict=True))
    assert sorted(load for (a, b), load in loads.items() if (a[0], b[0]) == ("nic", "leaf")) == [8] * 14 + [16]


def test_nodes_of_another_kind_have_their_own_nics():
    slow = structs.replace(DGX.node, nics=2, nic_bytes_per_s=BytesPerS(25 * GB))
    graph = build(check_cluster(structs.replace(NAMED, nodes=3, kinds=(Kind(nodes="n002", node=slow),))))
    assert [sum(v[:2] == ("nic", n) for v in graph) for n in range(3)] == [8, 2, 8]
    assert speed(graph, ("nic", 1, 0), ("leaf", 0)) == 25 * GB


SWITCHES = Switches(
    switches=(
        Switch(name="s1", nodes="n[001-002]", up="core", uplink_bytes_per_s=BytesPerS(100 * GB)),
        Switch(name="s2", nodes="n003", up="core", uplink_bytes_per_s=BytesPerS(50 * GB)),
        Switch(name="core"),
        Switch(name="island", nodes="n004"),
    ),
    hop_latency_s=HOP,
)


def test_switches_one_by_one():
    job = structs.replace(NAMED, hosts="n[001-004]", nodes=3, network=SWITCHES)
    graph = build(check_cluster(job))
    assert speed(graph, ("switch", "s2"), ("switch", "core")) == 50 * GB
    assert single_hop_nodes(job) == 1
    with pytest.raises(SpecError, match="no route from rank 0 to rank 24"):
        Fabric(build(structs.replace(job, nodes=4))).route(0, 24)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ([Switch(name="a"), Switch(name="a", nodes="n001")], "switch 'a' is given twice"),
        ([Switch(name="a", nodes="n001", up="b", uplink_bytes_per_s=BytesPerS(1e9))], "'a' is under 'b', which is not"),
        ([Switch(name="a", nodes="n001"), Switch(name="b", nodes="n001")], "node 'n001' is on switches 'a' and 'b'"),
        ([Switch(name="a", nodes="n[001,003]")], "node 'n002' is on no switch"),
        (
            [Switch(name="a", up="a", uplink_bytes_per_s=BytesPerS(1e9), nodes="n[001-002]")],
            "switch 'a' is above itself",
        ),
        ([Switch(name="a", up="a", nodes="n[001-002]")], "network.switches.a.uplink is 0"),
    ],
)
def test_switches_that_do_not_go_together_are_refused(switches, message):
    network = Switches(switches=tuple(switches), hop_latency_s=HOP)
    with pytest.raises(SpecError, match=message):
        check_cluster(structs.replace(NAMED, nodes=2, network=network))
