"""What people type by mistake: one line that says where and what, exit code 2, and no file lost."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from moeplan.spec.shipped import load_calibration, load_cluster

CASE = ["--model", "tiny-moe", "--cluster", "laptop", "--gpus", "4", "--seq-len", "64", "--global-batch", "8"]
FIXTURES = Path(__file__).parent / "fixtures"
NOT_UTF8 = "\udcff\udcfe"
"""How Python spells an argument of the bytes ff fe."""


@pytest.fixture
def moeplan(command_line, monkeypatch, tmp_path):
    """moeplan(*arguments): exit code, stdout and stderr, in a folder with files of tools, a cluster and a plan."""
    monkeypatch.chdir(tmp_path)
    for name in ("importers/tree.conf", "importers/smi.txt", "logs/rccl_2node_16gpu.log"):
        shutil.copy(FIXTURES / name, tmp_path)
    shutil.copy(Path(__file__).parents[1] / "topologies" / "laptop.toml", tmp_path / "mine.toml")
    assert command_line("estimate", *CASE, "-o", "plan.json")[0] == 0
    return command_line


@pytest.fixture
def typed(monkeypatch):
    """typed(content): what comes from standard input."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def refused(moeplan, *arguments):
    """The line of a command that ends with 2; no file is made or changed."""
    before = {path: path.read_bytes() for path in Path().iterdir()}
    code, out, err = moeplan(*arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("moeplan: ")
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path().iterdir()} == before
    return err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topology", "convert", "tree.conf", "--like", "dgx-h100", "--nodes", ""], "--nodes '': is empty"),
        (["topology", "convert", "tree.conf", "--like", "dgx-h100", "--nodes="], "--nodes '': is empty"),
        (["topology", "place", "plan.json", "--nodes", " "], "--nodes ' ': is empty"),
        (["estimate", *CASE, "--calibration", ""], "--calibration '': is empty"),
        (["optimize", *CASE, "--family", ""], "--family '': is empty"),
        (["show", ""], "an argument '': is empty"),
        (["estimate", *CASE, "-o", ""], "-o '': is empty"),
    ],
)
def test_an_empty_word_is_never_taken_for_the_default(moeplan, arguments, told):
    """As where a variable of the shell is not set."""
    assert told in refused(moeplan, *arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topology", "convert", "tree.conf", "--like", "dgx-h100", "-o", "./tree.conf"], "-o ./tree.conf"),
        (["topology", "convert", "tree.conf", "--like", "mine.toml", "-o", "mine.toml"], "-o mine.toml"),
        (
            ["topology", "convert", "smi.txt", "--like", "dgx-h100", "--kind", "n1=tree.conf", "-o", "tree.conf"],
            "-o tree",
        ),
        (["topology", "place", "plan.json", "-o", "plan.json"], "-o plan.json"),
        (["topology", "place", "plan.json", "--rankfile", "plan.json"], "--rankfile plan.json"),
        (["simulate", "plan.json", "--trace", "plan.json"], "--trace plan.json"),
        (["run", "plan.json", "--trace", "plan.json"], "--trace plan.json"),
        (["estimate", *CASE, "--cluster", "mine.toml", "-o", "mine.toml"], "-o mine.toml"),
        (["optimize", *CASE, "--cluster", "mine.toml", "-o", "mine.toml"], "-o mine.toml"),
        (["calibrate", "fit", "rccl_2node_16gpu.log", "--cluster", "mine.toml", "-o", "mine.toml"], "-o mine.toml"),
    ],
)
def test_no_command_replaces_what_it_reads(moeplan, arguments, told):
    line = refused(moeplan, *arguments)
    assert told in line
    assert "is read by this command, and would be lost" in line


def test_two_outputs_are_two_files(moeplan):
    line = refused(moeplan, "topology", "place", "plan.json", "-o", "hosts", "--rankfile", "./hosts")
    assert "--rankfile hosts: is that of -o too" in line
    line = refused(moeplan, "topology", "place", "plan.json", "-o", "-", "--rankfile", "-")
    assert "- is given for 2 outputs; one of them can go to stdout" in line


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("x.json", ["show", "x.json"]),
        ("x.json", ["estimate", "--model", "x.json", *CASE[2:]]),
        ("x.toml", ["topology", "check", "x.toml"]),
        ("x.toml", ["estimate", *CASE, "--calibration", "x.toml"]),
        ("x.csv", ["validate", "--runs", "x.csv"]),
        ("x.csv", ["validate", "--names", "x.csv"]),
        ("x.txt", ["topology", "convert", "x.txt", "--like", "dgx-h100"]),
    ],
)
@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_called_empty(moeplan, tmp_path, name, arguments, content):
    (tmp_path / name).write_bytes(content)
    line = refused(moeplan, *arguments)
    assert name in line
    assert "is empty" in line


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_proof_takes_time(moeplan, seconds):
    assert "--time-limit" in refused(moeplan, "topology", "place", "plan.json", "--exact", "--time-limit", seconds)


