"""Blocks of ranks on scattered nodes: brute force, the integer program and the search agree on the busiest link."""

import random
import re
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from moeplan import planner
from moeplan.cost.edges import expert_groups
from moeplan.cost.flows import Flows, flows
from moeplan.draft import draft
from moeplan.hostlist import compress, expand
from moeplan.importers import read
from moeplan.layout import Colocated, Disaggregated
from moeplan.optimizer.placement import by_name, place_hosts, place_plan
from moeplan.optimizer.placement_alike import alike_sets
from moeplan.optimizer.placement_milp import solve
from moeplan.optimizer.placement_search import search
from moeplan.optimizer.slots import slots_of
from moeplan.plan_rules import check
from moeplan.spec.case import Case
from moeplan.spec.cluster import (
    Dragonfly,
    Kind,
    Rail,
    Switch,
    Switches,
    Torus,
    Tree,
    check_cluster,
    hosts_of,
    pick,
)
from moeplan.spec.shipped import load_calibration, load_cluster, load_model
from moeplan.spec.workload import Workload
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import BytesPerS, Seconds

DGX = load_cluster("dgx-h100")
HOP = Seconds(1e-6)
GB = 1e9
FIXTURES = Path(__file__).parent.parent / "fixtures" / "importers"


def speed(gigabytes):
    return BytesPerS(gigabytes * GB)


def machine(network, use, hosts=(), gpus=2, **node):
    """A job on the nodes `use`; NICs outdo the links between switches."""
    node = {"gpus": gpus, "nics": gpus, "nic_bytes_per_s": speed(400), **node}
    return check_cluster(
        structs.replace(
            DGX, node=structs.replace(DGX.node, **node), nodes=len(use), network=network, hosts=",".join(hosts),
            use=",".join(use),
        )
    )  # fmt: skip


def tree_of(draw, most):
    """Leaves of 1 to 6 nodes with unequal uplinks, under two pods with unequal uplinks."""
    leaves, switches, hosts = draw.randint(2, 5), [], []
    for leaf in range(leaves):
        names = [f"h{leaf}x{i}" for i in range(draw.randint(1, 6))]
        hosts += names
        up = speed(draw.choice([50, 100, 200, 400]))
        switches.append(
            Switch(name=f"leaf{leaf}", nodes=",".join(names), up=f"pod{leaf * 2 // leaves}", uplink_bytes_per_s=up)
        )
    for pod in range(2):
        switches.append(Switch(name=f"pod{pod}", up="top", uplink_bytes_per_s=speed(draw.choice([100, 200, 400]))))
    network = Switches(switches=(*switches, Switch(name="top")), hop_latency_s=HOP)
    return machine(network, draw.sample(hosts, min(len(hosts), draw.randint(3, most))), hosts)


def dragonfly_of(draw, most):
    """Three groups of two switches with up to four nodes each, and unequal links."""
    network = Dragonfly(
        nodes_per_switch=draw.randint(3, 4), switches_per_group=2, local_link_bytes_per_s=speed(draw.choice([25, 100])),
        global_link_bytes_per_s=speed(25), links_per_group_pair=draw.randint(1, 4), hop_latency_s=HOP, groups=3,
    )  # fmt: skip
    places = [*range(network.nodes_per_switch * 2 * draw.randint(2, 3))]
    return machine(network, [*map(str, draw.sample(places, min(len(places), draw.randint(3, most))))])


def traffic_of(draw, nodes, gpus=2):
    """Groups of 2 to 4 neighbouring nodes that send all to all, unequally, and rings across the groups."""
    sent = np.zeros((nodes * gpus,) * 2)
    size = draw.choice([2, 3, 4])
    for start in range(0, nodes, size):
        ranks = range(start * gpus, min(nodes, start + size) * gpus)
        each = draw.choice([1, 1, 2, 3]) * GB
        sent[np.ix_(ranks, ranks)] += each
    for rank in range(nodes * gpus):
        sent[rank, (rank + size * gpus) % (nodes * gpus)] += draw.choice([0.1, 0.3]) * GB
    np.fill_diagonal(sent, 0)
    source, target = np.nonzero(sent)
    return Flows(source, target, sent[source, target])


