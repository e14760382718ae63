"""Seconds over sizes rise, and so does bandwidth: points that break this alone are outliers."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median, median_high, median_low

ODD, DEVIATIONS = log(1.4), 6.0
"""A point is odd where it stands off by this factor, and by so many deviations of all."""
NORMAL = 1.4826
"""Deviation of a normal distribution over its median absolute value."""
LEAST, RUN, FEW = 4, 2, 4
"""Points needed to call one odd; more odd points in a row than the second are how the machine is; one in so many."""


def rising(values: Sequence[float], *, high: bool = False) -> list[float]:
    """The rising sequence nearest to `values` by the sum of absolute differences: pooled neighbours, by their median.

    Of an even number, the lower middle one is taken, or with `high` the higher. Source: Robertson and Waltman 1968.
    """
    middle = median_high if high else median_low
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and middle(blocks[-2]) > middle(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return [middle(block) for block in blocks for _ in block]


def outliers(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[int, ...]:
    """Which of the points, by size, take much longer or shorter than their neighbours say.

    One is taken out after another: the one without which seconds and bandwidth come nearest to rising with size, as
    long as that gains `ODD` and its bandwidth is as far from that around it. At most one point in `FEW` is odd. Not
    told: odd points among fewer than `LEAST`, a slow first point, which may be latency, a fast last one.
    """
    if len(sizes) < LEAST:
        return ()
    points = [(log(size / one), log(one)) for size, one in zip(sizes, seconds, strict=True)]
    rate = [point[0] for point in points]
    apart = [abs(one - _around(rate, i)) for i, one in enumerate(rate)]
    least = max(ODD, DEVIATIONS * NORMAL * median(_off(points)))
    left, odd = list(range(len(points))), [False] * len(points)
    for _ in range(max(1, len(points) // FEW)):
        cost = sum(_off([points[i] for i in left]))
        gains = {i: cost - sum(_off([points[j] for j in left if j != i])) for i in left if apart[i] >= least}
        best = max(gains, key=lambda i: (round(gains[i], 9), apart[i]), default=-1)
        if best < 0 or gains[best] < least:
            break
        left.remove(best)
        odd[best] = True
    return tuple(i for i, one in enumerate(odd) if one and _run(odd, i) <= RUN)


def _off(points: Sequence[tuple[float, float]]) -> list[float]:
    """How far each point, bandwidth and seconds, is from the rising sequences nearest to both."""
    rate, taken = ([point[side] for point in points] for side in (0, 1))
    both = zip(rate, rising(rate, high=True), taken, rising(taken), strict=True)
    return [abs(a - b) + abs(c - d) for a, b, c, d in both]


def _around(values: Sequence[float], at: int) -> float:
    """The median of up to two neighbours on each side."""
    return median([*values[max(0, at - 2) : at], *values[at + 1 : at + 3]])


def _run(flags: Sequence[bool], at: int) -> int:
    """How many flags in a row stand up around `at`."""
    first, last = at, at
    while first > 0 and flags[first - 1]:
        first -= 1
    while last + 1 < len(flags) and flags[last + 1]:
        last += 1
    return last - first + 1
