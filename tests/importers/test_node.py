"""What is inside a node: nvidia-smi, rocm-smi, NCCL and RCCL XML, hwloc."""

import re

import pytest

from moeplan.errors import SpecError
from moeplan.importers import read, read_text
from moeplan.importers.rocm import hops_between


def matrix(cells, nics=0, legend=""):
    """A matrix of nvidia-smi with `cells`(a, b) for a < b, GPUs first."""
    gpus = len(cells) - nics
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for i, name in enumerate(names):
        lines.append("\t".join([name, *cells[i], *(["0-7", "0"] if i < gpus else [])]))
    return "\n".join(lines) + "\n" + legend


def filled(gpus, nics, gpu_gpu, gpu_nic):
    size = gpus + nics
    cell = lambda a, b: "X" if a == b else gpu_gpu if max(a, b) < gpus else gpu_nic(min(a, b), max(a, b) - gpus)  # noqa: E731
    return [[cell(a, b) if min(a, b) < gpus or a == b else "NODE" for b in range(size)] for a in range(size)]


def weights(values, kind="XGMI"):
    """Tables of rocm-smi with these weights; hops are 1 whatever they are."""
    size = range(len(values))
    tables = {"Weight": lambda i, j: values[i][j], "Hops": lambda i, j: int(i != j), "Link Type": lambda i, j: kind}
    text = ""
    for title, cell in tables.items():
        text += f"===== {title} between two GPUs =====\n" + "".join(f"     GPU{j}" for j in size) + "\n"
        for i in size:
            text += f"GPU{i} " + " ".join("0" if i == j else str(cell(i, j)) for j in size) + "\n"
    return text


def test_a_matrix_of_nvidia_smi_is_read_whole(fixture):
    found = read(fixture("smi.txt"))
    node = found.node
    assert (found.format, found.hosts, found.switches, found.blocks) == ("nvidia-smi", (), (), ())
    assert (node.gpus, node.gpu_name, node.switch) == (4, "", True)
    assert node.links == tuple((a, b, 18, "nvlink") for a in range(4) for b in range(a + 1, 4))
    assert node.nic_of_gpu == ((0,), (1,), (2,), (3,))
    assert [(nic.name, nic.bytes_per_s, nic.numa) for nic in node.nics] == [
        ("ib0", 0.0, 0),
        ("ib1", 0.0, 0),
        ("ib2", 0.0, 1),
        ("ib3", 0.0, 1),
    ]
    assert node.numa_of_gpu == (0, 0, 1, 1)
    assert node.cpus_of_gpu == ("0-31,64-95", "0-31,64-95", "32-63,96-127", "32-63,96-127")


def test_spaces_instead_of_tabs_read_the_same(fixture):
    text = fixture("smi.txt").read_text()
    assert read_text(re.sub(r"\x1b\[\d*m", "", text).expandtabs(8), "x") == read(fixture("smi.txt"))


@pytest.mark.parametrize(
    ("cells", "numa", "cpus"),
    [("0-7\t\t\t\tN/A", -1, "0-7"), ("\t\t1\t\tN/A", 1, ""), ("\t\t\t\tN/A", -1, ""), ("0-7\t\t0-1\t\tN/A", -1, "0-7")],
)
def test_blank_affinities_are_unknown(cells, numa, cpus):
    text = f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t{cells}\n"
    node = read_text(text, "x").node
    assert (node.gpus, node.numa_of_gpu, node.cpus_of_gpu) == (1, (numa,), (cpus,))


def test_nics_may_be_named_in_the_columns_or_nowhere():
    """Drivers before NIC0 and its legend put mlx5_0 over the column."""
    plain = matrix(filled(2, 1, "NV4", lambda a, n: "PIX"), 1)
    named = read_text(plain.replace("NIC0", "mlx5_0"), "x")
    note = "names of the NICs are not in the file"
    assert named.node.nics[0].name == "mlx5_0"
    assert note not in named.notes
    assert note in read_text(plain, "x").notes


def test_gpus_without_nvlink_have_no_nvlink():
    """A virtual machine showed SYS between all GPUs: deepseek-ai/DeepEP issue 128."""
    found = read_text(matrix(filled(4, 4, "SYS", lambda a, n: "PIX" if a == n else "SYS"), 4), "x")
    assert {kind for _, _, _, kind in found.node.links} == {"pcie"}
    assert not found.node.switch
    assert any("no NVLink" in note for note in found.notes)


def test_pairs_with_a_bridge_are_the_only_nvlinks():
    cells = [
        ["X", "NV4", "SYS", "SYS"],
        ["NV4", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "NV4"],
        ["SYS", "SYS", "NV4", "X"],
    ]
    node = read_text(matrix(cells), "x").node
    assert [link for link in node.links if link[3] == "nvlink"] == [(0, 1, 4, "nvlink"), (2, 3, 4, "nvlink")]
    assert not node.switch


