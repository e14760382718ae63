"""A predicted step with what it is made of, where each second comes from, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, sqrt
from typing import NamedTuple

from moeplan.analytic.form import CLASSES, Floats, Form
from moeplan.analytic.step import step

SPREAD = {"measured": 0.05, "interpolated": 0.07, "roofline": 0.25, "assumed": 0.08}
"""One sigma of the logarithm of seconds by where they come from. Passes over HBM are the least sure; what is assumed
lies near what was measured on a sister. Chosen so that intervals hold the published steps as often as they should."""
LESS_SURE, UNSURE = ("expert", "host"), 0.6
"""The same of dispatch and combine, and of launches, whatever their source: routing and frameworks decide them."""
SHARED = 0.12
"""One sigma of what a step spends on nothing that is counted here, or saves; chosen as `SPREAD`."""
SIGMAS = 1.645
"""Of a normal distribution, nine of ten lie within."""


class Second(NamedTuple):
    """A part of the step."""

    name: str
    seconds: float
    source: str


class Forecast(NamedTuple):
    """One step of one layout in closed form."""

    step_s: float
    low_s: float
    """Nine of ten steps are expected between this and `high_s`."""
    high_s: float
    parts: tuple[Second, ...]
    """What the seconds are spent on, and where each comes from; they add up to the step."""


def forecast(form: Form, factors: Floats | None = None) -> Forecast:
    """The step of `form`: step e^(-1.645 sigma) to step e^(1.645 sigma), sigma^2 = 0.12^2 + sum (share spread)^2.

    Parts of one source err apart from those of another, and all of one source alike. Left out: what the inputs do not
    say (see `widened`).
    """
    parts = tuple(part for part in _parts(form, factors) if part.seconds)
    total = sum(part.seconds for part in parts)
    shares = dict.fromkeys((*SPREAD, "less sure"), 0.0)
    for part in parts:
        shares["less sure" if part.name in LESS_SURE else part.source] += part.seconds / total
    spread = SPREAD | {"less sure": UNSURE}
    sigma = sqrt(SHARED**2 + sum((share * spread[source]) ** 2 for source, share in shares.items()))
    return Forecast(total, total * exp(-SIGMAS * sigma), total * exp(SIGMAS * sigma), parts)


def widened(one: Forecast, others: list[Forecast]) -> Forecast:
    """`one` with an interval that also holds the steps of `others`, equally plausible inputs."""
    steps = [other.step_s for other in others]
    return one._replace(low_s=min(one.low_s, *steps), high_s=max(one.high_s, *steps)) if steps else one


def _parts(form: Form, factors: Floats | None) -> Iterator[Second]:
    told = step(form, factors)
    for name, seconds, source in zip(CLASSES, told.compute, form.sources, strict=True):
        yield Second(name, float(seconds), source)
    computed = max(zip(told.compute, form.sources, strict=True))[1]
    yield Second("bubble", float(told.bubble), computed)
    for name in ("hops", "gradients", "parameters"):
        yield Second(name, float(getattr(told, name)), form.travel_source)
    yield Second("optimizer", float(told.optimizer), "roofline")
    yield Second("straggling", float(told.straggling), "assumed")
