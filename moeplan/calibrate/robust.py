"""Least squares that single bad points do not move (Levenberg-Marquardt with a smooth Huber loss)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from moeplan.topology.inside import Floats

ROUNDS, STEP, WORTH = 80, 1e-4, 1e-9
"""Of the search: rounds at most, step of the numeric slopes, gain in parts of the loss below which it ends."""
MOST_DAMPING = 1e9
"""Damping above which no step downhill is looked for."""
SMALL = 0.05
"""Residuals up to about this count by their square, larger ones by their size."""
NORMAL = 1.4826
"""Deviation of a normal distribution over its median absolute value."""
PASSES, PULLS = 4, (1e-5, 1e-2)
"""Searches, each with the pull that the one before found, and least and most pull."""
GRID = tuple(0.5 * step for step in range(-12, 5))
"""Of logarithms: factors of 0.0025 to 7.4."""


def loss(value: Floats, moved: Floats, pull: float) -> float:
    """sum 2 d^2 (sqrt(1 + (r / d)^2) - 1) + pull |moved|^2 of residuals r and numbers moved, d = `SMALL`.

    Source: Charbonnier et al. 1997.
    """
    spread = np.sqrt(1 + (value / SMALL) ** 2) - 1
    return float(2 * SMALL**2 * spread.sum() + pull * (moved**2).sum())


def solved(residuals: Callable[[Floats], Floats], start: Floats, home: Floats, pull: float) -> Floats:
    """The x from `start` downhill that makes `loss(residuals(x), x - home, pull)` least.

    `pull` keeps what the residuals do not tell at `home`. Left out: other minima. Source: Marquardt 1963.
    """
    x, damping, value = start.copy(), 1e-2, residuals(start)
    least = loss(value, x - home, pull)
    for _ in range(ROUNDS):
        slope = _slope(residuals, x)
        weights = 1 / np.sqrt(1 + (value / SMALL) ** 2)
        squares = slope.T @ (weights[:, None] * slope) + pull * np.eye(x.size)
        down = slope.T @ (weights * value) + pull * (x - home)
        before = least
        while damping < MOST_DAMPING:
            tried = x - np.linalg.solve(squares + damping * np.diag(np.diag(squares)), down)
            found = residuals(tried)
            if (lower := loss(found, tried - home, pull)) < least:
                x, value, least, damping = tried, found, lower, max(damping / 8, 1e-9)
                break
            damping *= 4
        if before - least <= WORTH * least:
            break
    return x


def scanned(residuals: Callable[[Floats], Floats], home: Floats, numbers: Sequence[int], pull: float) -> Floats:
    """`home` with each of `numbers` in turn at the best of `GRID` added to it: where a search may start.

    For numbers that nothing follows at first, because something else decides there.
    """
    x = home.copy()
    for number in numbers:
        tries = [x + by * np.eye(x.size)[number] for by in GRID]
        x = min(tries, key=lambda one: loss(residuals(one), one - home, pull))
    return x


def settled(residuals: Callable[[Floats], Floats], home: Floats, numbers: Sequence[int]) -> Floats:
    """`solved` from `scanned`, with the variance of the residuals for a pull: home counts as one of them.

    So that few or odd rows stay near `home`, and many good ones do not. The variance is by the median of the residuals.
    """
    pull = PULLS[1]
    x = scanned(residuals, home, numbers, pull)
    for _ in range(PASSES):
        x = solved(residuals, x, home, pull)
        value = residuals(x)
        spare = value.size / max(1, value.size - x.size)
        variance = (NORMAL * float(np.median(np.abs(value)))) ** 2 * spare
        pull = min(max(variance, PULLS[0]), PULLS[1])
    return x


def _slope(residuals: Callable[[Floats], Floats], x: Floats) -> Floats:
    """Of each residual along each number [residuals, numbers]."""
    steps = STEP * np.eye(x.size)
    return np.stack([(residuals(x + by) - residuals(x - by)) / (2 * STEP) for by in steps], axis=1)
