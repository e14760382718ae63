"""Slurm: topology.conf, topology.yaml, `scontrol show topology`, nodes of a job."""

import random

import pytest

from moeplan.errors import SpecError
from moeplan.hostlist import expand
from moeplan.importers import read, read_text
from moeplan.importers.blocks import groups_in
from moeplan.importers.order import in_order


def block(sizes):
    start, lines = 1, []
    for i, size in enumerate(sizes):
        lines.append(f"BlockName=b{i} Nodes=n[{start:03d}-{start + size - 1:03d}]")
        start += size
    return "\n".join(lines) + "\n"


def test_a_tree_is_read_whole(fixture):
    found = read(fixture("tree.conf"))
    assert found.format == "slurm"
    assert found.node is None
    assert found.blocks == ()
    assert len(found.hosts) == 32
    switches = {switch.name: switch for switch in found.switches}
    assert {name: switch.level for name, switch in switches.items()} == {
        "core": 2,
        "agg1": 1,
        "agg2": 1,
        "edge1": 0,
        "edge2": 0,
        "edge3": 0,
        "edge4": 0,
    }
    assert switches["edge4"].up == (("agg2", 0.0, 0),)
    assert switches["edge1"].hosts == expand("gpu[001-004,017-020]", "x")
    assert switches["core"].up == switches["core"].hosts == ()
    assert any("GPUs" in note for note in found.notes)


def test_values_may_be_quoted():
    assert read_text('SwitchName="s" Nodes="n[1-2]"\n', "x").hosts == ("n1", "n2")
    with pytest.raises(SpecError, match="is not a list of Keyword=value"):
        read_text("SwitchName=s " + 'Nodes="n1" ' * 200 + "!\n", "x")


def test_keywords_are_read_in_any_case():
    found = read_text("SWITCHNAME=s1 nodes=n[1-2]\nswitchname=s0 SWITCHES=s1\n", "x")
    assert [switch.level for switch in found.switches] == [0, 1]


def test_blocks_of_unequal_size_hold_whole_groups_only(fixture):
    """The counts of a show-topology tool for blocks of 8, 9, 16 and 18 nodes: Azure/cyclecloud-slurm PR 415."""
    found = read(fixture("block.conf"))
    assert [len(one.hosts) for one in found.blocks] == [8, 9, 16, 18]
    assert found.block_sizes == (8, 16)
    groups = groups_in(found.blocks, 8)
    assert groups.per_block == (1, 1, 2, 2)
    assert groups.unused == (0, 1, 0, 2)
    with pytest.raises(SpecError, match="groups of 0 nodes"):
        groups_in(found.blocks, 0)


def test_blocks_with_four_gpus_a_node_are_domains_of_32():
    """NVLink domains are larger than a node: deepseek-ai/DeepEP issues 392 and 579."""
    found = read_text(block([8] * 12) + "BlockSizes=8,16,32\n", "x")
    assert [len(one.hosts) * 4 for one in found.blocks] == [32] * 12
    assert found.block_sizes == (8, 16, 32)


@pytest.mark.parametrize("sizes", ["8,12", "8,4", "0", "8,x", "8,", ""])
def test_block_sizes_are_the_first_times_a_power_of_two(sizes):
    with pytest.raises(SpecError, match="line 3"):
        read_text(block([8, 8]) + f"BlockSizes={sizes}\n", "x")


def test_a_block_short_of_nodes_is_noted():
    found = read_text(block([8, 6]) + "BlockSizes=8\n", "x")
    assert "1 blocks have fewer than 8 nodes: b1" in found.notes


def test_hosts_of_a_leaf_stand_together_whatever_their_names(fixture):
    """Rank order followed node names instead of switches: NVIDIA/pyxis issue 102."""
    found = read(fixture("tree.conf"))
    leaves = [set(switch.hosts) for switch in found.switches if switch.hosts]
    hosts = sorted(leaves[0] | leaves[2])
    random.Random(7).shuffle(hosts)
    ordered = in_order(found, hosts)
    assert sorted(ordered) == sorted(hosts)
    assert [set(ordered[:8]), set(ordered[8:])] == [leaves[0], leaves[2]]
    assert not any(set(sorted(hosts)[:8]) <= leaf for leaf in leaves)


def test_leaves_of_a_switch_stand_beside_each_other():
    text = "SwitchName=t Switches=a,b\nSwitchName=a Switches=l[1,3]\nSwitchName=b Switches=l[2,4]\n"
    text += "".join(f"SwitchName=l{i} Nodes=n{i}\n" for i in range(1, 5))
    assert in_order(read_text(text, "x"), ["n1", "n2", "n3", "n4"]) == ("n1", "n3", "n2", "n4")


