"""Rates of matrix products fitted to measurements of single kernels (`published/gemm.csv`).

    minimise  sum_i (share_i(s) / measured_i - 1)^2 + SMOOTHING |second differences of s in log2 of each axis|^2

s are shares at the points of a grid. Rows whose number is a multiple of `HELD_OUT` are never seen: they score the fit.
The grid, the smoothing and the terms were chosen by cross-validation over the other rows: finer grids, first instead
of second differences, Gaussian processes and factors for whole waves of tiles over the multiprocessors do not do
better over all machines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from moeplan.calibrate.published import rows_of
from moeplan.cost.compute import share
from moeplan.spec.calibration import Surface

Floats: TypeAlias = NDArray[np.float64]
ROWS = (512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
WIDTHS = (1536.0, 2048.0, 4096.0, 8192.0, 16384.0)
AXES = (ROWS, WIDTHS, WIDTHS)
"""Points over m, n and k: where the tables have measurements."""
SMOOTHING = 0.1
HELD_OUT = 5
TYPES = {"bfloat16": "bf16"}
"""Element types of the table under the names of calibrations."""


class Measured(NamedTuple):
    """One product and its rate."""

    m: float
    n: float
    k: float
    groups: int
    """Sets of weights, over which m rows are spread."""
    flop_per_s: float


def held_out(number: str) -> bool:
    """Whether the number at the end of an id is a multiple of five: no calibration is fitted to those rows."""
    found = re.search(r"(\d+)$", number)
    return found is not None and int(found[1]) % HELD_OUT == 0


def measured(hardware: str) -> dict[str, list[Measured]]:
    """Products of `hardware` by element type that a calibration may be fitted to; the best of many are left out."""
    found: dict[str, list[Measured]] = {}
    for row in rows_of("gemm"):
        if row["hardware"] == hardware and row["kind"] in ("gemm", "grouped_gemm") and not held_out(row["id"]):
            groups, (m, n, k) = int(row["groups"] or 1), (float(row[axis]) for axis in "mnk")
            flop = 2 * groups * m * n * k
            one = Measured(groups * m, n, k, groups, flop / (float(row["latency_us"]) * 1e-6))
            word = row["dtype"].split()[0]
            found.setdefault(TYPES.get(word, word), []).append(one)
    return found


def fitted(products: Sequence[Measured], peak: float) -> Floats:
    """Shares of `peak` at the points of `AXES` that explain `products` best [m, n, k]."""
    rates = np.array([p.flop_per_s / peak for p in products])
    design = _design(products) / rates[:, None]
    scale = rates.mean()
    normal = design.T @ design * scale**2 + SMOOTHING * _roughness()
    solved = np.linalg.solve(normal, design.T @ np.ones(len(rates)) * scale) * scale
    return np.asarray(solved.reshape([len(axis) for axis in AXES]))


def surface(products: Sequence[Measured], peak: float, source: str, note: str) -> dict[str, Any]:
    """The plain table of one element type, shares rounded to four digits."""
    shares = [round(float(share), 4) for share in fitted(products, peak).ravel()]
    m, n, k = ([int(size) for size in axis] for axis in AXES)
    return {"m": m, "n": n, "k": k, "share": shares, "source": source, "note": note}


def excess(products: Sequence[Measured], rates: Surface, peak: float, half_rows: float) -> tuple[float, int]:
    """Geometric mean of measured rates over those of `rates`, and of how many products.

    Only products within the rows of the surface: smaller ones are bound by HBM.
    """
    ratios = [
        p.flop_per_s / peak / share(rates, p.m, p.n, p.k) * (1 + half_rows * p.groups / p.m * (p.groups > 1))
        for p in products
        if p.m >= rates.m[0]
    ]
    return float(np.exp(np.mean(np.log(ratios)))), len(ratios)


def _design(products: Sequence[Measured]) -> Floats:
    """Weights of every point for each product: multilinear in log2 [product, point]."""
    sizes = np.array([[p.m, p.n, p.k] for p in products])
    m, n, k = (_weights(axis, sizes[:, i]) for i, axis in enumerate(AXES))
    return np.asarray(np.einsum("ri,rj,rk->rijk", m, n, k).reshape(len(products), -1))


def _weights(axis: Sequence[float], sizes: Floats) -> Floats:
    """Weights of the two points around each size, sizes outside taken to the end [size, point]."""
    nodes = np.log2(axis)
    at = np.clip(np.log2(sizes), nodes[0], nodes[-1])
    low = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(nodes) - 2)
    part = (at - nodes[low]) / (nodes[low + 1] - nodes[low])
    weights = np.zeros((len(sizes), len(nodes)))
    weights[np.arange(len(sizes)), low] = 1 - part
    weights[np.arange(len(sizes)), low + 1] = part
    return weights


@cache
def _roughness() -> Floats:
    """Sum of squares of second differences along each axis, as a matrix; a whit of the size itself keeps it regular."""
    parts = []
    for i in range(len(AXES)):
        axes = [_second(axis) if i == j else np.eye(len(axis)) for j, axis in enumerate(AXES)]
        parts.append(np.kron(np.kron(axes[0], axes[1]), axes[2]))
    whole = np.vstack(parts)
    return np.asarray(whole.T @ whole + 1e-6 * np.eye(whole.shape[1]))


def _second(axis: Sequence[float]) -> Floats:
    """Second differences in log2, each weighed with the width it stands for [inner point, point]."""
    x = np.log2(axis)
    left, right = np.diff(x)[:-1], np.diff(x)[1:]
    rows = np.arange(len(x) - 2)
    found = np.zeros((len(x) - 2, len(x)))
    width = np.sqrt((left + right) / 2)
    found[rows, rows] = 2 / (left * (left + right)) * width
    found[rows, rows + 1] = -2 / (left * right) * width
    found[rows, rows + 2] = 2 / (right * (left + right)) * width
    return found
