"""Six factors per accelerator, fitted to whole steps and pooled over accelerators.

Curves come from kernels and collectives measured alone. A training step is slower: caches are cold, clocks fall under
load, passes that nobody counts move bytes. Each factor says by how much, is kept near a plausible value by its range,
and near the other accelerators' value by pooling: few runs of one machine do not decide alone.

    minimise  sum_i w_i rho(log(predicted_i / measured_i) / NOISE) + sum |mean - plausible|^2 / spread^2
              + sum |deviation_a|^2 / apart^2,   rho(r) = 2 (sqrt(1 + r^2) - 1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moeplan.analytic.factors import on_classes
from moeplan.analytic.form import Floats, Form
from moeplan.analytic.step import stacked, step

NOISE = 0.2
"""Of one prediction (log): what no constant mends; equal mappings alone differ by 4 to 8 % between releases."""
STEPS, CLOSE = 12, 1e-3
"""Most steps of a fit, and the change of every logarithm at which it ends."""


class Factor(NamedTuple):
    """What is known of a factor before any run is seen."""

    name: str
    plausible: float
    spread: float
    """One sigma of its logarithm."""
    apart: float
    """One sigma of an accelerator's from the mean: clocks under load differ most, software least."""
    least: float
    """What is less, or more than `most`, nobody would believe (assumed)."""
    most: float


FACTORS = (
    Factor("gemm", 0.85, 0.06, 0.15, 0.65, 1.0),
    Factor("narrow_gemm", 0.95, 0.08, 0.12, 0.7, 1.3),
    Factor("attention", 0.9, 0.1, 0.1, 0.6, 1.2),
    Factor("hbm", 0.6, 0.15, 0.06, 0.3, 1.0),
    Factor("expert_bandwidth", 0.8, 0.12, 0.08, 0.5, 1.0),
    Factor("host", 1.5, 0.15, 0.06, 0.8, 3.0),
)
"""What they mean stands in `spec.calibration.Constants`; values and spreads are assumed."""


class Observation(NamedTuple):
    """A step that someone ran."""

    form: Form
    measured_s: float
    accelerator: str
    model: str


class Constants(NamedTuple):
    """Logarithms of the factors: a mean, and how far each accelerator lies from it."""

    mean: Floats
    """[factors]"""
    deviation: Mapping[str, Floats]
    """[factors] by accelerator."""

    def of(self, accelerator: str) -> Floats:
        """The factors of `accelerator`; the mean where none of its runs was seen [factors]."""
        return np.exp(self.mean + self.deviation.get(accelerator, 0.0))


def fit(seen: Sequence[Observation], start: Constants | None = None) -> Constants:
    """The factors that explain `seen` best; an observation that is repeated weighs 1 / sqrt(repeats) each time.

    Gauss-Newton with weights that bend for outliers, from `start` or from the plausible values.
    """
    names = sorted({one.accelerator for one in seen})
    aim = np.zeros((1 + len(names), len(FACTORS)))
    aim[0] = np.log([factor.plausible for factor in FACTORS])
    spread = np.tile([factor.apart for factor in FACTORS], (1 + len(names), 1))
    spread[0] = [factor.spread for factor in FACTORS]
    at = aim.copy()
    if start is not None:
        at = np.array([start.mean, *(start.deviation.get(name, np.zeros(len(FACTORS))) for name in names)])
    if not seen:
        return Constants(at[0], {})
    row = np.array([1 + names.index(one.accelerator) for one in seen])
    form, measured = stacked([one.form for one in seen]), np.array([one.measured_s for one in seen])
    weights = _weights(seen)
    for _ in range(STEPS):
        residuals, slopes = _residuals(form, measured, at[0] + at[row])
        bent = weights / np.sqrt(1 + (residuals / NOISE) ** 2) / NOISE**2
        design = np.zeros((len(seen), *at.shape))
        design[:, 0] = slopes
        design[np.arange(len(seen)), row] = slopes
        flat = design.reshape(len(seen), -1)
        normal = flat.T @ (bent[:, None] * flat) + np.diag(spread.ravel() ** -2)
        pull = ((aim - at) / spread**2).ravel() - flat.T @ (bent * residuals)
        moved = np.linalg.solve(normal, pull).reshape(at.shape)
        at += moved
        if np.abs(moved).max() < CLOSE:
            break
    return Constants(at[0], dict(zip(names, at[1:], strict=True)))


def predicted(seen: Sequence[Observation], constants: Constants) -> Floats:
    """Seconds of the steps of `seen` with `constants` [n]."""
    times = np.array([on_classes(constants.of(one.accelerator)) for one in seen])
    return step(stacked([one.form for one in seen]), times).step_s


def _weights(seen: Sequence[Observation]) -> Floats:
    """1 / sqrt(n) for each of n observations of one model on one accelerator."""
    number = Counter((one.accelerator, one.model) for one in seen)
    return np.array([number[(one.accelerator, one.model)] ** -0.5 for one in seen])


def _residuals(form: Form, measured_s: Floats, at: Floats) -> tuple[Floats, Floats]:
    """log(predicted / measured) [n] with logarithms of factors `at` [n, factors], and its slopes [n, factors]."""
    little = 0.02
    here = np.log(step(form, on_classes(np.exp(at))).step_s)
    slopes = [np.log(step(form, on_classes(np.exp(at + move))).step_s) - here for move in little * np.eye(len(FACTORS))]
    return here - np.log(measured_s), np.stack(slopes, axis=1) / little