def case_of(seed, most=12):
    draw = random.Random(seed)
    cluster = (tree_of if seed % 2 else dragonfly_of)(draw, most)
    return cluster, traffic_of(draw, cluster.nodes)


def busiest_s(cluster, sent, order):
    """Bytes over bandwidth of the busiest link with hosts in `order`, from the routes alone."""
    fabric = Fabric(build(pick(cluster, ",".join(order))))
    return (fabric.loads(*sent) / fabric.bandwidth_bytes_per_s).max()


def brute(slots):
    """The least busy link of all assignments of classes to slots."""
    orders = np.array([*set(permutations(slots.classes.tolist()))])
    return max(slots.fixed_s, slots.loads(orders).max(axis=1, initial=0.0).min())


@pytest.mark.parametrize("seed", range(100))
def test_the_search_finds_what_the_integer_program_proves(seed):
    cluster, sent = case_of(seed)
    slots = slots_of(cluster, sent)
    order, score = search(slots, [slots.classes])
    proven = solve(slots, slots.classes, time_limit_s=60.0)
    assert proven.status == "optimal"
    assert score.busiest_s == pytest.approx(proven.busiest_s, rel=1e-6)
    assert sorted(order) == sorted(slots.classes)
    if cluster.nodes <= 7:
        assert score.busiest_s == pytest.approx(brute(slots), rel=1e-9)


NETWORKS = {
    "tree": Tree(nodes_per_leaf=3, uplink_bytes_per_s=speed(50), hop_latency_s=HOP),
    "rails": Rail(nodes_per_unit=3, uplink_bytes_per_s=speed(50), hop_latency_s=HOP),
    "torus": Torus(shape=(3, 4), link_bytes_per_s=speed(50), hop_latency_s=HOP),
    "dragonfly": Dragonfly(
        nodes_per_switch=2, switches_per_group=2, local_link_bytes_per_s=speed(50), global_link_bytes_per_s=speed(25),
        links_per_group_pair=1, hop_latency_s=HOP, groups=3,
    ),
    "adaptive": Dragonfly(
        nodes_per_switch=1, switches_per_group=2, local_link_bytes_per_s=speed(50), global_link_bytes_per_s=speed(25),
        links_per_group_pair=1, hop_latency_s=HOP, groups=6, routing="adaptive",
    ),
    "several switches": Dragonfly(
        nodes_per_switch=1, switches_per_group=4, local_link_bytes_per_s=speed(50), global_link_bytes_per_s=speed(25),
        links_per_group_pair=1, hop_latency_s=HOP, groups=3, switches_per_node=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*NETWORKS, "domains", "kinds"])
def test_the_load_of_an_order_is_that_of_its_routes(name):
    draw = random.Random(name)
    node = {"domain": 3} if name == "domains" else {}
    use = [*map(str, draw.sample(range(12), 8))]
    cluster = machine(NETWORKS.get(name, NETWORKS["tree"]), use, **node)
    if name == "kinds":
        slower = structs.replace(cluster.node, nic_bytes_per_s=speed(10))
        cluster = check_cluster(structs.replace(cluster, kinds=(Kind(nodes=use[0], node=slower),)))
    sent = traffic_of(draw, 8)
    slots = slots_of(cluster, sent)
    for _ in range(5):
        order = draw.sample(range(8), 8)
        hosts = [hosts_of(cluster)[i] for i in order]
        assert slots.score(slots.classes[order]).busiest_s == pytest.approx(busiest_s(cluster, sent, hosts), rel=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([*NETWORKS]))
