"""`moeplan calibrate fit`: a file or nothing, warnings on stderr, errors in one line."""

import sys

import pytest

from moeplan import cli
from moeplan.convert import convert_topology
from moeplan.spec.shipped import load_calibration


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*arguments): the exit code, stdout and stderr of `moeplan calibrate fit`."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["moeplan", "calibrate", "fit", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def test_logs_become_a_calibration_that_says_what_they_are(run, logs, tmp_path):
    out = tmp_path / "rack.toml"
    tray, rack = logs / "alltoall_perf_1node_4gpu.log", logs / "alltoall_perf_1rack_64gpu.log"
    code, table, err = run(tray, rack, "-o", out)
    assert code == 0
    assert "cluster gb300-nvl72, the rest as gb300" in table
    assert "warning: alltoall_perf_1node_4gpu.log: line 12: 2 of 16 rows shown" in err
    assert "381.478 GB/s as printed is not that of the rows shown" in err
    found, base = load_calibration(out), load_calibration("gb300")
    assert (found.name, found.node.measured, found.network) == ("rack", ("all_to_all",), base.network)
    assert "alltoall_perf_1rack_64gpu.log, 64 ranks on 16 hosts, 2 rows of 8 GiB to 16 GiB" in found.node.note


def test_stdout_takes_the_file_alone(run, logs, tmp_path):
    code, out, _ = run(logs / "rccl_2node_16gpu.log", "-o", "-", "--like", "mi300x")
    assert code == 0
    path = tmp_path / "x.toml"
    path.write_text(out)
    assert load_calibration(path).network.measured == ("all_reduce",)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.log", "-o", "x.toml"], "missing.log: No such file"),
        (["empty.log", "-o", "x.toml"], "empty.log: no table of nccl-tests or rccl-tests in 1 lines; right is one"),
        (["good.log", "-o", "x"], "-o x: a calibration's file ends in .toml"),
        (["log.toml", "-o", "./log.toml"], "-o ./log.toml: is read by this command, and would be lost"),
        (["good.log", "-o", "no/x.toml"], "no/x.toml: no is not a folder that can be written to"),
        (["good.log", "-o", "x.toml", "--cluster", "dgx-z100"], "no cluster 'dgx-z100'"),
        (["good.log", "-o", "x.toml", "--cluster", "laptop"], "cluster laptop: nodes 2 with nics 0"),
        (["good.log", "-o", "x.toml", "--like", "z100"], "no calibration 'z100'"),
        (["good.log", "empty.log", "-o", "x.toml"], "empty.log: no table"),
        (["single.log", "-o", "x.toml"], "nothing to fit: single.log: no communication measured: one rank"),
        (["good.log"], "Missing option '-o'"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_no_file(arguments, told, run, logs, tmp_path, monkeypatch, made_log):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.log").write_text("")
    for name in ("good.log", "log.toml"):
        (tmp_path / name).write_bytes((logs / "rccl_2node_16gpu.log").read_bytes())
    (tmp_path / "single.log").write_text(made_log("all_reduce", [0], {2**20: 1e-5, 2**21: 1e-5}))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_logs_are_fitted_on_a_converted_cluster_of_named_nodes(run, tmp_path, made_log):
    """Switches given one by one know nodes by name only: two hosts are the first two; three are too many for two."""
    topology, cluster = tmp_path / "topology.conf", tmp_path / "mine.toml"
    topology.write_text("SwitchName=s1 Nodes=n[1-2]\n")
    cluster.write_text(convert_topology([topology], "dgx-h100").toml)
    seconds = {2**power: 2**power / 40e9 + 5e-5 for power in range(22, 32)}
    for hosts, expected in (2, 0), (3, 2):
        log = tmp_path / f"{hosts}.log"
        log.write_text(made_log("all_to_all", [host for host in range(hosts) for _ in range(4)], seconds))
        code, _, err = run(log, "--cluster", cluster, "-o", tmp_path / f"{hosts}.toml")
        assert code == expected, err
    assert "3 hosts; cluster topology has 2 named nodes" in err
    assert not (tmp_path / "3.toml").exists()


def test_a_log_faster_than_the_clusters_cards_is_told(run, tmp_path, made_log):
    """110 GB/s of all-to-all over two nodes of 8 H100 with 50 GB/s each, which carry 93.75."""
    path = tmp_path / "alltoall.log"
    hosts = [0] * 8 + [1] * 8
    seconds = {2**power: 2**power * 15 / 16 / 110e9 + 5e-5 for power in range(22, 32)}
    path.write_text(made_log("all_to_all", hosts, seconds))
    code, _, err = run(path, "-o", tmp_path / "x.toml")
    assert code == 0
    assert "busbw 109.7 GB/s is more than the 93.75 GB/s of its NICs; is the cluster's node.nic right?" in err