def test_blocks_are_ordered_too(fixture):
    found = read(fixture("block.conf"))
    assert in_order(found, ["tray18", "tray01", "tray33", "tray08"]) == ("tray01", "tray08", "tray18", "tray33")


@pytest.mark.parametrize(("hosts", "what"), [(["elsewhere"], "elsewhere are not in"), (["tray01"] * 2, "named twice")])
def test_only_hosts_of_the_machine_are_ordered(fixture, hosts, what):
    with pytest.raises(SpecError, match=what):
        in_order(read(fixture("block.conf")), hosts)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SwitchName=a Switches=b\n", "line 1: switch a is above b, not described in the file; it may be cut"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "line 2: switch a is given twice"),
        ("SwitchName=a\n", "neither nodes nor switches"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "above itself: (a above b|b above a)"),
        ("SwitchName=a Switches=a\n", "above itself"),
        ("SwitchName=a Nodes=n[1\n", "line 1: host list 'n\\[1': a '\\[' that is not closed at character 2"),
        ("SwitchName=a Nodes=\n", "Keyword=value"),
        ("SwitchName=a Nodes=n1 Colour=red\n", "unknown keyword colour"),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", "a keyword is given twice"),
        ("SwitchName=a Nodes=ALL\n", "'ALL' are not named"),
        ("SwitchName=a Nodes=n1\nSwit", "line 2: 'Swit' is not a list"),
        ("SwitchName=a Nodes=n1 \\\n", "continued"),
        (
            "include /etc/slurm/more.conf\nSwitchName=a Nodes=n1\n",
            "line 1: 'include /etc/slurm/more.conf' is not followed",
        ),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n[1-2]\n", "node n1 is in blocks a and b"),
        ("BlockName=a Nodes=n1\nBlockName=a Nodes=n2\n", "block a is given twice"),
        ("BlockName=a\n", "block a has no nodes"),
        ("BlockName=a Nodes=n1\nBlockSizes=1\nBlockSizes=1\n", "line 3: BlockSizes is given twice"),
        ("SwitchName=a Level=1 Nodes=n1\n", "has Level=1, its Switches give 0"),
        (
            "SwitchName=a Level=1 Nodes=n1 Switches=b\nSwitchName=b Level=0 Nodes=n[1-2]\n",
            "lists not all nodes below it: n2",
        ),
        ("BlockName=a BlockIndex=0 Nodes=n1 BlockSize=1\nAggregatedBlock=[a-b] BlockIndex=1 Nodes=n1\n", "in brackets"),
        (
            "BlockName=a BlockIndex=0 Nodes=n1 BlockSize=1\nAggregatedBlock=a,b BlockIndex=1 Nodes=n1\n",
            "blocks b are not",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_line(text, what):
    with pytest.raises(SpecError, match=what):
        read_text(text, "x")


@pytest.mark.parametrize(
    "text", ["", "\n \n", "# a\n#b\n", "TopologyPlugin=topology/block\n", "topology/tree\n", "BlockSizes=8\n"]
)
def test_a_file_without_switches_is_no_cluster_of_one_node(tmp_path, text):
    """A generated topology file was empty and the scheduler went on without it: NVIDIA/aicr PR 1737."""
    path = tmp_path / "topology.conf"
    path.write_text(text)
    with pytest.raises(SpecError, match=f"no switches or blocks found in {path}"):
        read(path)


def test_several_roots_are_noted():
    found = read_text("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n", "x")
    assert "no common root: 2 switches have none above them: a, b" in found.notes


def test_a_node_on_two_switches_is_noted_and_counted_once():
    found = read_text("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[2-3]\n", "x")
    assert found.hosts == ("n1", "n2", "n3")
    assert "1 hosts are on more than one switch: n2" in found.notes


def test_one_file_may_have_switches_and_blocks():
    found = read_text("SwitchName=a Nodes=n[1-4]\nBlockName=b Nodes=n[1-2]\nBlockName=c Nodes=n[3-4]\n", "x")
    assert (len(found.switches), len(found.blocks), found.hosts) == (1, 2, ("n1", "n2", "n3", "n4"))


def test_pasted_trees_hold_each_node_at_its_leaf(fixture):
    """`scontrol show topology` lists the nodes below a switch: facebookresearch/gcm PR 167."""
    found = read(fixture("show_tree.txt"))
    assert [(switch.name, len(switch.hosts), switch.level) for switch in found.switches] == [
        ("spine", 0, 1),
        ("leaf1", 2, 0),
        ("leaf2", 2, 0),
        ("leaf3", 2, 0),
    ]


def test_pasted_blocks_give_their_sizes(fixture):
    found = read(fixture("show_block.txt"))
    assert [one.name for one in found.blocks] == ["nvl0", "nvl1"]
    assert found.block_sizes == (2, 4)
    assert len(found.hosts) == 4


def test_blocks_that_a_paste_lacks_are_noted():
    found = read_text("BlockName=b BlockIndex=1 Nodes=n1 BlockSize=1\n", "x")
    assert "blocks of these indices are missing: 0" in found.notes


def test_the_default_of_several_topologies_is_read(fixture):
    found = read(fixture("topology.yaml"))
    assert [switch.name for switch in found.switches] == ["top", "low1", "low2"]
    assert found.hosts == expand("cpu[01-05]", "x")
    assert "racks (block), plain (flat), loop (ring), cube (torus3d)" in found.notes[0]


def test_topologies_are_named_in_any_case(fixture):
    found = read(fixture("topology.yaml"), topology="RACKS")
    assert [one.name for one in found.blocks] == ["r1", "r2"]
    assert found.block_sizes == (2, 4)
    assert len(read(fixture("topology.yaml"), topology="Cube").hosts) == 4
    assert len(read(fixture("topology.yaml"), topology="loop").hosts) == 6


def test_a_flat_topology_has_no_switches(fixture):
    with pytest.raises(
        SpecError, match=r"no switches or blocks found in .*plain is flat; right is one of Fabric, racks"
    ):
        read(fixture("topology.yaml"), topology="plain")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "cluster_default: true",
            "cluster_default: false",
            "no topology has cluster_default: true; name one of Fabric",
        ),
        ("cluster_default: true", "cluster_default: tru", "cluster_default is 'tru'"),
        ("children: low[1-2]", "children: low[1-3]", "switch top is above low3"),
        ("topology: racks", "topology: FABRIC", "named twice"),
        ("        nodes: cpu[01-02]\n", "", "switch low1 has neither nodes nor switches"),
        ("block_sizes: [2, 4]", "block_sizes: [2, 5]", "block size 5"),
        ("block_sizes: [2, 4]", "block_sizes: [2, 4", "not closed"),
        ("flat: true", "", "has no kind; exactly one of"),
        ("flat: true", "flat: true\n  tree: x", "has tree, flat; exactly one"),
        ("nodes: t[1-4]", "nodes: t[1-5]", "2 x 2 x 1 hold 4 nodes, 5 are listed"),
        ("nodes: cpu[03-05]", "nodes: &a cpu[03-05]", "begins with '&'"),
        ("nodes: cpu[03-05]", "\tnodes: cpu[03-05]", "indented with a tab"),
        ("nodes: cpu[03-05]", "nodes", "not `key: value`"),
        ("      - switch: low2", "     - switch: low2", "indented"),
        ('"nv[3-4]"', '"nv[3-4]', "not closed"),
    ],
)
def test_a_broken_topology_yaml_says_where(fixture, old, new, what):
    text = fixture("topology.yaml").read_text()
    assert old in text
    with pytest.raises(SpecError, match=what):
        read_text(text.replace(old, new, 1), "x")


