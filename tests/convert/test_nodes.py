"""Files about one node as the node of a cluster."""

import pytest

import moeplan as mp
from moeplan.machine.summary import cluster_summary
from moeplan.spec.cluster import nic_of

NODES = {
    "smi.txt": "dgx-h100",
    "rocm.txt": "frontier",
    "nccl_dump.xml": "dgx-h100",
    "nccl_cloud.xml": "dgx-h100",
    "rccl.xml": "frontier",
    "hwloc1.xml": "dgx-a100",
    "hwloc2.xml": "dgx-a100",
}


def test_half_a_node_is_not_half_an_nvlink_domain(converted, fixture):
    cluster, _ = converted(fixture("smi.txt"), "--like", "dgx-h100")
    assert (cluster.node.gpus, cluster.node.domain) == (4, 1)
    racks, _ = converted(fixture("smi.txt"), "--like", "gb200-nvl72")
    assert (racks.node.gpus, racks.node.domain) == (4, 18)


def square(size, cell):
    return [[cell] * size for _ in range(size)]


def test_gpus_equally_near_to_two_nics_do_not_share_one(converted, smi):
    """As NCCL issue 820: the first nearest NIC of both GPUs of a pair was the same."""
    near = [["PIX" if j // 2 == i // 2 else "SYS" for j in range(8)] for i in range(8)]
    cluster, err = converted(smi(square(8, "NV18"), near), "--like", "dgx-h100")
    assert cluster.node.nic_of_gpu == tuple(range(8))
    assert "warning" not in err


def test_a_machine_that_hides_distances_is_warned_of_and_a_topology_file_tells_them(converted, smi, fixture):
    """As NCCL issue 1464: in a virtual machine every NIC looks equally far from every GPU."""
    path = smi(square(4, "NV18"), [["PHB"] * 4 for _ in range(4)])
    cluster, err = converted(path, "--like", "dgx-h100")
    assert cluster.node.nic_of_gpu == (0, 1, 2, 3)
    assert "warning: smi.txt: every NIC is equally far from every GPU: assumed in index order" in err
    cluster, err = converted(path, "--like", "dgx-h100", "--nccl-topo", fixture("nccl_cloud.xml"))
    assert cluster.node.nic_of_gpu == (0, 1, 2, 3)
    assert "warning: smi.txt: every NIC" not in err


def test_the_topology_file_wins_over_the_matrix(converted, smi, tmp_path, fixture):
    crossed = fixture("nccl_cloud.xml").read_text().replace("0101:00", "swap:00").replace("0104:00", "0101:00")
    (tmp_path / "crossed.xml").write_text(crossed.replace("swap:00", "0104:00"))
    path = smi(square(4, "NV18"), [["PHB"] * 4 for _ in range(4)])
    cluster, _ = converted(path, "--like", "dgx-h100", "--nccl-topo", tmp_path / "crossed.xml")
    assert cluster.node.nic_of_gpu == (3, 1, 2, 0)


@pytest.mark.parametrize("like", ["dgx-h100", "gb200-nvl72"])
def test_gpus_without_nvlink_never_get_its_bandwidth(converted, smi, tmp_path, like):
    near = [["PIX" if i == j else "SYS" for j in range(8)] for i in range(8)]
    cluster, err = converted(smi(square(8, "SYS"), near), "--like", like)
    assert cluster.node.link_bytes_per_s == 63e9
    assert cluster.node.domain == 1
    assert "no NVLink or XGMI between GPUs: PCIe, whose bandwidth is assumed" in err
    assert 'link = "63 GB/s"  # assumed: PCIe 5, 16 lanes; smi.txt has no NVLink' in (tmp_path / "out.toml").read_text()


def test_pairs_with_a_bridge_share_pcie_with_the_others(converted, smi):
    cells = [["NV4" if i // 2 == j // 2 else "SYS" for j in range(4)] for i in range(4)]
    cluster, err = converted(smi(cells, [["SYS"] for _ in range(4)]), "--like", "dgx-a100")
    speeds = {(a, b): bytes_per_s for a, b, bytes_per_s in cluster.node.links}
    assert speeds.pop((0, 1)) == speeds.pop((2, 3)) == 4 * 25e9
    assert len(speeds) == 4
    assert set(speeds.values()) == {31.5e9 / 2}
    assert "share PCIe 4, 16 lanes over 2 pairs" in err


def test_what_weighs_two_cables_is_no_link(converted, fixture):
    """As rocm-systems issue 5763: hops say 1, the weight says 30."""
    cluster, _ = converted(fixture("rocm.txt"), "--like", "frontier")
    assert cluster.node.links == ((0, 1, 50e9), (0, 3, 50e9), (1, 2, 50e9), (2, 3, 50e9))
    assert cluster_summary(cluster).facts["inside_per_gpu_gb_per_s"] == 100


def test_cables_count_and_their_bytes_are_those_of_the_gpu(converted, fixture):
    cluster, _ = converted(fixture("rccl.xml"), "--like", "frontier")
    assert {(a, b): speed for a, b, speed in cluster.node.links}[0, 1] == 2 * 50e9
    switched, _ = converted(fixture("smi.txt"), "--like", "dgx-h100")
    assert (switched.node.link_bytes_per_s, switched.node.links) == (18 * 25e9, ())
    newer, _ = converted(fixture("smi.txt"), "--like", "dgx-b200")
    assert newer.node.link_bytes_per_s == 18 * 50e9


def test_both_ports_of_an_adapter_are_one_nic_of_their_gpu(converted, fixture):
    cluster, err = converted(fixture("nccl_dump.xml"), "--like", "dgx-h100")
    node = cluster.node
    assert [nic_of(node, gpu) for gpu in range(node.gpus)] == list(range(node.gpus))
    assert (node.nics, node.nic_bytes_per_s) == (node.gpus, 2 * 25e9)
    assert node.link_bytes_per_s == 18 * 25e9
    assert "2 ports serve each GPU: taken as one NIC" in err


def test_a_file_without_gpu_tags_is_a_node_too(converted, fixture, tmp_path):
    cluster, _ = converted(fixture("nccl_cloud.xml"), "--like", "dgx-h100")
    assert (cluster.node.gpus, cluster.node.nics, cluster.node.nic_of_gpu) == (4, 4, (0, 1, 2, 3))
    text = (tmp_path / "out.toml").read_text()
    assert 'link = "450 GB/s"  # assumed: as dgx-h100' in text
    assert 'nic = "50 GB/s"  # assumed: as dgx-h100' in text


def test_no_speed_of_a_nic_is_invented_and_the_name_of_the_gpu_kept(converted, fixture, tmp_path):
    cluster, err = converted(fixture("hwloc2.xml"), "--like", "dgx-h100")
    assert cluster.gpu.name == "NVIDIA A100-SXM4-40GB"
    assert "HBM and FLOP/s are those of H100 SXM 80GB" in err
    assert 'nic = "50 GB/s"  # assumed: as dgx-h100' in (tmp_path / "out.toml").read_text()


@pytest.mark.parametrize(("name", "like"), NODES.items())
def test_every_file_of_a_node_makes_a_cluster_to_plan_with(converted, fixture, moeplan, tmp_path, name, like):
    cluster, _ = converted(fixture(name), "--like", like)
    facts = cluster_summary(cluster).facts
    assert facts["inside_per_gpu_gb_per_s"] > 0
    assert (cluster.node.gpus > 1) == (facts["all_to_all_shortest_paths_gb_per_s"] > 0)
    assert facts["all_to_all_shortest_paths_gb_per_s"] <= facts["all_to_all_all_paths_gb_per_s"] * 1.0001
    gpus = cluster.node.gpus
    case = ("--model", "tiny-moe", "--cluster", tmp_path / "out.toml", "--seq-len", 64, "--global-batch", 64)
    code, _, err = moeplan("estimate", *case, "--gpus", gpus * (2 if cluster.nodes > 1 else 1), "--ep", 1)
    assert code == 0, err


def test_nics_in_proportion_are_not_told_as_those_of_the_other(tmp_path):
    """Slurm says no NICs; twice as many GPUs as the cluster that is like it have twice its 8 NICs."""
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=s1 Nodes=n[1-2]\n")
    found = mp.convert_topology(path, "dgx-a100", gpus_per_node=16)
    assert "nics = 16  # assumed: as dgx-a100, 8 for 8 GPUs\n" in found.toml
    assert "nics = 8  # assumed: as dgx-a100\n" in mp.convert_topology(path, "dgx-a100").toml
