"""Shipped records load, are named after their files, and unknown names are answered with the known ones."""

from itertools import pairwise
from pathlib import Path

import pytest

from moeplan.errors import SpecError
from moeplan.spec.cluster import num_ranks
from moeplan.spec.shipped import load_calibration, load_cluster, load_model, shipped


def test_names() -> None:
    models = ("deepseek-moe-16b", "mixtral-8x7b", "qwen3-235b-a22b", "qwen3-30b-a3b", "tiny-moe")
    assert set(models) <= set(shipped("model"))
    assert {"h800-16x8", "laptop"} <= set(shipped("cluster"))
    assert {"h800", "laptop"} <= set(shipped("calibration"))


def test_every_record_is_named_after_its_file() -> None:
    assert [load_model(name).name for name in shipped("model")] == list(shipped("model"))
    assert [load_cluster(name).name for name in shipped("cluster")] == list(shipped("cluster"))
    assert [load_calibration(name).name for name in shipped("calibration")] == list(shipped("calibration"))


def test_disagmoe_cluster() -> None:
    cluster = load_cluster("h800-16x8")
    assert num_ranks(cluster) == 128
    assert cluster.gpu.hbm_bytes == pytest.approx(79.1 * 2**30)
    assert cluster.node.nics * cluster.node.nic_bytes_per_s == 8 * 50e9
    assert cluster.gpu.peak_flop_per_s["bf16"] / cluster.node.nic_bytes_per_s == 19_780  # its FLOP per network byte
    assert cluster.sources


def test_every_number_of_a_calibration_says_where_it_is_from() -> None:
    for name in shipped("calibration"):
        calibration = load_calibration(name)
        told = [*calibration.gemm.values(), *calibration.linear.values(), calibration.grouped, calibration.attention]
        assert all(one.note for one in told)
        file = Path(__file__).parents[2] / "moeplan" / "calibrations" / f"{name}.toml"
        plain = [line for line in file.read_text().partition("\n[")[0].splitlines() if " = " in line]
        assert all(" # " in line for line in plain if not line.startswith("name = "))


def test_products_with_more_rows_are_no_slower_in_the_large() -> None:
    """Single shapes may be: a table's tiles fit some sizes better than others."""
    for name in shipped("calibration"):
        for surface in load_calibration(name).gemm.values():
            each = len(surface.share) // len(surface.m)
            means = [sum(surface.share[i * each : (i + 1) * each]) / each for i in range(len(surface.m))]
            assert all(after > 0.97 * before for before, after in pairwise(means))


@pytest.mark.parametrize(
    ("load", "text", "hint"),
    [
        (load_model, "mixtral", "did you mean 'mixtral-8x7b'.*shipped: .*tiny-moe"),
        (load_model, "Qwen3-30B-A3B", "did you mean 'qwen3-30b-a3b'"),
        (load_cluster, "h800", "did you mean 'h800-16x8'"),
        (load_calibration, "zzz", r"no calibration 'zzz' \(shipped: .*h800"),
        (load_model, "", "no model ''"),
        (load_model, "x" * 5000, "no model"),
        (load_model, "missing.toml", "missing.toml: No such file"),
        (load_model, "missing.json", "missing.json: No such file"),
    ],
)
def test_unknown_names(load: object, text: str, hint: str) -> None:
    with pytest.raises(SpecError, match=hint):
        load(text)  # type: ignore[operator]


def test_own_files(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "topologies" / "laptop.toml"
    path = tmp_path / "mine.toml"
    path.write_text(source.read_text().replace('name = "laptop"', 'name = "mine"'))
    assert load_cluster(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpus = 8", "gpus = 8.0", r"Expected `int`, got `float` - at `\$.node.gpus`"),
        ('hbm = "2 GiB"', 'hbm = "2 GB/s"', r"'2 GB/s' is not a Bytes.*at `\$.gpu.hbm`"),
        ('hbm = "2 GiB"', "hbm = 2", r"2 needs a unit.*at `\$.gpu.hbm`"),
        ("nodes = 1", "nodes = 2", "nodes 2 with nics 0"),
        ("nodes = 1", "nodes = 1\nracks = 1", "unknown field `racks`"),
        ('kind = "tree"', 'kind = "ring"', r"'ring' - at `\$.network.kind`"),
        ("nodes = 1", "nodes = ", "not valid TOML"),
    ],
)
def test_wrong_cluster_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (Path(__file__).parents[2] / "topologies" / "laptop.toml").read_text()
    assert old in text
    (tmp_path / "wrong.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError, match=message):
        load_cluster(str(tmp_path / "wrong.toml"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m = [16, 128, 1024]", "m = [128, 16, 1024]", "gemm.bf16.m has sizes .*; they must rise"),
        ("m = [16, 128, 1024]", "m = [16, 16, 1024]", "must rise"),
        ("m = [16, 128, 1024]", "m = []", "length >= 1"),
        ("m = [16, 128, 1024]", "m = [0, 128, 1024]", "> 0.0"),
        ("m = [16, 128, 1024]", "m = [16, 128, 1024]\nn = [1, 2]", "gemm.bf16.share has 3 numbers for 6 points"),
        ("share = [0.1, 0.3, 0.5]", "share = [0.1, 0.3, nan]", "gemm"),
        ("[gemm.bf16]", "[gemm.fp8]", "gemm has fp8; bf16 is needed"),
        ("[attention]", "[constants]\ngemm = 0\n[attention]", r"constants.gemm"),
    ],
)
def test_wrong_calibrations(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (Path(__file__).parents[2] / "moeplan" / "calibrations" / "laptop.toml").read_text()
    assert old in text
    (tmp_path / "wrong.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError, match=message):
        load_calibration(str(tmp_path / "wrong.toml"))