def test_no_order_by_name_or_as_given_is_better(seed, name):
    draw = random.Random(seed)
    cluster = machine(NETWORKS[name], [*map(str, draw.sample(range(12), draw.randint(2, 9)))])
    sent = traffic_of(draw, cluster.nodes)
    placed = place_hosts(cluster, sent)
    found = busiest_s(cluster, sent, placed.hosts)
    assert found == pytest.approx(placed.found.busiest_s, rel=1e-9)
    for order in (hosts_of(cluster), by_name(hosts_of(cluster)), sorted(hosts_of(cluster))):
        assert found <= busiest_s(cluster, sent, order) * (1 + 1e-9)
    assert sorted(placed.hosts) == sorted(hosts_of(cluster))


def leaves_of_eight():
    """The machine of the fixture, and the leaf of each of its nodes."""
    found = read(FIXTURES / "three_levels.conf")
    switches = tuple(
        Switch(
            name=switch.name, nodes=compress(switch.hosts), up=switch.up[0][0] if switch.up else "",
            uplink_bytes_per_s=speed(200),
        )
        for switch in found.switches
    )  # fmt: skip
    hosts = [host for switch in found.switches for host in switch.hosts]
    network = Switches(switches=switches, hop_latency_s=HOP)
    leaf = {host: switch.name for switch in found.switches for host in switch.hosts}
    return check_cluster(structs.replace(DGX, network=network, nodes=len(hosts), hosts=compress(hosts))), leaf


def on(cluster, seed, leaf, *leaves):
    hosts = [host for host in leaf if leaf[host] in leaves]
    random.Random(seed).shuffle(hosts)
    return pick(cluster, ",".join(hosts))


def moe(cluster, **changes):
    model = structs.replace(load_model("tiny-moe"), experts=64, **changes)
    return Case(model=model, cluster=cluster, workload=Workload(seq_len=4096, global_batch=384))


