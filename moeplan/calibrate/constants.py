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
from moeplan.analytic.step import step

NOISE = 0.06
"""Of one published step (log): equal mappings differ by 4 % in the median from release to release."""
APART = 0.12
"""Between accelerators (log, one sigma; assumed)."""
STEPS = 12


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
    """What `factors` multiply the seconds of each class by: 1 / factor, and the host's by its factor [classes]."""
    times = np.ones(len(CLASSES))
    for factor, value in zip(FACTORS, factors, strict=True):
        for name in factor.classes:
            times[CLASSES.index(name)] = value if factor.name == "host" else 1 / value
    return times


def fit(seen: Sequence[Observation], start: Constants | None = None) -> Constants:
    """The factors that explain `seen` best; an observation that is repeated weighs 1 / sqrt(repeats) each time."""
    accelerators = sorted({one.accelerator for one in seen})
    position = {name: 1 + i for i, name in enumerate(accelerators)}
    size = len(FACTORS)
    weights = _weights(seen)
    plausible = np.log([factor.plausible for factor in FACTORS])
    precision = np.concatenate(
        [np.array([factor.spread for factor in FACTORS]) ** -2.0, np.full(size * len(accelerators), APART**-2.0)]
    )
    aim = np.concatenate([plausible, np.zeros(size * len(accelerators))])
    at = aim.copy()
    if start is not None:
        at = np.concatenate([start.mean, *(start.deviation.get(name, np.zeros(size)) for name in accelerators)])
    for _ in range(STEPS):
        residuals, slopes = _residuals(seen, at, position)
        bent = weights / np.sqrt(1 + (residuals / NOISE) ** 2) / NOISE**2
        normal = np.diag(precision)
        pull = precision * (aim - at)
        for one, r, slope, w in zip(seen, residuals, slopes, bent, strict=True):
            mine = slice(position[one.accelerator] * size, (position[one.accelerator] + 1) * size)
            outer = w * np.outer(slope, slope)
            for a in (slice(0, size), mine):
                pull[a] -= w * r * slope
                for b in (slice(0, size), mine):
                    normal[a, b] += outer
        moved = np.linalg.solve(normal, pull)
        at += moved
        if np.abs(moved).max() < 1e-4:
            break
    return Constants(at[:size], {name: at[i * size : (i + 1) * size] for name, i in position.items()})


def predicted(one: Observation, constants: Constants) -> float:
    """Seconds of the step of `one` with `constants`."""
    return step(one.form, on_classes(constants.of(one.accelerator))).step_s


def _weights(seen: Sequence[Observation]) -> Floats:
    """1 / sqrt(n) for each of n observations of one model on one accelerator."""
    number = Counter((one.accelerator, one.model) for one in seen)
    return np.array([number[(one.accelerator, one.model)] ** -0.5 for one in seen])


def _residuals(seen: Sequence[Observation], at: Floats, position: Mapping[str, int]) -> tuple[Floats, Floats]:
    """log(predicted / measured) [n], and its slope along the logarithm of each factor [n, factors]."""
    size, little = len(FACTORS), 0.02
    residuals, slopes = np.empty(len(seen)), np.empty((len(seen), size))
    for i, one in enumerate(seen):
        where = at[:size] + at[position[one.accelerator] * size : (position[one.accelerator] + 1) * size]
        here = step(one.form, on_classes(np.exp(where))).step_s
        residuals[i] = np.log(here / one.measured_s)
        for j in range(size):
            there = where.copy()
            there[j] += little
            slopes[i, j] = np.log(step(one.form, on_classes(np.exp(there))).step_s / here) / little
    return residuals, slopes
