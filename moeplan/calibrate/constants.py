"""Six factors per accelerator, fitted to whole steps and pooled over accelerators.

Curves come from kernels and collectives measured alone. A training step is slower: caches are cold, clocks fall under
load, passes that nobody counts move bytes. Each factor says by how much, is kept near a plausible value by its range,
and near the other accelerators' value by pooling: few runs of one machine do not decide alone.

    minimise  sum_i w_i rho(log(predicted_i / measured_i) / NOISE) + sum |mean - plausible|^2 / RANGE^2
              + sum |deviation_a|^2 / APART^2,   rho(r) = 2 (sqrt(1 + r^2) - 1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moeplan.analytic.form import CLASSES, Floats, Form
from moeplan.analytic.step import stacked, step

NOISE = 0.06
"""Of one published step (log): equal mappings differ by 4 % in the median from release to release."""
APART = 0.12
"""Between accelerators (log, one sigma; assumed)."""
STEPS, CLOSE = 12, 1e-3
"""Most steps of a fit, and the change of every logarithm at which it ends."""


class Factor(NamedTuple):
    """A physical factor with what is known of it before any run is seen."""

    name: str
    classes: tuple[str, ...]
    """The columns of a form that it acts on."""
    plausible: float
    spread: float
    """One sigma of its logarithm."""
    meaning: str


FACTORS = (
    Factor("gemm", ("gemm",), 0.85, 0.12, "rate of matrix products in a step over that in a hot loop: 0.65 to 1"),
    Factor("narrow_gemm", ("narrow_gemm",), 0.95, 0.15, "the same of 8 and 4 bit products: 0.7 to 1.3"),
    Factor("attention", ("attention",), 0.9, 0.2, "the same of the attention core: 0.6 to 1.2"),
    Factor("hbm", ("stream",), 0.6, 0.3, "bytes counted over bytes moved by passes: casts and copies: 0.3 to 1"),
    Factor("expert_bandwidth", ("expert",), 0.8, 0.25, "rate of dispatch and combine in a step: 0.5 to 1"),
    Factor("host", ("host",), 1.5, 0.3, "seconds of a launch over the assumed ones: 0.8 to 3"),
)


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


def on_classes(factors: Floats) -> Floats:
    """What `factors` [..., factors] multiply seconds by: 1 / factor, and the host's by its factor [..., classes]."""
    times = np.ones((*factors.shape[:-1], len(CLASSES)))
    for number, factor in enumerate(FACTORS):
        for name in factor.classes:
            value = factors[..., number]
            times[..., CLASSES.index(name)] = value if factor.name == "host" else 1 / value
    return times


def fit(seen: Sequence[Observation], start: Constants | None = None) -> Constants:
    """The factors that explain `seen` best; an observation that is repeated weighs 1 / sqrt(repeats) each time.

    Gauss-Newton with weights that bend for outliers, from `start` or from the plausible values.
    """
    names = sorted({one.accelerator for one in seen})
    aim = np.zeros((1 + len(names), len(FACTORS)))
    aim[0] = np.log([factor.plausible for factor in FACTORS])
    spread = np.full_like(aim, APART)
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
