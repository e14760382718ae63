"""Step times without constants, and with constants that were fitted to the runs of all other models.

The constants that ship are assumed: they have seen no run. Fitted ones say how well another model is predicted once
runs have been seen; `fitted` tells them, for those who want them in their own calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moeplan.analytic.factors import NAMES, on_classes
from moeplan.analytic.forecast import Forecast, forecast, widened
from moeplan.analytic.form import Floats
from moeplan.calibrate.constants import Constants, Observation, fit
from moeplan.validation.outcome import Outcome, Result
from moeplan.validation.steps import Forms


class Timed(NamedTuple):
    """A step that someone ran, and what it was priced as."""

    outcome: Outcome
    forms: Forms


def timed(outcomes: Iterable[Result], forms: Mapping[str, Forms]) -> list[Timed]:
    """Those of `outcomes` that are step times, with what they were priced as by id."""
    return [Timed(o, forms[o.id]) for o in outcomes if isinstance(o, Outcome) and o.measure == "step_time"]


def observed(rows: Sequence[Timed]) -> list[Observation]:
    """`rows` as what constants are fitted to."""
    return [
        Observation(one.forms.taken, one.outcome.measured, one.forms.calibration, one.outcome.model) for one in rows
    ]


def without_constants(rows: Sequence[Timed]) -> list[Outcome]:
    """Outcomes by curves of kernels and collectives alone: the measure step_time_no_constants."""
    return [_outcome(one, "step_time_no_constants", None) for one in rows]


def fitted(constants: Constants) -> dict[str, dict[str, float]]:
    """The factors of each accelerator by name, as a calibration's `constants` has them."""
    return {name: dict(zip(NAMES, map(float, constants.of(name)), strict=True)) for name in sorted(constants.deviation)}


def left_out(rows: Sequence[Timed], whole: Constants) -> list[Outcome]:
    """Outcomes with constants fitted to the runs of all other models: the measure step_time_left_out.

    Each fit starts from `whole`, that of all runs.
    """
    every = observed(rows)
    models = {one.model for one in every}
    blind = {model: fit([one for one in every if one.model != model], whole) for model in models}
    return [
        _outcome(one, "step_time_left_out", _factors(blind[one.outcome.model], one.forms.calibration)) for one in rows
    ]


def _factors(constants: Constants, accelerator: str) -> Floats:
    return on_classes(constants.of(accelerator))


def _outcome(one: Timed, measure: str, factors: Floats | None) -> Outcome:
    told = told_with(one.forms, factors)
    return one.outcome._replace(measure=measure, predicted=told.step_s, low=told.low_s, high=told.high_s)


def told_with(forms: Forms, factors: Floats | None) -> Forecast:
    """The step of `forms`, with an interval that holds all that they may be, each at its scale."""
    others = [forecast(other, factors) for other in forms.others]
    scaled = [other._replace(step_s=other.step_s * scale) for other, scale in zip(others, forms.scales, strict=True)]
    return widened(forecast(forms.taken, factors), scaled)
