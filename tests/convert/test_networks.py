"""Schedulers' and fabric managers' files as the network of a cluster."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.convert.fabric import merge
from moeplan.hostlist import listed
from moeplan.importers.found import FoundSwitch
from moeplan.machine.halves import paths_of
from moeplan.spec.cluster import domain_gpus, domains, first_gpus, hosts_of, num_ranks, single_hop_nodes
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

LEAVES = {"edge1": "gpu[001-004,017-020]", "edge3": "gpu[009-012,025-028]"}


def shuffled(seed):
    hosts = [host for nodes in LEAVES.values() for host in listed(nodes)]
    return random.Random(seed).sample(hosts, len(hosts))


@pytest.mark.parametrize("seed", range(3))
def test_a_jobs_nodes_of_a_leaf_stand_together_whatever_their_names(fixture, converted, seed):
    """As pyxis issue 102: ranks in the order of names had neighbours under different switches."""
    cluster, _ = converted(fixture("tree.conf"), "--like", "dgx-h100", "--nodes", ",".join(shuffled(seed)))
    assert [set(hosts_of(cluster)[at : at + 8]) for at in (0, 8)] == [set(listed(nodes)) for nodes in LEAVES.values()]
    assert single_hop_nodes(cluster) == 8
    paths = paths_of(cluster)
    assert [len(set(paths[at : at + 8])) for at in (0, 8)] == [1, 1]


def test_the_order_of_a_job_may_come_from_a_file(fixture, converted, tmp_path):
    (tmp_path / "job").write_text("".join(f"{host}\n" for host in shuffled(7)))
    by_option, _ = converted(fixture("tree.conf"), "--like", "dgx-h100", "--nodes", tmp_path / "job")
    as_file, _ = converted(fixture("tree.conf"), tmp_path / "job", "--like", "dgx-h100")
    assert by_option.use == as_file.use
    assert by_option.nodes == 16


def test_uplinks_that_a_scheduler_does_not_know_are_not_oversubscribed(fixture, converted, tmp_path):
    cluster, _ = converted(fixture("tree.conf"), "--like", "dgx-h100")
    uplinks = {one.name: one.uplink_bytes_per_s for one in cluster.network.switches}
    assert uplinks == {
        "core": 0,
        **dict.fromkeys(("agg1", "agg2"), 16 * 8 * 50e9),
        **{f"edge{i}": 8 * 8 * 50e9 for i in range(1, 5)},
    }
    assert "uplinks assumed: not oversubscribed" in (tmp_path / "out.toml").read_text()


def test_uplinks_of_a_fabric_are_cables_times_their_rate(fixture, converted, tmp_path):
    cluster, _ = converted(fixture("ibnet.out"), "--like", "dgx-h100")
    uplinks = {one.name: one.uplink_bytes_per_s for one in cluster.network.switches}
    assert uplinks == {"row1-leaf-a": 2 * 50e9, "row1-leaf-b": 50e9 + 25e9, "row1-spine": 0}
    assert (cluster.nodes, cluster.node.nics, cluster.node.nic_bytes_per_s) == (4, 2, 50e9)
    assert "uplinks assumed" not in (tmp_path / "out.toml").read_text()


@given(
    units=st.integers(1, 4),
    rails=st.integers(1, 4),
    spines=st.integers(1, 5),
    nodes=st.integers(1, 3),
    rate=st.integers(1, 9),
)
def test_rails_of_a_unit_and_spines_above_count_as_one(units, rails, spines, nodes, rate):
    top = [FoundSwitch(f"spine{s}", (), (), 1) for s in range(spines)]
    up = tuple((one.name, rate * 1e9, 2) for one in top)
    hosts = [tuple(f"u{u}n{n}" for n in range(nodes)) for u in range(units)]
    leaves = [FoundSwitch(f"leaf{u}-{r}", hosts[u], up, 0) for r in range(rails) for u in range(units)]
    merged = merge([*top, *leaves]).merged
    below = [one for one in merged if one.hosts]
    assert sorted(one.hosts for one in below) == sorted(hosts)
    assert {one.uplink_bytes_per_s for one in below} == {rails * spines * 2 * rate * 1e9}
    (spine,) = [one for one in merged if not one.hosts]
    assert (spine.up, spine.below) == ("", units * nodes)


def test_pods_keep_spines_of_their_own():
    core = [FoundSwitch(f"core{c}", (), (), 2) for c in range(2)]
    to_core = tuple((one.name, 5e9, 1) for one in core)
    pods = [FoundSwitch(f"pod{p}-{s}", (), to_core, 1) for p in range(2) for s in range(3)]
    leaves = [
        FoundSwitch(f"leaf{p}-{i}", (f"n{p}{i}",), tuple((f"pod{p}-{s}", 1e9, 4) for s in range(3)), 0)
        for p in range(2)
        for i in range(2)
    ]
    merged = {one.name: one for one in merge([*core, *pods, *leaves]).merged}
    assert merged.keys() == {"core0+1", "pod0-0+2", "pod1-0+2", *(leaf.name for leaf in leaves)}
    assert merged["leaf1-0"].up == "pod1-0+2"
    assert merged["leaf1-0"].uplink_bytes_per_s == 3 * 4 * 1e9
    assert merged["pod0-0+2"].uplink_bytes_per_s == 3 * 2 * 5e9


def test_switches_linked_with_each_other_only_are_under_one_that_is_assumed():
    switches = [
        FoundSwitch("a", ("n0",), (("b", 1e9, 2), ("c", 1e9, 1)), 0),
        FoundSwitch("b", ("n1",), (("c", 1e9, 4),), 0),
        FoundSwitch("c", ("n2",), (), 0),
    ]
    tree = merge(switches)
    assert {one.name: (one.up, one.uplink_bytes_per_s) for one in tree.merged} == {
        "a": ("top", 3e9),
        "b": ("top", 6e9),
        "c": ("top", 5e9),
        "top": ("", 0.0),
    }
    assert "assumed" in tree.notes[-1]


def test_switches_without_nodes_below_are_left_out_and_trees_apart_are_told():
    switches = [FoundSwitch(name, hosts, (), 0) for name, hosts in (("a", ("n0",)), ("b", ("n1",)), ("c", ()))]
    tree = merge(switches)
    assert [one.name for one in tree.merged] == ["a", "b"]
    assert "nodes under different ones are apart: a, b" in tree.notes[-1]


def blocks_of(sizes, path):
    starts = [0, *(sum(sizes[: i + 1]) for i in range(len(sizes)))]
    lines = [f"BlockName=rack{i} Nodes=t[{a + 1:03}-{b:03}]" for i, (a, b) in enumerate(pairwise(starts))]
    path.write_text("\n".join([*lines, "BlockSizes=8,16,32", ""]))
    return path


def test_equal_blocks_of_trays_are_nvlink_domains(converted, tmp_path):
    """Twelve blocks of 8 nodes with 4 GPUs: 32 GPUs in each domain, as in DeepEP issues 392 and 579."""
    blocks = blocks_of([8] * 12, tmp_path / "block.conf")
    cluster, _ = converted(blocks, "--like", "gb200-nvl72", "--gpus-per-node", 4)
    assert (num_ranks(cluster), cluster.node.domain, domain_gpus(cluster), domains(cluster)) == (384, 8, 32, 12)
    assert cluster.node.link_bytes_per_s == 900e9
    assert single_hop_nodes(cluster) == 8


def crosses(cluster, ranks):
    """Whether an all-to-all of the first `ranks` GPUs uses a NIC."""
    fabric = Fabric(build(first_gpus(cluster, ranks)))
    a, b = np.divmod(np.arange(ranks**2), ranks)
    loads = fabric.loads(a, b, np.ones(ranks**2))
    return any(load > 0 for (tail, _), load in zip(fabric.edges, loads, strict=True) if tail[0] == "nic")


def test_experts_are_inside_nvlink_as_far_as_the_domain_goes(converted, tmp_path):
    trays, _ = converted(blocks_of([18] * 2, tmp_path / "rack.conf"), "--like", "gb200-nvl72", "--gpus-per-node", 4)
    assert domain_gpus(trays) == 72
    assert [crosses(trays, ranks) for ranks in (32, 64, 72, 76)] == [False, False, False, True]
    nodes, _ = converted(blocks_of([18] * 2, tmp_path / "rack.conf"), "--like", "dgx-h100")
    assert [crosses(nodes, ranks) for ranks in (8, 16)] == [False, True]


def test_where_nvlink_ends_at_the_node_blocks_are_leaves_alone(converted, tmp_path):
    cluster, err = converted(blocks_of([8] * 3, tmp_path / "block.conf"), "--like", "dgx-h100")
    assert cluster.node.domain == 1
    assert "blocks are leaf switches and no NVLink domains" in err
    assert single_hop_nodes(cluster) == 8


def test_blocks_of_unequal_size_are_leaves_until_a_size_is_asked_for(fixture, converted):
    """Racks of 8, 9, 16 and 18 nodes, as cyclecloud-slurm PR 415 lists them: 1 + 1 + 2 + 2 whole groups of 8."""
    like = ("--like", "gb200-nvl72", "--gpus-per-node", 4)
    cluster, err = converted(fixture("block.conf"), *like)
    assert (cluster.nodes, cluster.node.domain) == (51, 1)
    assert "blocks of 8, 9, 16, 18 nodes are no domains of one size" in err
    cluster, err = converted(fixture("block.conf"), *like, "--domain", 8)
    assert (cluster.nodes, cluster.node.domain, domains(cluster)) == (48, 8, 6)
    assert "3 nodes are in no whole domain of 8 nodes and left out: tray17, tray50, tray51" in err
    racks = [set(listed(one.nodes)) for one in cluster.network.switches if one.nodes]
    hosts = hosts_of(cluster)
    for at in range(0, 48, 8):
        assert any(set(hosts[at : at + 8]) <= rack for rack in racks)


def test_a_domain_larger_than_any_block_is_refused(fixture, moeplan):
    code, _, err = moeplan("topology", "convert", fixture("block.conf"), "--like", "gb200-nvl72", "--domain", 19)
    assert (code, err) == (2, "moeplan: --domain 19: no block has so many nodes; the largest has 18\n")


def test_one_of_several_named_topologies_is_taken(fixture, converted):
    like = ("--like", "gb200-nvl72", "--gpus-per-node", 4)
    default, _ = converted(fixture("topology.yaml"), *like)
    assert default.hosts == "cpu[01-05]"
    racks, _ = converted(fixture("topology.yaml"), *like, "--topology-name", "RACKS")
    assert (racks.hosts, racks.node.domain, domain_gpus(racks)) == ("nv[1-4]", 2, 8)


@pytest.mark.parametrize(("name", "nodes", "leaf"), [("show_tree.txt", 6, 2), ("show_block.txt", 4, 2)])
def test_what_scontrol_prints_is_a_network_too(fixture, converted, name, nodes, leaf):
    cluster, _ = converted(fixture(name), "--like", "dgx-h100")
    assert (cluster.nodes, single_hop_nodes(cluster)) == (nodes, leaf)


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "TopologyPlugin=topology/tree\n"])
def test_a_file_without_switches_and_blocks_is_no_cluster(moeplan, tmp_path, content):
    """As aicr PR 1737: an empty topology file let the scheduler fall back silently."""
    path = tmp_path / "topology.conf"
    path.write_text(content)
    code, out, err = moeplan("topology", "convert", path, "--like", "dgx-h100", "-o", "out.toml")
    assert (code, out) == (2, "")
    assert err.startswith(f"moeplan: no switches or blocks found in {path}")
    assert not (tmp_path / "out.toml").exists()


def test_blocks_and_a_tree_go_together(converted, tmp_path):
    switches = ("s1 Nodes=t[001-008]", "s2 Nodes=t[009-016]", "top Switches=s[1-2]")
    (tmp_path / "tree.conf").write_text("".join(f"SwitchName={one}\n" for one in switches))
    blocks = blocks_of([4] * 4, tmp_path / "block.conf")
    cluster, _ = converted(tmp_path / "tree.conf", blocks, "--like", "gb200-nvl72", "--gpus-per-node", 4)
    assert (cluster.node.domain, domains(cluster), single_hop_nodes(cluster)) == (4, 4, 8)
    assert [one.name for one in cluster.network.switches] == ["s1", "s2", "top"]
