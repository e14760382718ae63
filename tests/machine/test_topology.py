"""`moeplan topology list | show | check`, pictures and warnings."""

import csv
import io
import json
import re

import pytest
from matplotlib import pyplot as plt
from msgspec import structs

import moeplan as mp
from moeplan.machine.warned import warnings_of
from moeplan.spec.cluster import pick
from moeplan.spec.network import Switch
from moeplan.spec.node import Bridge
from moeplan.spec.record import to_plain
from moeplan.spec.shipped import shipped
from moeplan.toml_text import toml_text
from moeplan.topology.core import core
from moeplan.units import BytesPerS


def warned(cluster):
    return warnings_of(cluster, core(cluster))


def without_empty(value):
    if isinstance(value, dict):
        return {key: without_empty(one) for key, one in value.items() if one is not None}
    return [without_empty(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def file_of(tmp_path):
    """file_of(cluster): a cluster file that holds it."""

    def write(cluster):
        path = tmp_path / "mine.toml"
        path.write_text(toml_text(without_empty(to_plain(cluster))))
        assert mp.load_cluster(path) == cluster
        return path

    return write


def test_every_cluster_that_ships_is_listed(moeplan):
    code, out, err = moeplan("list", "--format", "csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["cluster"] for row in rows] == list(shipped("cluster"))
    for row in rows:
        cluster = mp.load_cluster(row["cluster"])
        assert int(row["gpus"]) == cluster.nodes * cluster.node.gpus
        used = min(cluster.node.nics, cluster.node.gpus)
        assert float(row["injection_gb_per_s"]) == pytest.approx(used * cluster.node.nic_bytes_per_s / 1e9)
    assert json.loads(moeplan("list", "--format", "json")[1])["clusters"] == mp.cluster_rows()
    assert "frontier" in moeplan("list")[1]


def test_show_says_what_a_file_is(moeplan, file_of, cluster):
    code, out, err = moeplan("show", file_of(cluster), "--format", "json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told == json.loads(json.dumps(mp.cluster_summary(cluster).to_dict()))
    assert told["gpus"] == 64
    assert told["injection_per_node_gb_per_s"] == 400
    assert told["levels"]
    assert {"inside_per_gpu_gb_per_s", "bisection_gb_per_s", "all_to_all_all_paths_gb_per_s"} <= told.keys()


def test_show_tells_sources_and_what_is_assumed(moeplan):
    _, out, _ = moeplan("show", "frontier")
    assert re.search(r"node.link_latency, node.nic_latency, network.hop_latency +yes +assumed", out)
    assert "OLCF Frontier user guide, node diagram" in out
    assert re.search(r"0 +1: 200, 2: 50, 6: 100", out)
    assert re.search(r"group +74 +12,800 +0 +7,300 +1.753", out)
    assert re.search(r"injection per node GB/s +100 *\n", out)
    assert " GPUs per domain " in out


@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_a_picture_is_written(moeplan, tmp_path, ending, begins):
    code, _, err = moeplan("show", "dgx-h100", "-o", f"x{ending}")
    assert (code, err) == (0, f"wrote x{ending}\n")
    assert (tmp_path / f"x{ending}").read_bytes().startswith(begins)


def test_other_endings_are_refused_before_the_work(moeplan, tmp_path):
    code, out, err = moeplan("show", "dgx-h100", "-o", "x.jpeg2")
    assert (code, out) == (2, "")
    assert err == "moeplan: x.jpeg2: ends in '.jpeg2'; a picture ends in .png, .svg, .pdf\n"
    assert list(tmp_path.iterdir()) == []


def test_every_network_is_drawn_on_the_axes_given(cluster):
    figure, ax = plt.subplots()
    assert mp.plot_cluster(cluster, ax) is ax
    said = [text.get_text() for text in ax.texts]
    assert "node 0, 8 GPUs, 8 NICs of 50 GB/s" in said
    assert any(text.startswith("7 more nodes") for text in said)
    plt.close(figure)


def test_a_shipped_name_is_drawn():
    ax = mp.plot_cluster("frontier")
    assert ax.get_title() == "frontier"
    plt.close(ax.figure)


def test_a_large_node_is_counted(small):
    figure, ax = plt.subplots()
    dgx = mp.load_cluster("dgx-h100")
    large = structs.replace(dgx, nodes=1, node=structs.replace(dgx.node, gpus=72, nics=72))
    mp.plot_cluster(large, ax)
    assert any("16 of 72 GPUs" in text.get_text() for text in ax.texts)
    plt.close(figure)


def test_a_notebook_shows_tables_and_the_picture():
    html = mp.cluster_summary("frontier")._repr_html_()
    assert "<svg" in html
    assert "12 links of 50 to 200 GB/s" in html
    named = structs.replace(mp.load_cluster("laptop"), name="<b>")
    assert "<b>" not in mp.cluster_summary(named)._repr_html_()


def test_check_counts_and_refuses_in_a_line(moeplan, tmp_path):
    assert moeplan("check", "dgx-h100") == (
        0,
        "ok: dgx-h100: 256 nodes, 2,048 GPUs, 2,048 NICs, 64 rails, 1 spine\n",
        "",
    )
    code, out, err = moeplan("check", "dgx-h1000")
    assert (code, out) == (2, "")
    assert err.startswith("moeplan: no cluster 'dgx-h1000'; did you mean 'dgx-h100'?")
    (tmp_path / "x.toml").write_text("name = 3\n")
    code, _, err = moeplan("check", "x.toml")
    assert code == 2
    assert err.count("\n") == 1


def test_warnings_come_with_a_good_file(moeplan, file_of, small):
    code, out, err = moeplan("check", file_of(small("tree")))
    assert code == 0
    assert out.startswith("ok: small: 8 nodes, 64 GPUs")
    assert err == "warning: leaf: 1.6 times as much from below as leaves it (800 GB/s and 500 GB/s a switch)\n"


def test_nics_that_serve_no_gpu_are_told(small):
    (line,) = warned(small("rail", nics=12, nic_of_gpu=tuple(range(8)), nic_bytes_per_s=BytesPerS(1e10)))
    assert line == "4 of 12 NICs serve no GPU and carry nothing: 8, 9, 10, 11"


def test_a_nic_faster_than_its_pcie_is_told(small):
    bridge = Bridge(gpus=4, uplink_bytes_per_s=BytesPerS(16e9))
    slow = small("switches", bridge=bridge, link_bytes_per_s=BytesPerS(31.5e9))
    assert any(line.startswith("a NIC has 50 GB/s, node.link from a GPU to it 31.5 GB/s") for line in warned(slow))
    quick = small("switches", bridge=bridge, link_bytes_per_s=BytesPerS(63e9))
    assert not any("a NIC has" in line for line in warned(quick))


def test_nodes_in_different_trees_are_told(small):
    network = small("switches").network
    apart = tuple(structs.replace(one, up="", uplink_bytes_per_s=BytesPerS(0.0)) for one in network.switches[:2])
    cluster = small(structs.replace(network, switches=(*apart, Switch(name="other"))))
    assert "nodes under different tops cannot reach each other: a (5), b (3)" in warned(cluster)


def test_domains_of_which_a_job_has_a_part_are_told(small):
    whole = small("rail", domain=4, nic_bytes_per_s=BytesPerS(1e10))
    assert warned(whole) == ()
    part = pick(whole, "0,1,2,3,4,5")
    assert warned(part) == ("1 of 2 NVLink domains have fewer than 4 nodes in the job",)


def test_many_nics_that_serve_no_gpu_do_not_fill_the_screen(small):
    (line,) = warned(small("rail", nics=2000, nic_of_gpu=tuple(range(8)), nic_bytes_per_s=BytesPerS(1e8)))
    assert line.startswith("1992 of 2000 NICs serve no GPU and carry nothing: 8, 9, ")
    assert line.endswith("23, ...")