@pytest.mark.parametrize(
    ("gpus", "count", "switch"), [(8, 18, True), (8, 8, True), (16, 6, True), (4, 4, False), (4, 6, False)]
)
def test_more_cables_than_a_gpu_has_lead_to_a_switch(gpus, count, switch):
    node = read_text(matrix(filled(gpus, 0, f"NV{count}", None)), "x").node
    assert node.switch is switch
    assert len(node.links) == gpus * (gpus - 1) // 2


@pytest.mark.parametrize("path", ["PHB", "NODE", "SYS", "SOC"])
def test_nics_equally_far_from_all_are_all_nearest(path):
    found = read_text(matrix(filled(2, 2, "NV4", lambda a, n: path), 2), "x")
    assert found.node.nic_of_gpu == ((0, 1), (0, 1))
    assert any("equally far" in note for note in found.notes)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("NIC3: ib3", "", "the NIC legend lacks NIC3"),
        ("GPU2\tNV18", "GPU9\tNV18", "the row of GPU9 where the row of GPU2"),
        (" X \tNV18\tNV18\tNV18\tPIX", " X \tNV18\tNV18\tNV17\tPIX", "GPU0 to GPU3 is NV17 and back NV18"),
        ("\tNV18\tNV18\tNV18\tPIX", "\tNV18\tNV18\tFAR\tPIX", "GPU0 to GPU3 is 'FAR'; NV1"),
        ("\tGPU1\t", "\tGPU7\t", "columns GPU0, GPU7"),
        ("GPU0\t X ", "GPU0\tSYS", "GPU0 to GPU0 is 'SYS'; X is right"),
    ],
)
def test_a_broken_matrix_is_refused(fixture, old, new, what):
    text = fixture("smi.txt").read_text()
    assert old in text
    with pytest.raises(SpecError, match=what):
        read_text(text.replace(old, new, 1), "x")


def test_tables_of_rocm_smi_are_read_whole(fixture):
    """Hops are 1 for any way over XGMI, the weight counts cables: ROCm/rocm-systems issue 5763."""
    found = read(fixture("rocm.txt"))
    node = found.node
    assert (found.format, node.gpus, node.nics, node.switch) == ("rocm-smi", 4, (), False)
    assert node.links == ((0, 1, 1, "xgmi"), (0, 3, 1, "xgmi"), (1, 2, 1, "xgmi"), (2, 3, 1, "xgmi"))
    assert node.numa_of_gpu == (0, 0, 1, 1)
    assert hops_between(node) == [[0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]]
    assert any("GPU0-GPU2, GPU1-GPU3" in note for note in found.notes)


def test_a_full_mesh_of_xgmi_is_no_switch():
    node = read_text(weights([[15] * 8] * 8), "x").node
    assert node.links == tuple((a, b, 1, "xgmi") for a in range(8) for b in range(a + 1, 8))
    assert not node.switch


def test_a_weight_that_the_links_do_not_explain_is_noted():
    found = read_text(weights([[0, 15, 45], [15, 0, 15], [45, 15, 0]]), "x")
    assert "weights that are not 15 for each cable of the shortest way: GPU0-GPU2" in found.notes


def test_pairs_over_pcie_are_no_xgmi():
    node = read_text(weights([[0, 40], [40, 0]], "PCIE"), "x").node
    assert node.links == ((0, 1, 1, "pcie"),)
    assert hops_between(node) == [[0, -1], [-1, 0]]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("GPU[3]\t\t: (Topology) Numa Node: 1\n", "", "Numa Nodes of 3 GPUs, of 4"),
        ("Link Type between", "Kind between", "no table 'Link Type between two GPUs'"),
        ("XGMI         XGMI", "XGMI         WIRE", "differ|the same is right"),
        ("GPU0   0            15", "GPU0   0            30", "GPU0 to GPU1 is 30 and back 15"),
    ],
)
def test_broken_tables_of_rocm_smi_are_refused(fixture, old, new, what):
    text = fixture("rocm.txt").read_text()
    assert old in text
    with pytest.raises(SpecError, match=what):
        read_text(text.replace(old, new, 1), "x")


def test_a_dump_of_nccl_is_read_whole(fixture):
    node = read(fixture("nccl_dump.xml")).node
    assert (node.gpus, len(node.nics), node.switch) == (4, 8, True)
    assert node.links == tuple((a, b, 18, "nvlink") for a in range(4) for b in range(a + 1, 4))
    assert {nic.bytes_per_s for nic in node.nics} == {200e9 / 8}
    assert node.nic_of_gpu == ((6, 7), (4, 5), (2, 3), (0, 1))
    assert node.numa_of_gpu == (1, 1, 0, 0)
    assert node.cpus_of_gpu == ("32-47", "32-47", "0-15", "0-15")


def test_a_file_of_a_cloud_needs_class_codes_only(fixture):
    """Files of clouds lack <gpu> and <net>: Azure/azhpc-images ndv5-topo.xml, NVIDIA/nccl issue 1505."""
    found = read(fixture("nccl_cloud.xml"))
    assert (found.node.gpus, len(found.node.nics)) == (4, 4)
    assert found.node.nic_of_gpu == ((0,), (1,), (2,), (3,))
    assert {nic.bytes_per_s for nic in found.node.nics} == {0.0}
    assert found.node.links == ()
    assert any("speeds of NICs are not in the file" in note for note in found.notes)


