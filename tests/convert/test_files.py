"""What is written: every number with its source, whole or not at all; what is missing or contradicts, in one line."""

import re
import tomllib

import pytest

import moeplan as mp
from moeplan.errors import SpecError

ALL = ("tree.conf", "block.conf", "topology.yaml", "show_tree.txt", "show_block.txt", "job.txt", "smi.txt", "rocm.txt")
ALL += ("nccl_dump.xml", "nccl_cloud.xml", "rccl.xml", "ibnet.out", "hwloc1.xml", "hwloc2.xml")


def test_one_file_needs_no_list(fixture):
    one = fixture("smi.txt")
    assert mp.convert_topology(str(one), "dgx-h100") == mp.convert_topology([one], "dgx-h100")


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_read_again_and_every_number_has_its_source(fixture, tmp_path, name):
    found = mp.convert_topology([fixture(name)], "mi300x")
    (tmp_path / "x.toml").write_text(found.toml)
    assert mp.load_cluster(tmp_path / "x.toml") == found.cluster
    lines = found.toml[: found.toml.index("[sources]")].splitlines()
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r"\w+ = ", line) and "  # " not in line and not before.startswith("# ")
    ]
    assert {line.split(" = ")[0] for line in bare} <= {"name", "kind"}
    named = {field for key in found.cluster.sources for field in key.split(", ")}
    plain = tomllib.loads(found.toml)
    fields = {f"{table}.{key}" for table in ("gpu", "node", "network") for key in plain[table]} - {"network.kind"}
    assert all(field in named or field.split(".")[0] in named or field == "gpu.peak" for field in fields)
    for note in found.notes:
        assert f"# Note: {note}" in found.toml


def test_without_a_cluster_that_is_like_it_all_that_is_missing_is_named(fixture, moeplan, tmp_path):
    code, out, err = moeplan("topology", "convert", fixture("smi.txt"), fixture("tree.conf"), "-o", "out.toml")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    said, _, rest = err.partition("; --like NAME")
    lost = said.split("no file says ")[1].split(", ")
    assert "dgx-h100" in rest
    assert {"gpu.hbm", "gpu.peak", "node.nic", "node.nic_latency", "network.hop_latency"} <= set(lost)
    assert not {"node.gpus", "node.nics", "node.link", "nodes"} & set(lost)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_file_of_ones_own_may_be_like_it(fixture, tmp_path):
    first = mp.convert_topology([fixture("tree.conf")], "dgx-h100", name="first")
    (tmp_path / "mine.toml").write_text(first.toml)
    second = mp.convert_topology([fixture("smi.txt")], str(tmp_path / "mine.toml"))
    assert second.cluster.network == first.cluster.network
    assert second.cluster.hosts == first.cluster.hosts
    assert 'hbm = "79.1 GiB"  # assumed: as first' in second.toml


def test_the_file_goes_to_stdout_unless_named_and_takes_a_name(fixture, moeplan, tmp_path):
    code, out, _ = moeplan("topology", "convert", fixture("tree.conf"), "--like", "dgx-h100", "--name", "ours")
    assert code == 0
    assert tomllib.loads(out)["name"] == "ours"
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(moeplan, fixture):
    code, _, err = moeplan("topology", "convert", fixture("tree.conf"), "--like", "dgx-h100", "-o", "none/out.toml")
    assert code == 2
    assert "none is not a folder" in err


@pytest.mark.parametrize(
    ("files", "options", "what"),
    [
        (("smi.txt", "hwloc1.xml"), {}, "different numbers of GPUs: smi.txt 4, hwloc1.xml 1;"),
        (("tree.conf", "show_tree.txt"), {}, "tree.conf, show_tree.txt all tell switches; one file is right"),
        (("tree.conf", "job.txt"), {}, "are not in the topology of 32 hosts"),
        (("tree.conf",), {"nodes": "gpu001,gpu001"}, "1 hosts are named twice"),
        (("tree.conf",), {"nodes": "gpu[001"}, "--nodes: host list"),
        (("tree.conf",), {"topology_name": "racks"}, "--topology-name racks: none of tree.conf is a topology.yaml"),
        (("tree.conf",), {"nccl_topo": "ibnet.out"}, "ibnetdiscover without GPUs and NICs"),
        (("smi.txt",), {"gpus_per_node": 8}, "--gpus-per-node 8: smi.txt has 4"),
        (("rocm.txt",), {"domain": 2}, "what joins GPUs ends at the node"),
        (
            ("tree.conf", "block.conf"),
            {},
            "tray04 and 47 more are in a block and on no switch",
        ),
        ((), {}, "no file to convert"),
    ],
)
def test_files_that_contradict_each_other_are_refused_in_one_line(fixture, files, options, what):
    if "nccl_topo" in options:
        options = {"nccl_topo": fixture(options["nccl_topo"])}
    with pytest.raises(SpecError, match=re.escape(what)) as caught:
        mp.convert_topology([fixture(name) for name in files], "dgx-h100", **options)
    assert "\n" not in str(caught.value)


def test_a_name_that_no_host_list_can_hold_is_refused_by_its_file(fixture, tmp_path):
    (tmp_path / "fabric.out").write_text(fixture("ibnet.out").read_text().replace("pod1-n3", "pod1[n3"))
    with pytest.raises(SpecError, match=re.escape("fabric.out: 'pod1[n3' is no name of a node")):
        mp.convert_topology([tmp_path / "fabric.out"], "dgx-h100")


def test_a_fabric_tells_the_speed_of_nics_that_a_matrix_does_not(fixture, tmp_path):
    text = fixture("ibnet.out").read_text().replace("4xNDR", "4xXDR")
    (tmp_path / "fabric.out").write_text(text)
    found = mp.convert_topology([fixture("smi.txt"), tmp_path / "fabric.out"], "dgx-h100")
    assert found.cluster.node.nic_bytes_per_s == 100e9
    assert 'nic = "100 GB/s"  # fabric.out' in found.toml
    assert "fabric.out counts 2 ports of a host, smi.txt 4: smi.txt is taken" in found.warnings


def test_adapters_for_other_traffic_are_left_out(fixture, tmp_path):
    slow = fixture("nccl_dump.xml").read_text().replace('speed="200000"', 'speed="10000"', 1)
    (tmp_path / "dump.xml").write_text(slow)
    found = mp.convert_topology([tmp_path / "dump.xml"], "dgx-h100")
    assert any("slower than 25 GB/s and left out" in line for line in found.warnings)
    assert found.cluster.node.nic_bytes_per_s == 25e9