def crossings(plan, leaf, hosts):
    """Expert groups with ranks on more than one leaf."""
    gpus = plan.case.cluster.node.gpus
    groups = [g for p in range(len(plan.graph.positions)) for g in expert_groups(plan.graph, p)]
    return sum(len({leaf[hosts[rank // gpus]] for rank in group}) > 1 for group in groups)


@pytest.mark.parametrize("seed", range(4))
def test_no_expert_group_of_eight_nodes_crosses_a_leaf(seed):
    """Sixteen nodes of two leaves, shuffled (NVIDIA/pyxis, issue 102: ranks followed the names of nodes)."""
    cluster, leaf = leaves_of_eight()
    plan = draft(moe(on(cluster, seed, leaf, "leaf03", "leaf08")), Colocated(ep=64, dp=128), schedule="1f1b")
    assert crossings(plan, leaf, hosts_of(plan.case.cluster)) == 2
    assert crossings(plan, leaf, by_name(hosts_of(plan.case.cluster))) == 2
    placed = place_plan(plan)
    assert crossings(plan, leaf, placed.hosts) == 0
    assert placed.found.busiest_s < placed.given.busiest_s


def test_six_groups_of_eight_nodes_stay_in_unequal_blocks():
    sizes = (8, 9, 16, 18)
    names = {f"b{size}": [f"b{size}n{i:02d}" for i in range(size)] for size in sizes}
    switches = [
        Switch(name=block, nodes=compress(hosts), up="top", uplink_bytes_per_s=speed(200))
        for block, hosts in names.items()
    ]
    network = Switches(switches=(*switches, Switch(name="top")), hop_latency_s=HOP)
    hosts = [host for block in names.values() for host in block]
    leaf = {host: block for block, some in names.items() for host in some}
    cluster = check_cluster(structs.replace(DGX, network=network, nodes=51, hosts=compress(hosts)))
    taken = [h for size in sizes for h in names[f"b{size}"][: size // 8 * 8]]
    random.Random(7).shuffle(taken)
    case = moe(pick(cluster, ",".join(taken)))
    plan = draft(case, Colocated(ep=64, dp=384), schedule="1f1b")
    assert len(expert_groups(plan.graph, 0)) == 6
    assert crossings(plan, leaf, place_plan(plan).hosts) == 0


def test_the_planner_writes_the_order_that_it_placed():
    cluster, leaf = leaves_of_eight()
    case = moe(on(cluster, 1, leaf, "leaf03", "leaf08"), num_layers=2)
    fixed = {"ep": 64, "dp": 128, "micro_batch": 1}
    plan = planner.winner(
        planner.optimize(case, load_calibration(case.cluster.calibration), families=["colocated"], fixed=fixed)
    )
    assert crossings(plan, leaf, hosts_of(plan.case.cluster)) == 0
    assert sorted(hosts_of(plan.case.cluster)) == sorted(hosts_of(case.cluster))
    check(plan)


def test_a_pipeline_of_uneven_blocks_is_placed_better_than_by_place():
    """Four stages of two nodes on leaves of three nodes: of each leaf one node is of another stage."""
    cluster = machine(NETWORKS["tree"], ["0", "1", "2", "3", "4", "5", "6", "7"])
    plan = draft(
        structs.replace(moe(cluster), workload=Workload(seq_len=64, global_batch=32)),
        Colocated(pp=4, ep=4, dp=4), schedule="1f1b",
    )  # fmt: skip
    placed = place_plan(plan, exact=True)
    assert placed.status == "optimal"
    assert placed.found.busiest_s == pytest.approx(brute(slots_of(cluster, flows(plan))))


def adaptive_of(draw, most):
    """Three to six groups of two or three switches, of which the job is on up to four, with unequal links."""
    groups, switches = draw.randint(3, 6), draw.randint(2, 3)
    network = Dragonfly(
        nodes_per_switch=draw.randint(1, 3), switches_per_group=switches, groups=groups, routing="adaptive",
        local_link_bytes_per_s=speed(draw.choice([50, 400])), global_link_bytes_per_s=speed(25),
        links_per_group_pair=draw.randint(1, 3), hop_latency_s=HOP,
    )  # fmt: skip
    places = [*range(network.nodes_per_switch * switches * min(groups, draw.randint(2, 4)))]
    return machine(network, [*map(str, draw.sample(places, min(len(places), draw.randint(3, most))))])


@pytest.mark.parametrize("seed", range(30))
def test_with_detours_too_the_search_finds_what_the_integer_program_proves(seed):
    draw = random.Random(seed)
    cluster = adaptive_of(draw, 9)
    slots = slots_of(cluster, traffic_of(draw, cluster.nodes))
    order, score = search(slots, [slots.classes])
    proven = solve(slots, slots.classes, time_limit_s=60.0)
    assert proven.status == "optimal"
    assert score.busiest_s == pytest.approx(proven.busiest_s, rel=2e-6)
    assert sorted(order) == sorted(slots.classes)
    if cluster.nodes <= 6:
        assert score.busiest_s == pytest.approx(brute(slots), rel=2e-6)


@pytest.mark.parametrize("routing", ["minimal", "adaptive"])
def test_what_is_alike_may_change_places_without_any_change_of_loads(routing):
    draw = random.Random(4)
    network = structs.replace(NETWORKS["adaptive"], nodes_per_switch=2, groups=4, routing=routing)
    cluster = machine(network, [*map(str, range(12))])
    slots = slots_of(cluster, traffic_of(draw, 12))
    sets = alike_sets(slots)
    assert {len(one) for some in sets for one in some} == {1, 2}
    for some in sets:
        for one, other in pairwise(some):
            to = np.arange(slots.width)
            to[[*one, *other]] = [*other, *one]
            for _ in range(5):
                order = np.array(draw.sample(slots.classes.tolist(), 12))
                loads = (np.sort(slots.loads(found[None])[0]) for found in (order, to[order]))
                np.testing.assert_allclose(*loads, rtol=1e-6)


def wide(routing="minimal"):
    """Sixteen nodes over twelve switches or so: no program of which ends in no time."""
    draw = random.Random(0)
    network = structs.replace(NETWORKS["dragonfly"], switches_per_group=4, groups=4, routing=routing)
    cluster = machine(network, [*map(str, draw.sample(range(32), 16))])
    return cluster, traffic_of(draw, 16)


def test_a_program_that_is_cut_short_says_so_and_leaves_the_search_its_answer():
    cluster, sent = wide()
    placed, searched = place_hosts(cluster, sent, exact=True, time_limit_s=0.2), place_hosts(cluster, sent)
    assert placed.found.busiest_s <= searched.found.busiest_s
    told = re.fullmatch(r"search; integer program: time limit, at least ([\d.e+-]+) s", placed.status)
    assert told
    assert 0 < float(told[1]) < placed.found.busiest_s


def test_a_program_that_is_too_large_is_not_written(monkeypatch):
    monkeypatch.setattr("moeplan.optimizer.placement_milp.MOST_COLUMNS", 1)
    cluster, sent = wide("adaptive")
    placed = place_hosts(cluster, sent, exact=True)
    assert placed.status.startswith("search; integer program: too large, at least")
    assert placed.hosts == place_hosts(cluster, sent).hosts


def test_names_are_in_the_order_of_their_numbers():
    assert by_name(expand("n[9-11],a2,n1b", "test")) == ("a2", "n1b", "n9", "n10", "n11")


def test_a_step_moves_the_rows_of_all_microbatches_both_ways():
    """Two stages of two ranks without copies: rows and their gradients between ranks i and i + 2, nothing else far."""
    cluster = machine(NETWORKS["tree"], ["0", "1"])
    case = structs.replace(moe(cluster), workload=Workload(seq_len=64, global_batch=8))
    plan = draft(case, Colocated(pp=2, ep=2, dp=2), schedule="1f1b")
    sent = flows(plan)
    far = {(s, t): b for s, t, b in zip(*map(np.ndarray.tolist, sent), strict=True) if s // 2 != t // 2}
    each = 4 * 64 * case.model.hidden * 2  # sequences of a rank, tokens, elements, bytes
    assert {pair: far[pair] for pair in ((0, 2), (1, 3), (2, 0), (3, 1))} == dict.fromkeys(
        ((0, 2), (1, 3), (2, 0), (3, 1)), pytest.approx(each)
    )


def test_flows_do_not_depend_on_where_the_nodes_are():
    near = machine(NETWORKS["tree"], ["0", "1", "2", "3"])
    layout = Disaggregated(pairs=1, attention_gpus=4, ffn_gpus=4, attention_nics=4, ffn_nics=4, deduplicate=True)
    told = [flows(draft(moe(pick(near, use)), layout, schedule="af-pipe")) for use in ("0,1,2,3", "7,2,5,0")]
    assert all((a == b).all() for a, b in zip(*told, strict=True))
    assert told[0].bytes.min() > 0


def test_of_orders_with_equally_busy_nics_the_one_with_least_between_leaves_is_taken():
    """Two groups of two nodes, taken turn about from two leaves whose uplinks no NIC outdoes."""
    cluster = machine(
        Tree(nodes_per_leaf=4, uplink_bytes_per_s=speed(8000), hop_latency_s=HOP), ["0", "4", "1", "5"], gpus=8,
        nic_bytes_per_s=speed(50),
    )  # fmt: skip
    plan = draft(moe(cluster), Colocated(ep=16, dp=32), schedule="1f1b")
    placed = place_plan(plan)
    assert placed.found.busiest_s == pytest.approx(placed.given.busiest_s)
    assert {frozenset(placed.hosts[:2]), frozenset(placed.hosts[2:])} == {frozenset("01"), frozenset("45")}
    assert placed.found.total_s < placed.given.total_s


def test_a_job_too_large_to_search_stands_by_place(monkeypatch):
    monkeypatch.setattr("moeplan.optimizer.slots.MOST_TRANSFERS", 1)
    cluster = machine(NETWORKS["tree"], ["0", "3", "1", "4", "2", "5"])
    placed = place_hosts(cluster, traffic_of(random.Random(2), 6))
    assert placed.status == "by place"
    assert placed.found.busiest_s <= min(placed.given.busiest_s, placed.by_name.busiest_s)
