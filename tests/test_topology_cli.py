"""`moeplan topology choose` and `place`: what they print, write and refuse."""

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from moeplan.draft import draft
from moeplan.layout import Colocated
from moeplan.plan_file import write_plan
from moeplan.spec.case import Case
from moeplan.spec.cluster import check_cluster
from moeplan.spec.shipped import load_cluster, load_model
from moeplan.spec.workload import Workload

FIXTURES = Path(__file__).parent / "fixtures" / "importers"
TREE = str(FIXTURES / "three_levels.conf")


@pytest.fixture
def moeplan(command_line):
    """moeplan(*arguments): exit code, stdout and stderr."""
    return command_line


@pytest.fixture
def plan_file(tmp_path):
    """A plan of 4 nodes of 8 GPUs, two leaves of 4, whose expert groups of two nodes are on both."""
    cluster = load_cluster("h800-16x8")
    network = structs.replace(cluster.network, nodes_per_leaf=4)
    cluster = structs.replace(cluster, network=network, nodes=8, hosts="n[1-8]", use="n1,n5,n2,n6")
    cluster = check_cluster(structs.replace(cluster, nodes=4))
    model = structs.replace(load_model("tiny-moe"), experts=16)
    case = Case(model=model, cluster=cluster, workload=Workload(seq_len=1024, global_batch=64))
    path = tmp_path / "plan.json"
    write_plan(draft(case, Colocated(ep=16, dp=32), schedule="1f1b"), path)
    return path


def test_nodes_of_one_leaf_are_chosen_and_the_line_for_slurm_said(moeplan):
    free = "node[001,013,025,002,014,026,038,050,003,015]"
    code, out, _ = moeplan("topology", "choose", "--topology", TREE, "--nodes", 5, "--free", free)
    assert code == 0
    assert out.splitlines()[-1] == "#SBATCH --nodes=5 --nodelist=node[002,014,026,038,050] --switches=1"


def test_blocks_have_no_groups_and_the_table_says_so(moeplan, tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text("BlockName=b1 Nodes=n[1-4]\nBlockSizes=4\n")
    _, out, _ = moeplan("topology", "choose", "--topology", path, "--nodes", 2, "--free", "n[1-3]")
    assert re.search(r"groups +none *\n", out)


def test_what_was_chosen_as_json(moeplan):
    free = "node[001,013,025,002,014,026,038,050,003,015]"
    code, out, _ = moeplan("topology", "choose", "--topology", TREE, "--nodes", 7, "--free", free, "--format", "json")
    told = json.loads(out)
    assert code == 0
    assert (told["racks"], told["groups"], told["left_over"]) == (["leaf01", "leaf02"], ["spine1"], 1)


def test_racks_of_a_shipped_cluster_are_counted_in_its_places(moeplan):
    code, out, _ = moeplan(
        "topology", "choose", "--cluster", "gb200-nvl72", "--nodes", 1, "--free", "0,1", "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["nodes"] == 1


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--topology", TREE, "--nodes", 3, "--free", "node[001-002]"), 1, "3 nodes asked for, 2 are free"),
        (("--topology", TREE, "--nodes", 1, "--free", "node[100]"), 2, "'node100' is free, and not in the topology"),
        (("--nodes", 1, "--free", "a1"), 2, "--cluster and --topology are two ways"),
        (("--topology", TREE, "--nodes", 1, "--free", "node[1"), 2, "a '[' that is not closed"),
        (("--topology", str(FIXTURES / "job.txt"), "--nodes", 1, "--free", "a1"), 2, "no switches or blocks in it"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(moeplan, options, code, message):
    found, out, err = moeplan("topology", "choose", *options)
    assert (found, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_hosts_are_written_in_rank_order_and_slurm_told_to_keep_it(moeplan, plan_file, tmp_path):
    hosts, ranks, rankfile = (tmp_path / name for name in ("hosts.txt", "ranks.txt", "rankfile"))
    code, out, _ = moeplan(
        "topology", "place", plan_file, "-o", hosts, "--slurm-hostfile", ranks, "--rankfile", rankfile
    )
    order = hosts.read_text().split()
    assert code == 0
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({"n1", "n2"}), frozenset({"n5", "n6"})}
    assert ranks.read_text().split() == [host for host in order for _ in range(8)]
    assert rankfile.read_text().splitlines()[9] == f"rank 9={order[1]} slot=1"
    assert f"SLURM_HOSTFILE={ranks} srun --distribution=arbitrary --ntasks=32" in out
    assert f"MASTER_ADDR={order[0]} " in out
    assert "#SBATCH --nodes=4 --nodelist=n[1-2,5-6]" in out


def test_an_order_is_proven_and_told_as_json(moeplan, plan_file):
    code, out, _ = moeplan("topology", "place", plan_file, "--nodes", "n[1,3,5,7]", "--exact", "--format", "json")
    told = json.loads(out)
    assert (code, told["status"]) == (0, "optimal")
    assert told["found_s"] <= min(told["given_s"], told["by_name_s"])
    assert told["rank_hosts"] == [host for host in told["hosts"] for _ in range(8)]
    assert told["busiest"]


def test_other_numbers_of_nodes_than_the_plans_are_refused_and_nothing_is_written(moeplan, plan_file, tmp_path):
    code, out, err = moeplan("topology", "place", plan_file, "--nodes", "n[1-3]", "-o", tmp_path / "hosts.txt")
    assert (code, out) == (2, "")
    assert "--nodes names 3 nodes; the plan is for 4" in err
    assert not (tmp_path / "hosts.txt").exists()
