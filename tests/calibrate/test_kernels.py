"""Surfaces fitted to single products: exact where they can be, and near products that they have not seen."""

import numpy as np
import pytest

from moeplan.calibrate.kernels import AXES, Measured, excess, fitted, held_out, measured, surface
from moeplan.calibrate.published import rows_of
from moeplan.cost.compute import share
from moeplan.spec.calibration import Surface
from moeplan.spec.record import convert

PEAK = 5e15


def drawn(law, number=300, seed=0):
    rng = np.random.default_rng(seed)
    sizes = [[float(rng.choice(axis)) for axis in AXES] for _ in range(number)]
    return [Measured(m, n, k, 1, PEAK * law(m, n, k)) for m, n, k in sizes]


def record(products):
    return convert(surface(products, PEAK, "measured", "drawn"), Surface, where="drawn")


def plane(m, n, k):
    return 0.05 * np.log2(m) + 0.01 * np.log2(n) + 0.02 * np.log2(k) - 0.5


def test_a_plane_in_the_logarithms_is_found_exactly_from_few_products():
    """It has no second differences, so that smoothing costs nothing."""
    found = record(drawn(plane, 40))
    for m, n, k in ((512, 1536, 16384), (16384, 2048, 4096), (3000, 5000, 7000)):
        assert share(found, m, n, k) == pytest.approx(plane(m, n, k), abs=2e-4)


def test_noise_is_smoothed():
    rng = np.random.default_rng(1)
    noisy = [p._replace(flop_per_s=p.flop_per_s * (1 + 0.1 * rng.standard_normal())) for p in drawn(plane)]
    shares = fitted(noisy, PEAK)
    truth = np.array([[[plane(m, n, k) for k in AXES[2]] for n in AXES[1]] for m in AXES[0]])
    assert np.sqrt(np.mean((shares / truth - 1) ** 2)) < 0.06


def test_a_surface_of_another_machine_is_scaled_by_the_mean_of_own_products():
    rates = record(drawn(plane))
    faster = [p._replace(flop_per_s=1.2 * p.flop_per_s) for p in drawn(plane, 9)]
    small = Measured(8.0, 2048.0, 2048.0, 1, 1.0)
    factor, number = excess([*faster, small], rates, PEAK, half_rows=85.0)
    assert (round(factor, 3), number) == (1.2, 9)
    grouped = Measured(2048.0, 2048.0, 2048.0, 4, PEAK * plane(2048, 2048, 2048) * 512 / (512 + 85))
    assert excess([grouped], rates, PEAK, half_rows=85.0)[0] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("number", "kept"), [("GEMM-00005", True), ("MAMF-10", True), ("GEMM-4", False), ("X", False)])
def test_every_fifth_row_is_held_out(number, kept):
    assert held_out(number) is kept


def test_no_fit_sees_a_held_out_product():
    seen = sum(len(products) for products in measured("H100-SXM 80GB").values())
    rows = [row for row in rows_of("gemm") if row["hardware"] == "H100-SXM 80GB"]
    assert seen == sum(not held_out(row["id"]) for row in rows) < len(rows)


@pytest.mark.parametrize("hardware", ["A100-SXM4-80GB", "H100-SXM 80GB", "H200-SXM", "B200-SXM", "GB200"])
def test_products_that_a_fit_has_not_seen_are_near(hardware):
    """Of those that may be fitted to, every fourth is left out here."""
    for element, products in measured(hardware).items():
        seen = [p for i, p in enumerate(products) if i % 4]
        found = record(seen)
        errors = [abs(p.flop_per_s / PEAK / share(found, p.m, p.n, p.k) - 1) for p in products[::4]]
        assert np.median(errors) < 0.06, element
        assert np.quantile(errors, 0.9) < 0.16, element
