"""Logs of another machine than the one they are fitted on are told, with both sides."""

import pytest

from moeplan.calibrate.log_lines import nics
from moeplan.calibrate.whose import same_gpu
from moeplan.spec.shipped import load_cluster, shipped

SECONDS = {2**power: 2**power / 40e9 + 5e-5 for power in range(22, 32)}
HOSTS = [0] * 8 + [1] * 8
IB = "host-0:99:99 [0] NCCL INFO NET/IB : Using {} [RO]; OOB eth0:10.0.0.1<0>\n#\n#       size"


def warnings_of(moeplan, tmp_path, text, *, cluster="dgx-h100"):
    log = tmp_path / "a.log"
    log.write_text(text)
    code, _, err = moeplan("calibrate", "fit", log, "--cluster", cluster, "-o", tmp_path / "x.toml")
    assert code == 0, err
    return [line for line in err.splitlines() if line.startswith("warning: a.log: ") and "cluster" in line]


@pytest.mark.parametrize(
    ("driver", "cluster", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB", True),
        ("NVIDIA H100 PCIe", "H100 SXM 80GB", False),
        ("NVIDIA H100 NVL", "H100 SXM 80GB", False),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB", True),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 80GB", False),
        ("NVIDIA GB300", "GB200", False),
        ("NVIDIA B200", "GB200", False),
        ("AMD Instinct MI250X", "MI250X GCD", True),
        ("AMD Instinct MI300X", "MI355X", False),
        ("NVIDIA H100 80GB HBM3", "CPU rank", False),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", True),
    ],
)
def test_names_of_drivers_and_of_clusters_are_of_one_gpu_or_not(driver, cluster, same):
    assert same_gpu(driver, cluster) == same_gpu(cluster, driver) == same


def test_every_shipped_gpu_is_its_own_and_only_clusters_of_one_gpu_share_it():
    names = {load_cluster(name).gpu.name for name in shipped("cluster")}
    assert {(a, b) for a in names for b in names if same_gpu(a, b)} == {(a, a) for a in names}


def test_another_gpu_is_told_with_both_names(command_line, tmp_path, made_log):
    text = made_log("all_to_all", HOSTS, SECONDS, gpu="NVIDIA H100 80GB HBM3")
    assert warnings_of(command_line, tmp_path, text) == []
    told = warnings_of(command_line, tmp_path, text, cluster="dgx-h200")
    assert told == ["warning: a.log: GPUs are NVIDIA H100 80GB HBM3; cluster dgx-h200 has H200"]


@pytest.mark.parametrize(("count", "told"), [(8, 0), (4, 1), (10, 1)])
def test_other_numbers_of_nics_are_told(command_line, tmp_path, made_log, count, told):
    cards = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(count))
    text = made_log("all_to_all", HOSTS, SECONDS).replace("#       size", IB.format(cards), 1)
    found = warnings_of(command_line, tmp_path, text)
    assert found == [f"warning: a.log: {count} NICs on a host; cluster dgx-h100 has 8 on a node"] * told


def test_half_filled_hosts_are_told_where_there_are_several(command_line, tmp_path, made_log):
    halves = made_log("all_to_all", [0] * 4 + [1] * 4, SECONDS)
    found = warnings_of(command_line, tmp_path, halves)
    assert found == ["warning: a.log: 4 ranks on a host; cluster dgx-h100 has 8 GPUs on a node"]
    assert warnings_of(command_line, tmp_path, made_log("all_to_all", [0] * 4, SECONDS)) == []


def test_more_hosts_than_the_cluster_has_nodes_are_told(command_line, tmp_path, made_log):
    text = made_log("all_to_all", [host for host in range(20) for _ in range(8)], SECONDS, gpu="NVIDIA H800")
    told = warnings_of(command_line, tmp_path, text, cluster="h800-16x8")
    assert told == ["warning: a.log: 20 hosts; cluster h800-16x8 has 16 nodes"]


def test_gpus_of_several_kinds_are_told(command_line, tmp_path, made_log):
    lines = made_log("all_to_all", HOSTS, SECONDS).splitlines()
    last = max(i for i, line in enumerate(lines) if "Rank 15" in line)
    lines[last] = lines[last].replace("H100 80GB HBM3", "H200")
    log = tmp_path / "a.log"
    log.write_text("\n".join(lines) + "\n")
    _, _, err = command_line("calibrate", "fit", log, "--cluster", "dgx-h100", "-o", tmp_path / "x.toml")
    assert "its GPUs are of several kinds: NVIDIA H100 80GB HBM3, NVIDIA H200" in err


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB eth0:11.1.128.136<0>", 2),
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>", 1),
        ("NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)", 32),
        ("NCCL INFO NET/IB : No device found.", 0),
        ("NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", 0),
        ("      size         count      type", 0),
    ],
)
def test_nics_are_counted_in_what_nccl_prints(line, count):
    assert nics(line) == count
