"""What the command line reads: order of options, files with a byte order mark, options that are needed."""

import sys
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from moeplan import cli
from moeplan.cli.app import read_case
from moeplan.errors import SpecError
from moeplan.planner import optimize
from moeplan.spec.cluster import num_ranks
from moeplan.spec.huggingface import read_config
from moeplan.spec.record import read_toml
from moeplan.spec.shipped import load_calibration

CONFIG = Path(__file__).parent / "fixtures" / "hf" / "mixtral-8x7b" / "config.json"


def case_of(gpus, *settings):
    return read_case("tiny-moe", "h800-16x8", 64, 16, gpus, "bf16", list(settings))[0]


def test_gpus_are_the_first_of_the_cluster_that_settings_leave():
    assert num_ranks(case_of(256, "cluster.nodes=32").cluster) == 256
    assert num_ranks(case_of(8, "cluster.nodes=2").cluster) == 8
    assert case_of(4, "cluster.node.gpus=4").cluster.node.nics == 8
    with pytest.raises(SpecError, match="16 GPUs asked for, of 8"):
        case_of(16, "cluster.nodes=1")


def test_a_byte_order_mark_is_passed_over(tmp_path):
    (tmp_path / "mixtral-8x7b").mkdir()
    marked = tmp_path / "mixtral-8x7b" / "config.json"
    marked.write_bytes(BOM_UTF8 + CONFIG.read_bytes())
    assert read_config(marked) == read_config(CONFIG)
    (tmp_path / "x.toml").write_bytes(BOM_UTF8 + b"a = 1\n")
    assert read_toml(tmp_path / "x.toml") == {"a": 1}


def test_calibrations_are_not_written_where_nobody_said(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["moeplan", "calibrate", "rebuild"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "Missing option '--out'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_one_gpu_has_a_plan_where_two_sides_have_none():
    one = read_case("tiny-moe", "laptop", 64, 4, 1, "bf16", [])[0]
    calibration = load_calibration("laptop")
    ranking = optimize(one, calibration, fixed={"micro_batch": 2})
    assert {found.family for found in ranking.found if found.best is not None} == {"colocated", "piper"}
    with pytest.raises(SpecError, match=r"layout: attention 1 \+ ffn 1 ranks > 1 GPUs"):
        optimize(one, calibration, families=["disaggregated"])