@pytest.mark.parametrize(
    ("option", "value"), [("--seq-len", "nan"), ("--seq-len", "4k"), ("--gpus", "1e3"), ("--pp", "-1"), ("--pp=-1", "")]
)
def test_a_number_that_is_none_is_said(moeplan, option, value):
    words = [option, value] if value else [option]
    assert f"{option.partition('=')[0]}', '{value or '-1'}'" in refused(moeplan, "estimate", *CASE, *words)


def test_a_micro_batch_is_no_more_than_a_step(moeplan):
    line = refused(moeplan, "estimate", *CASE, "--micro-batch", "99999999999999999999999")
    assert "micro_batch 99999999999999999999999 > 8 sequences of a step" in line


def test_names_of_other_encodings_are_written_by_their_bytes(moeplan, tmp_path):
    assert moeplan("estimate", *CASE, "-o", f"{NOT_UTF8}.json")[0] == 0
    assert "\\udcff\\udcfe.json" in json.loads((tmp_path / f"{NOT_UTF8}.json").read_text())["provenance"]["command"]
    assert moeplan("topology", "convert", "tree.conf", "--like", "dgx-h100", "--name", NOT_UTF8, "-o", "x.toml")[0] == 0
    assert load_cluster("x.toml").name == "??"
    assert "UTF-8 cannot hold" in refused(moeplan, "estimate", *CASE, "--set", f"model.name={NOT_UTF8}", "-o", "x.json")


def test_a_plan_may_come_from_standard_input(moeplan, typed, tmp_path):
    plan = (tmp_path / "plan.json").read_bytes()
    shown = moeplan("show", "plan.json", "--format", "json")
    typed(plan)
    assert moeplan("show", "-", "--format", "json") == shown
    typed(b"")
    assert "-: is empty" in refused(moeplan, "show", "-")


def test_files_about_a_machine_and_logs_may_come_from_standard_input(moeplan, typed, tmp_path):
    typed((FIXTURES / "importers" / "topology.yaml").read_bytes())
    name = ("--topology-name", "RACKS")
    assert moeplan("topology", "convert", "-", "--like", "gb200-nvl72", *name, "-o", "x.toml")[0] == 0
    typed((tmp_path / "rccl_2node_16gpu.log").read_bytes())
    assert moeplan("calibrate", "fit", "-", "-o", "x.toml")[0] == 0
    typed(b"gpu001 gpu002\n")
    code, out, _ = moeplan("topology", "choose", "--topology", "tree.conf", "--nodes", 1, "--free", "-")
    assert (code, "gpu001" in out) == (0, True)
    line = refused(moeplan, "topology", "choose", "--topology", "-", "--nodes", 1, "--free", "-")
    assert "--free and --topology are both -" in line


def test_files_may_go_to_standard_output_and_the_report_beside_them(moeplan, tmp_path):
    code, out, err = moeplan("simulate", "plan.json", "--trace", "-")
    assert (code, json.loads(out)["otherData"]["schema"], "one step: " in err) == (0, "moeplan.trace", True)
    code, out, err = moeplan("topology", "place", "plan.json", "-o", "-")
    assert (code, out, "#SBATCH" in err) == (0, "0\n", True)
    code, out, _ = moeplan("calibrate", "fit", "rccl_2node_16gpu.log", "-o", "-")
    (tmp_path / "told.toml").write_text(out)
    assert (code, load_calibration("told.toml").network.measured) == (0, ("all_reduce",))
    assert not (tmp_path / "-").exists()


def test_names_with_blanks_are_quoted_for_the_shell(moeplan, tmp_path):
    shutil.copy(tmp_path / "plan.json", tmp_path / "my plan.json")
    _, out, _ = moeplan("topology", "place", "my plan.json", "--slurm-hostfile", "my ranks")
    assert "SLURM_HOSTFILE='my ranks' srun" in out
    assert "moeplan run 'my plan.json'" in out
