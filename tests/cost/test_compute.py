"""Rates by shape and rooflines in closed form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moeplan.cost import Parts
from moeplan.cost.compute import attention_share, in_step, parts, peak_flop_per_s, rate, seconds, share, weakest
from moeplan.errors import SpecError
from moeplan.resources.kernels import Compute, backward, product, stream
from moeplan.spec.calibration import Attention, Constants, Grouped, Like, Surface
from moeplan.spec.cluster import Gpu
from moeplan.spec.execution import Execution
from moeplan.spec.shipped import load_calibration
from moeplan.units import Bytes, BytesPerS, FlopPerS, Seconds

GPU = Gpu(
    name="x",
    hbm_bytes=Bytes(1e9),
    hbm_bytes_per_s=BytesPerS(1e12),
    peak_flop_per_s={"bf16": FlopPerS(1e15), "fp8": FlopPerS(2e15)},
)
PLAIN = Execution()


def surface(value=0.5, source="measured", **axes):
    return Surface(**{"m": (1.0,), "share": (value,), "source": source, "note": ""} | axes)


ROWS = surface(m=(64.0, 256.0, 4096.0), share=(0.1, 0.5, 0.7))
CUBE = surface(
    m=(512.0, 2048.0), n=(1024.0, 4096.0), k=(1024.0, 2048.0), share=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
)


def calibration(**changes):
    plain = {
        "gemm": {"bf16": surface()},
        "linear": {},
        "cold": 1.0,
        "grouped": Grouped(half_rows=0.0, source="measured", note=""),
        "attention": Attention(forward=0.5, backward=0.5, half_sequence=0.0, source="measured", note=""),
        "hbm": 0.8,
        "kernel_s": Seconds(0.0),
        "constants": Constants(),
    }
    return structs.replace(load_calibration("generic"), **plain | changes)


def priced(*work, execution=PLAIN, **changes):
    return seconds(work, GPU, calibration(**changes), "bf16", execution)


def spent(*work, execution=PLAIN, **changes):
    return parts(work, GPU, calibration(**changes), execution, "bf16")[0]


@pytest.mark.parametrize(("m", "found"), [(64, 0.1), (256, 0.5), (4096, 0.7), (1e9, 0.7), (128, 0.3), (1024, 0.6)])
def test_between_points_a_share_is_linear_in_the_logarithm_and_constant_above(m, found):
    assert share(ROWS, m, 1, 1) == pytest.approx(found)


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 1e5))
def test_a_share_is_the_mean_of_the_corners_of_its_cell(m, n, k):
    def part(nodes, size):
        return min(max(math.log(size / nodes[0]) / math.log(nodes[1] / nodes[0]), 0), 1)

    u, v, w = part(CUBE.m, m), part(CUBE.n, n), part(CUBE.k, k)
    inside = 0.1 + 0.4 * u + 0.2 * v + 0.1 * w
    below = min(m / 512, 1) ** 0.6 * min(n / 1024, 1) ** 0.4 * min(k / 1024, 1) ** 0.4
    assert share(CUBE, m, n, k) == pytest.approx(inside * below)


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_a_rising_surface_never_falls(one, two):
    low, high = sorted((one, two))
    assert share(ROWS, low, 1, 1) <= share(ROWS, high, 1, 1)


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
    assert priced(Compute(kind, flop, moved, m=100.0, sequence=100.0)).seconds == pytest.approx(expected)


def test_a_pass_takes_its_bytes():
    assert priced(stream(4e9)).seconds == pytest.approx(4e9 / (1e12 * 0.8))


def test_launches_pass_beside_kernels():
    """The fourth power keeps the longer one, and adds a fifth where both take the same."""
    work = Compute("gemm", 1e12, 0.0, m=1.0), stream(8e9, launches=3.0)
    gpu_s = 0.002 + 0.01
    for launch_s in (1e-6, gpu_s / 4, 1.0):
        expected = (gpu_s**4 + (4 * launch_s) ** 4) ** 0.25
        assert priced(*work, kernel_s=Seconds(launch_s)).seconds == pytest.approx(expected)


def test_parts_are_seconds_by_what_bounds_them():
    work = product(2e3, 1e3, 1e3, 2), Compute("attention", 1e12, 0.0, sequence=1e3), stream(8e9)
    found = spent(*work, kernel_s=Seconds(1e-6))
    assert found == Parts(*map(pytest.approx, (max(8e-6, 10e-6 / 0.8), 0.0, 2e-3, 0.01, 0.0, 3e-6)))
    assert spent(stream(8e9)._replace(cast=True)).cast == pytest.approx(0.01)


def test_constants_divide_the_seconds_of_a_part_and_multiply_those_of_the_host():
    factors = Constants(gemm=0.5, narrow_gemm=0.25, attention=2.0, hbm=0.1, host=3.0)
    assert in_step(Parts(1, 1, 1, 1, 1, 1), factors) == Parts(2, 4, 0.5, 10, 1, 3)
    assert priced(stream(8e9), constants=factors).seconds == pytest.approx(0.1)
    assert spent(stream(8e9), constants=factors).stream == pytest.approx(0.01)


def test_rows_of_several_experts_reach_the_share_of_all_their_rows_but_for_the_start_of_each():
    few = product(4096, 1024, 1024, 2, groups=8, grouped=True)
    grouped = Grouped(half_rows=128.0, source="assumed", note="")
    alone, together = (
        rate(few, GPU, calibration(gemm={"bf16": ROWS}, grouped=g), "bf16")[0]
        for g in (structs.replace(grouped, half_rows=0), grouped)
    )
    assert alone == pytest.approx(0.7e15)
    assert together == pytest.approx(0.7e15 * 512 / (512 + 128))


def test_linear_layers_alone_run_in_the_narrow_type():
    wide, narrow = product(4096, 4096, 4096, 2), product(4096, 4096, 4096, 2, operand=1.0)
    found = spent(wide, narrow, execution=Execution(linear="fp8"), gemm={"bf16": surface(), "fp8": surface(0.4)})
    assert found.gemm == pytest.approx(wide.flop / 0.5e15)
    assert found.narrow_gemm == pytest.approx(wide.flop / 0.8e15)


def test_a_type_takes_the_best_of_those_it_is_like_and_others_bf16s_share_of_its_peak():
    kernel = product(4096, 4096, 4096, 2)
    surfaces = {"bf16": surface(0.5), "fp8": surface(0.3), "fp8_block": surface(0.4)}
    like = Like(of=("fp8", "fp8_block"), times=1.5, source="assumed", note="")
    known = calibration(gemm=surfaces, linear={"nvfp4": like}, cold=0.9)
    assert rate(kernel, GPU, known, "nvfp4") == (pytest.approx(0.4 * 2e15 * 1.5 * 0.9), "assumed")
    assert rate(kernel, GPU, known, "fp8") == (pytest.approx(0.3 * 2e15 * 0.9), "measured")
    assert rate(kernel, GPU, calibration(), "fp8") == (pytest.approx(0.5 * 2e15), "assumed")


@pytest.mark.parametrize(("head_dim", "factor"), [(256, 1), (128, 1), (64, 0.6), (32, 0.3), (64 * math.sqrt(2), 0.8)])
def test_narrow_heads_and_short_sequences_slow_attention_down(head_dim, factor):
    shape = Attention(forward=0.8, backward=0.6, half_sequence=1000.0, source="assumed", note="")
    kernel = Compute("attention", 1.0, 0.0, sequence=3000.0, head_dim=head_dim)
    assert attention_share(shape, kernel) == pytest.approx(0.8 * factor * 0.75)
    (after,) = backward([kernel])
    assert attention_share(shape, after) == pytest.approx(0.6 * factor * 0.75)


def test_no_work_takes_no_time_and_no_launch():
    nothing = Compute("gemm", 0.0, 0.0), stream(0.0)
    assert priced(kernel_s=Seconds(1)).seconds == priced(*nothing, kernel_s=Seconds(1)).seconds == 0


def test_the_source_is_that_of_the_weakest_number_used():
    kinds = {"gemm": {"bf16": surface(source="measured")}, "attention": calibration().attention}
    kinds["attention"] = structs.replace(kinds["attention"], source="assumed")
    gemm, core = product(64, 64, 64, 2), Compute("attention", 1e9, 0.0, sequence=64.0)
    assert priced(gemm, **kinds).source == "measured"
    assert priced(gemm, core, **kinds).source == "assumed"
    assert priced(stream(1e9), **kinds).source == "roofline"
    assert weakest(("interpolated", "roofline", "measured")) == "roofline"


def test_a_type_without_a_peak_is_refused_with_those_there_are():
    with pytest.raises(SpecError, match="no peak for fp64; the cluster file gives bf16, fp8"):
        peak_flop_per_s(GPU, "fp64")
    with pytest.raises(SpecError, match="no peak for fp4"):
        priced(product(1, 1, 1, 2, operand=0.5), execution=Execution(linear="nvfp4"))


@pytest.mark.parametrize("name", ["h100", "gb200", "mi355x", "laptop"])
def test_shares_stay_within_the_points_of_their_surface(name):
    for grid in load_calibration(name).gemm.values():
        for size in (512, 1000, 4096, 12345, 10**7):
            assert min(grid.share) * 0.1 < share(grid, size, size, size) <= max(grid.share)
