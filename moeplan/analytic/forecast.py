"""A predicted step with what it is made of, where each second comes from, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moeplan.analytic.form import CLASSES, Floats, Form
from moeplan.analytic.spread import Second, interval, sigma
from moeplan.analytic.step import step


class Forecast(NamedTuple):
    """One step of one layout in closed form."""

    step_s: float
    low_s: float
    """Nine of ten steps are expected between this and `high_s`."""
    high_s: float
    parts: tuple[Second, ...]
    """What the seconds are spent on, and where each comes from; they add up to the step."""

    def __repr__(self) -> str:
        return f"Forecast({self.step_s:.4g} s, nine of ten steps between {self.low_s:.4g} and {self.high_s:.4g} s)"


def forecast(form: Form, factors: Floats | None = None) -> Forecast:
    """The step of `form`, between what nine of ten are expected. Left out: what the inputs do not say (`widened`)."""
    parts = tuple(part for part in _parts(form, factors) if part.seconds)
    total = sum(part.seconds for part in parts)
    return Forecast(total, *interval(total, sigma(parts)), parts)


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