def test_cables_between_amd_gpus_are_counted(fixture):
    node = read(fixture("rccl.xml")).node
    assert node.links == ((0, 1, 2, "xgmi"), (0, 3, 1, "xgmi"), (1, 2, 1, "xgmi"), (2, 3, 1, "xgmi"))
    assert node.nics == (("eno1", 25e9 / 8, 0),)
    assert not node.switch


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("rccl.xml", 'count="2"', 'count="3"', "GPU 0 has 3 cables to GPU 1, which has 2 back"),
        ("rccl.xml", 'count="2"', 'count="?"', "both are needed"),
        ("rccl.xml", "0x038000", "0x060400", None),
        ("nccl_cloud.xml", "0x030200", "0x060400", None),
        ("nccl_cloud.xml", "0001:00:00.0", "0002:00:00.0", "one address each"),
        ("nccl_cloud.xml", "0001:00:00.0", "zz", "'zz' is no PCI address"),
        ("nccl_cloud.xml", "system", "graphs", "NCCL_GRAPH_DUMP_FILE"),
        ("nccl_cloud.xml", "system", "html", "root <html>"),
        ("nccl_dump.xml", 'speed="200000"', 'speed="fast"', "whole number of Mbit/s"),
        ("nccl_dump.xml", 'host_hash="0x7a"', 'host_hash="0x7b"', "holds 2 hosts"),
        ("nccl_dump.xml", 'affinity="0', 'affinity="z', "no mask of CPUs"),
        ("hwloc2.xml", 'nbobjs="6"', 'nbobjs="7"', "n, n and n x n"),
        ("hwloc2.xml", "OSDev:131", "OSDev:999", "lacks GPUs 3"),
        ("hwloc1.xml", "cuda0", "other0", None),
        ("hwloc1.xml", '"0302 ', '"0300 ', None),
    ],
)
def test_broken_xml_is_refused_and_what_is_not_needed_may_lack(fixture, name, old, new, what):
    text = fixture(name).read_text()
    assert old in text
    text = text.replace(old, new) if new in ("graphs", "html") else text.replace(old, new, 1)
    if what is None:
        read_text(text, "x")
        return
    with pytest.raises(SpecError, match=what):
        read_text(text, "x")


def test_xml_without_gpus_is_no_gpu_node(fixture):
    text = fixture("nccl_cloud.xml").read_text()
    with pytest.raises(SpecError, match="no GPU"):
        read_text(re.sub(r' class="\w+"', "", text), "x")
    text = fixture("hwloc1.xml").read_text().replace("cuda0", "sda").replace('"0302 ', '"0100 ')
    with pytest.raises(SpecError, match="no GPU"):
        read_text(text, "x")


def test_entities_are_not_expanded():
    with pytest.raises(SpecError, match="defines XML entities"):
        read_text('<!DOCTYPE a [<!ENTITY b "c">]><system>&b;</system>', "x")


def test_one_gpu_of_three_libraries_is_one_gpu(fixture):
    """A GPU appears once for each library that lists it: open-mpi/hwloc PR 406."""
    found = read(fixture("hwloc2.xml"))
    node = found.node
    assert (node.gpus, node.gpu_name, node.switch) == (4, "NVIDIA A100-SXM4-40GB", True)
    assert node.nics == (("mlx5_0", 0.0, 0), ("mlx5_1", 0.0, 1))
    assert node.nic_of_gpu == ((0,), (0,), (1,), (1,))
    assert node.numa_of_gpu == (0, 0, 1, 1)
    assert node.cpus_of_gpu == ("0-1", "0-1", "2-3", "2-3")
    assert node.links == tuple((a, b, 12, "nvlink") for a in range(4) for b in range(a + 1, 4))
    assert node.link_bytes_per_s == (300e9,) * 6


def test_gpus_without_a_common_switch_get_no_link(fixture):
    text = fixture("hwloc2.xml").read_text()
    rows = [[0] * 6 for _ in range(6)]
    for gpu in range(4):
        rows[gpu][4 + gpu // 2] = rows[4 + gpu // 2][gpu] = 25000
    values = " ".join(str(value) for row in rows for value in row)
    text = re.sub(r"(?s)<u64values.*</u64values>", f"<u64values>{values}</u64values>", text)
    found = read_text(text, "x")
    assert found.node.links == ((0, 1, 1, "nvlink"), (2, 3, 1, "nvlink"))
    assert not found.node.switch
    assert any("cables between switches are not in the file" in note for note in found.notes)


def test_the_first_version_of_hwloc_is_read(fixture):
    node = read(fixture("hwloc1.xml")).node
    assert (node.gpus, node.gpu_name, node.numa_of_gpu, node.cpus_of_gpu) == (1, "Tesla K20Xm", (1,), ("4-7",))
    assert node.nics == (("eth0", 0.0, 0),)
    assert node.links == ()
