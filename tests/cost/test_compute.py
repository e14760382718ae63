"""Rooflines in closed form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moeplan.cost.compute import efficiency, peak_flop_per_s, seconds, weakest
from moeplan.errors import SpecError
from moeplan.resources.work import Compute
from moeplan.spec.calibration import Curve
from moeplan.spec.cluster import Gpu
from moeplan.spec.shipped import load_calibration
from moeplan.units import Bytes, BytesPerS, FlopPerS, Seconds

GPU = Gpu(name="x", hbm_bytes=Bytes(1e9), hbm_bytes_per_s=BytesPerS(1e12), peak_flop_per_s={"bf16": FlopPerS(1e15)})
POINTS = ((64.0, 0.1), (256.0, 0.5), (4096.0, 0.7))


def curve(points=POINTS, source="measured"):
    return Curve(points=points, source=source, note="")


def calibration(**changes):
    flat = curve(((1.0, 0.5),))
    base = structs.replace(load_calibration("generic"), gemm=flat, grouped_gemm=flat, attention=flat, hbm=0.8)
    return structs.replace(base, **({"kernel_s": Seconds(0.0)} | changes))


def priced(*work, **changes):
    return seconds(work, GPU, calibration(**changes), "bf16")


@pytest.mark.parametrize(("size", "share"), POINTS)
def test_points_of_a_curve_are_exact(size, share):
    assert efficiency(curve(), size) == share


@pytest.mark.parametrize(("size", "share"), [(1e-3, 0.1), (63.9, 0.1), (4097, 0.7), (1e12, 0.7)])
def test_a_curve_is_constant_outside_its_points(size, share):
    assert efficiency(curve(), size) == share


@pytest.mark.parametrize(("size", "share"), [(128, 0.3), (math.sqrt(256 * 4096), 0.6), (512, 0.55), (2048, 0.65)])
def test_between_points_a_curve_is_linear_in_the_logarithm(size, share):
    assert efficiency(curve(), size) == pytest.approx(share)


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_a_rising_curve_never_falls(one, two):
    low, high = sorted((one, two))
    assert efficiency(curve(), low) <= efficiency(curve(), high)


@pytest.mark.parametrize(
    ("flop", "moved", "expected"),
    [
        (1e12, 0.0, 1e12 / (1e15 * 0.5)),
        (1e12, 1e9, 1e12 / (1e15 * 0.5)),
        (1e12, 8e9, 8e9 / (1e12 * 0.8)),
        (4e11, 6.4e8, 8e-4),
    ],
    ids=["no bytes", "bound by FLOP", "bound by HBM", "at the ridge"],
)
@pytest.mark.parametrize("kind", ["gemm", "grouped_gemm", "attention"])
def test_a_kernel_takes_the_slower_of_flop_and_bytes(kind, flop, moved, expected):
    assert priced(Compute(kind, flop, moved, 100.0)).seconds == pytest.approx(expected)


def test_a_stream_takes_its_bytes():
    assert priced(Compute("stream", 0.0, 4e9, 0.0)).seconds == pytest.approx(4e9 / (1e12 * 0.8))


def test_kernels_follow_one_another_after_one_launch():
    gemm, stream = Compute("gemm", 1e12, 0.0, 1.0), Compute("stream", 0.0, 8e9, 0.0)
    assert priced(gemm, stream, kernel_s=Seconds(0.5)).seconds == pytest.approx(0.002 + 0.01 + 0.5)


def test_each_kind_reads_its_own_curve_at_its_size():
    curves = {"gemm": 0.1, "grouped_gemm": 0.2, "attention": 0.4}
    own = {kind: curve(((1.0, share), (100.0, 2 * share))) for kind, share in curves.items()}
    for kind, share in curves.items():
        for size, factor in ((1.0, 1), (10.0, 1.5), (100.0, 2)):
            found = priced(Compute(kind, 1e12, 0.0, size), **own).seconds
            assert found == pytest.approx(1e-3 / (share * factor))


def test_no_work_takes_no_time():
    assert priced().seconds == priced(Compute("gemm", 0.0, 0.0, 0.0)).seconds == 0


def test_the_source_is_that_of_the_weakest_curve_used():
    curves = {"gemm": curve(source="measured"), "attention": curve(source="assumed")}
    gemm, core = (Compute(kind, 1e9, 0.0, 64.0) for kind in ("gemm", "attention"))
    assert priced(gemm, **curves).source == "measured"
    assert priced(gemm, core, **curves).source == "assumed"
    assert priced(Compute("stream", 0.0, 1e9, 0.0), **curves).source == "roofline"
    assert weakest(("interpolated", "roofline", "measured")) == "roofline"


def test_a_type_without_a_peak_is_refused_with_those_there_are():
    with pytest.raises(SpecError, match="no peak for fp64; the cluster file gives bf16"):
        peak_flop_per_s(GPU, "fp64")