def test_a_name_is_for_files_with_several_topologies_only(fixture):
    with pytest.raises(SpecError, match=r"no topology 'racks'; only a topology\.yaml has named ones"):
        read(fixture("block.conf"), topology="racks")
    with pytest.raises(SpecError, match="topology 'rings' is not in the file; name one of Fabric, racks"):
        read(fixture("topology.yaml"), topology="rings")


def test_the_nodes_of_a_job_keep_their_order(fixture):
    found = read(fixture("job.txt"))
    assert (len(found.hosts), found.format, found.switches, found.node) == (261, "hosts", (), None)
    assert read_text("n3\nn1\nn2\nn1\n", "x").hosts == ("n3", "n1", "n2")
    assert read_text("export SLURM_NODELIST='n[3,1]'\n", "x").hosts == ("n3", "n1")


def test_a_cut_list_of_nodes_is_refused(fixture):
    with pytest.raises(SpecError, match="not closed at character 28"):
        read_text(fixture("job.txt").read_text()[:-4], "x")


@pytest.mark.parametrize(
    "name", ["tree.conf", "block.conf", "topology.yaml", "show_tree.txt", "show_block.txt", "job.txt"]
)
def test_a_cut_line_is_refused_or_noted(fixture, name):
    text = fixture(name).read_text()
    for end in range(len(text)):
        if text[:end].endswith("\n"):
            continue
        try:
            found = read_text(text[:end], "x")
        except SpecError:
            continue
        assert "the file may be cut" in found.notes[-1]


@pytest.mark.parametrize("name", ["tree.conf", "show_tree.txt"])
def test_no_beginning_of_a_tree_is_a_smaller_tree(fixture, name):
    lines = fixture(name).read_text().splitlines(keepends=True)
    for end in range(len(lines)):
        with pytest.raises(SpecError):
            read_text("".join(lines[:end]), "x")
