"""Calibration files that ship come out of the tables byte for byte."""

from pathlib import Path

import pytest

from moeplan.calibrate import rebuild
from moeplan.calibrate.constants import FACTORS
from moeplan.calibrate.rebuild import STATED, accelerators, rebuilt
from moeplan.errors import SpecError
from moeplan.spec.record import read_toml
from moeplan.spec.shipped import load_calibration, load_cluster, shipped
from moeplan.toml_text import toml_text

FOLDER = Path(rebuild.__file__).parents[1] / "calibrations"


@pytest.mark.parametrize("name", accelerators())
def test_every_file_is_rebuilt_byte_for_byte(name):
    assert rebuilt(name).encode() == (FOLDER / f"{name}.toml").read_bytes()


def test_all_that_ship_are_rebuilt():
    assert accelerators() == shipped("calibration")
    wanted = "a100 h100 h800 h200 b200 gb200 gb300 b300 mi250x mi300x mi355x"
    assert set(wanted.split()) < set(accelerators())


@pytest.mark.parametrize("cluster", shipped("cluster"))
def test_shares_are_of_the_peaks_that_clusters_have(cluster):
    """Otherwise the rate would be another than the measured one."""
    machine = load_cluster(cluster)
    peaks = read_toml(STATED)[machine.calibration].get("peak", {})
    for element, tera in peaks.items():
        given = machine.gpu.peak_flop_per_s.get(element.removesuffix("_block"))
        assert given is None or given == pytest.approx(tera * 1e12)


def test_an_accelerator_stands_on_its_bases():
    """Its own tables replace theirs as wholes, those of narrow types one by one."""
    gb200, gb300 = (load_calibration(name) for name in ("gb200", "gb300"))
    assert gb300.gemm["bf16"].share == gb200.gemm["bf16"].share
    assert gb300.linear["mxfp8"] == gb200.linear["mxfp8"]
    assert gb300.linear["nvfp4"].times > gb200.linear["nvfp4"].times
    assert {surface.source for surface in gb200.gemm.values()} == {"measured"}
    assert {surface.source for surface in gb300.gemm.values()} == {"interpolated"}


def test_constants_are_what_is_plausible_before_any_run_is_seen():
    """Where shares were measured in training, products and attention have none of their own."""
    plausible = {factor.name: factor.plausible for factor in FACTORS}
    given = read_toml(STATED)["base"]["any"]["constants"]
    assert {name: value for name, (value, _) in given.items()} == plausible
    for name in accelerators():
        constants, cold = load_calibration(name).constants, load_calibration(name).cold
        assert (constants.gemm == constants.attention == 1) == (cold == 1)


def test_text_is_read_back(tmp_path):
    plain = {
        "b": {"yes": True, "text": 'a "word" \\ here', "lines": "one\ntwo\n", "whole": 3, "part": 0.25, "large": 1e15},
        "a": {"inner": {"list": list(range(100)), "words": ["x", "y"]}, "short": [1, 2.5]},
    }
    (tmp_path / "x.toml").write_text(toml_text(plain))
    assert read_toml(tmp_path / "x.toml") == plain
    assert max(map(len, toml_text(plain).splitlines())) <= 120


def test_the_command_writes_a_file_each(tmp_path, capsys):
    from moeplan.cli.calibrate import rebuild as command

    command(str(tmp_path))
    assert sorted(file.stem for file in tmp_path.iterdir()) == list(accelerators())
    assert "wrote 13 calibrations" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["", " ", "none", "file", "a\0b", "x" * 5000])
def test_a_folder_that_is_none_is_said_before_any_work(tmp_path, monkeypatch, out):
    from moeplan.cli.calibrate import rebuild as command

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"--out .*: is (empty|no folder); an existing folder"):
        command(out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
