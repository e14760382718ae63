"""Rising sequences nearest to given ones, and points that stand off from their neighbours."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.calibrate.monotone import outliers, rising
from moeplan.calibrate.robust import solved

FEW = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=6)


@given(values=FEW, high=st.booleans())
def test_no_rising_sequence_is_nearer(values, high):
    """Against all rising sequences of these values: one of them is always among the nearest."""
    found = rising(values, high=high)
    best = min(
        sum(abs(a - b) for a, b in zip(values, one, strict=True))
        for one in combinations_with_replacement(sorted(set(values)), len(values))
    )
    assert found == sorted(found)
    assert sum(abs(a - b) for a, b in zip(values, found, strict=True)) == pytest.approx(best)


@given(values=FEW)
def test_what_rises_stays(values):
    assert rising(sorted(values)) == sorted(values)


SIZES = [2.0**power for power in range(16, 34)]
CURVE = [3e-5 + size / 2e11 + 2 * (1e-6 * size / 2e11) ** 0.5 for size in SIZES]


@given(at=st.integers(1, len(SIZES) - 1), reached=st.floats(0.05, 0.5))
def test_one_slow_point_is_found_wherever_it_is(at, reached):
    """Also the last, which no later time contradicts: bandwidth must not fall there."""
    seconds = [one / reached if i == at else one for i, one in enumerate(CURVE)]
    assert outliers(SIZES, seconds) == (at,)


@given(at=st.integers(1, len(SIZES) - 2), times=st.floats(3, 8))
def test_one_fast_point_within_is_found_and_nothing_else_is(at, times):
    seconds = [one / times if i == at else one for i, one in enumerate(CURVE)]
    assert outliers(SIZES, seconds) == (at,)


@given(noise=st.lists(st.floats(-0.1, 0.1), min_size=len(SIZES), max_size=len(SIZES)))
def test_noise_of_ten_percent_is_no_outlier(noise):
    assert outliers(SIZES, [one * (1 + by) for one, by in zip(CURVE, noise, strict=True)]) == ()


def test_bandwidth_that_falls_for_good_is_how_the_machine_is():
    slower = [one * (2 if size >= 2**30 else 1) for size, one in zip(SIZES, CURVE, strict=True)]
    assert outliers(SIZES, slower) == ()


def test_a_point_at_30_percent_of_its_neighbours_among_five_is_found():
    """Rows of 256 MiB to 4 GiB with a drop at 1 GiB, as on 8 nodes of H800 (NVIDIA/nccl, issue 1531)."""
    sizes = [2.0**power for power in range(28, 33)]
    seconds = [size / 40e9 / (0.3 if size == 2**30 else 1) for size in sizes]
    assert outliers(sizes, seconds) == (2,)
    assert outliers(sizes[:3], seconds[:3]) == ()


def test_least_squares_of_a_line_are_those_of_the_normal_equations():
    x = np.linspace(0, 1, 20)
    y = 2 + 3 * x + 1e-3 * np.sin(40 * x)
    found = solved(lambda p: p[0] + p[1] * x - y, np.zeros(2), np.zeros(2), 0.0)
    assert found == pytest.approx(np.polynomial.polynomial.polyfit(x, y, 1), abs=1e-4)


def test_a_bad_point_moves_a_line_little_and_what_no_point_tells_stays():
    x = np.linspace(0, 1, 20)
    y = 2 + 3 * x
    y[15] += 5
    home = np.array([0.0, 0.0, 7.0])
    found = solved(lambda p: p[0] + p[1] * x - y, home, home, 1e-6)
    assert found == pytest.approx([2, 3, 7], abs=0.02)
