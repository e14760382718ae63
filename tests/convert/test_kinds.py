"""Nodes of several kinds in one machine: each with its hosts and files about one of them."""

import tomllib

import pytest

import moeplan as mp
from moeplan.errors import SpecError
from moeplan.spec.cluster import node_at
from moeplan.spec.shipped import load_cluster

SLURM = "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8]\nSwitchName=top Switches=a,b\n"


@pytest.fixture
def machine(smi, tmp_path):
    """Slurm's tree of 8 nodes, a node file of 8 GPUs with 8 NICs, one with 2 NICs, one of 4 GPUs."""

    def node(name, gpus, nics):
        near = [["PIX" if nic == gpu * nics // gpus else "SYS" for nic in range(nics)] for gpu in range(gpus)]
        smi([["NV18"] * gpus for _ in range(gpus)], near).rename(tmp_path / name)
        return tmp_path / name

    (tmp_path / "topology.conf").write_text(SLURM)
    return {
        "slurm": tmp_path / "topology.conf",
        "eight": node("eight.txt", 8, 8),
        "two": node("two.txt", 8, 2),
        "half": node("half.txt", 4, 4),
    }


def test_each_host_has_the_node_of_its_file(converted, machine, tmp_path):
    files = (machine["slurm"], machine["eight"])
    cluster, _ = converted(*files, "--like", "dgx-h100", "--kind", f"n[3,7-8]={machine['two']}")
    assert [node_at(cluster, f"n{i}").nics for i in range(1, 9)] == [8, 8, 2, 8, 8, 8, 2, 2]
    assert node_at(cluster, "n8").nic_of_gpu == (0, 0, 0, 0, 1, 1, 1, 1)
    text = (tmp_path / "out.toml").read_text()
    assert '[[kinds]]\nnodes = "n[3,7-8]"  # --kind: as two.txt\n' in text
    assert "[kinds.node]\ngpus = 8  # two.txt\nnics = 2  # two.txt\n" in text
    assert tomllib.loads(text)["sources"]["kinds[0].nodes"] == "--kind: as two.txt"


def test_uplinks_that_no_file_tells_carry_what_the_nodes_below_send(converted, machine):
    """Leaf b: two nodes of 8 NICs and two of 2, 50 GB/s each."""
    files = (machine["slurm"], machine["eight"])
    cluster, _ = converted(*files, "--like", "dgx-h100", "--kind", f"n[7-8]={machine['two']}")
    assert {one.name: one.uplink_bytes_per_s for one in cluster.network.switches[:2]} == {
        "a": 4 * 8 * 50e9,
        "b": (2 * 8 + 2 * 2) * 50e9,
    }


def test_where_every_host_is_of_a_kind_the_largest_is_the_usual_one(converted, machine):
    kinds = ("--kind", f"n[1-5]={machine['two']}", "--kind", f"n[6-8]={machine['eight']}")
    cluster, _ = converted(machine["slurm"], "--like", "dgx-h100", *kinds)
    assert (cluster.node.nics, [kind.nodes for kind in cluster.kinds]) == (2, ["n[6-8]"])
    alone, _ = converted("--like", "dgx-h100", *kinds)
    assert (alone.nodes, alone.hosts, alone.node, alone.kinds) == (8, "n[1-8]", cluster.node, cluster.kinds)


def test_hosts_of_no_kind_are_as_the_machine_that_is_like_it(converted, machine):
    cluster, _ = converted(machine["slurm"], "--like", "dgx-h100", "--kind", f"n8={machine['two']}")
    assert (cluster.node.nics, node_at(cluster, "n8").nics) == (load_cluster("dgx-h100").node.nics, 2)


def test_a_cluster_of_two_kinds_can_be_planned_with(converted, machine, moeplan, tmp_path):
    converted(machine["slurm"], machine["eight"], "--like", "dgx-h100", "--kind", f"n[7-8]={machine['two']}")
    case = ("--model", "tiny-moe", "--cluster", tmp_path / "out.toml", "--seq-len", 64, "--global-batch", 64)
    code, _, err = moeplan("estimate", *case, "--ep", 4)
    assert code == 0, err
    assert moeplan("topology", "check", tmp_path / "out.toml")[0] == 0


def test_python_takes_kinds_by_host_list(machine):
    found = mp.convert_topology(
        machine["slurm"], "dgx-h100", kinds={"n[1-4]": machine["eight"], "n[5-8]": [machine["two"]]}
    )
    assert [node_at(found.cluster, host).nics for host in ("n1", "n5")] == [8, 2]


def test_several_files_may_speak_of_one_kind(machine, fixture, tmp_path):
    files = [fixture("smi.txt"), fixture("nccl_cloud.xml")]
    found = mp.convert_topology(machine["slurm"], "dgx-h100", kinds={"n[1-8]": files})
    assert found.cluster.node.gpus == 4


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"n[7-9]": "two"}, "--kind: nodes n9 of two.txt are not among the hosts of topology.conf"),
        ({"n[7-8]": "two", "n8": "eight"}, "--kind n8: node n8 is also of n[7-8]; a node is of one kind"),
        ({"n[7-8]": "half"}, "nodes n[7-8] have 4 GPUs, others 8; all nodes of a job have as many"),
        ({"n[7-8]": "slurm"}, "is slurm, which tells no node"),
        ({"n[7": "two"}, "a '[' that is not closed"),
    ],
)
def test_what_cannot_be_a_kind_is_told(machine, kinds, message):
    files, kinds = [machine["slurm"], machine["eight"]], {hosts: machine[name] for hosts, name in kinds.items()}
    with pytest.raises(SpecError) as told:
        mp.convert_topology(files, "dgx-h100", kinds=kinds)
    assert message in str(told.value)


@pytest.mark.parametrize("text", ["n[1-4]", "=two.txt", "n1="])
def test_a_kind_is_hosts_and_a_file(moeplan, text):
    code, out, err = moeplan("topology", "convert", "--like", "dgx-h100", "--kind", text)
    assert (code, out) == (2, "")
    assert f"--kind {text!r}: right is HOSTS=FILE" in err


def test_hosts_of_the_usual_node_are_asked_for(moeplan, machine):
    kind = ("--kind", f"n8={machine['two']}")
    code, _, err = moeplan("topology", "convert", machine["eight"], "--like", "dgx-h100", *kind)
    assert code == 2
    assert "nothing says which hosts are as in eight.txt; --nodes with all of them is right" in err
    assert moeplan("topology", "convert", machine["eight"], "--like", "dgx-h100", *kind, "--nodes", "n[1-8]")[0] == 0


def test_two_files_of_unlike_nodes_are_told_of_and_which_option_is_for_them(moeplan, machine):
    code, _, err = moeplan("topology", "convert", machine["eight"], machine["half"], "--like", "dgx-h100")
    assert code == 2
    assert "eight.txt 8, half.txt 4; those of one kind of node are right, others as --kind HOSTS=FILE" in err
    code, _, err = moeplan("topology", "convert", machine["eight"], machine["two"], "--like", "dgx-h100")
    assert code == 0
    assert "warning: two.txt counts 2 ports of a host, eight.txt 8: eight.txt is taken" in err
