"""How far predictions are from measurements, over all rows and by what they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moeplan.calibrate.constants import FACTORS
from moeplan.tables import Rows
from moeplan.validation.outcome import MEASURES, Outcome, Result, Skipped
from moeplan.validation.pairs import Ratio, pair_scores

if TYPE_CHECKING:
    import pandas as pd

WORST = 5
"""Rows of each measure that are named."""

GROUPS: dict[str, Callable[[Outcome], str]] = {
    "by_source": lambda outcome: outcome.source,
    "by_model": lambda outcome: outcome.model,
    "by_accelerator": lambda outcome: outcome.accelerator,
    "by_kind": lambda outcome: outcome.kind,
}


class Score(NamedTuple):
    """Errors of several rows as fractions (0.1 is 10 %); None where there are no rows."""

    rows: int
    median_ape: float | None
    """Median of |predicted / measured - 1|."""
    p90_ape: float | None
    """Its 90th percentile, linear between rows."""
    bias: float | None
    """Mean of predicted / measured - 1: below 0 predictions are optimistic."""


class Coverage(NamedTuple):
    """How honest intervals are."""

    rows: int
    within: float | None
    """Share of measurements inside their interval, which should hold nine of ten."""
    half_width: float | None
    """Median of (high - low) / 2 over the prediction."""


def coverage(outcomes: Iterable[Outcome]) -> Coverage:
    """Intervals of those of `outcomes` that have one."""
    told = [(o.low, o.high, o.predicted, o.measured) for o in outcomes if o.low is not None and o.high is not None]
    if not told:
        return Coverage(0, None, None)
    low, high, predicted, measured = np.array(told).T
    within = (low <= measured) & (measured <= high)
    return Coverage(len(told), float(within.mean()), float(np.median((high - low) / 2 / predicted)))


def score(outcomes: Iterable[Outcome]) -> Score:
    """The errors of `outcomes`, which should be of one measure."""
    errors = np.array([outcome.error for outcome in outcomes])
    if not errors.size:
        return Score(0, None, None, None)
    absolute = np.abs(errors)
    return Score(errors.size, float(np.median(absolute)), float(np.percentile(absolute, 90)), float(errors.mean()))


class Validation(NamedTuple):
    """All rows compared."""

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]
    left_for_fits: int
    """Rows of matrix products that are not compared, so that calibrations may be made from them."""
    pairs: tuple[Ratio, ...] = ()
    """Runs that differ in one thing, as told."""
    pairs_left_out: tuple[Ratio, ...] = ()
    """With constants that never saw the model."""
    constants: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """By calibration: what its `constants` would be to explain these step times best."""

    unread: Mapping[str, int] = MappingProxyType({})
    """Words of runs that nothing is made of, and how many rows have each."""
    elsewhere: tuple[Outcome, ...] = ()
    """Runs of a table apart, that no constant was fitted to and no other score counts."""

    def to_dict(self) -> dict[str, Any]:
        """Scores over all rows and by source, model, accelerator, dense or moe; the worst rows; reasons with counts.

        intervals has only measures that have any.
        """
        return {
            "overall": {measure: score(of(self.outcomes, measure))._asdict() for measure in MEASURES},
            "without_listed": {m: score(unlisted(of(self.outcomes, m)))._asdict() for m in MEASURES},
            "intervals": _coverages(self.outcomes),
            **{name: _by(self.outcomes, key) for name, key in GROUPS.items()},
            "listed": [listed_row(outcome) for outcome in self.outcomes if outcome.listed],
            "worst": [outcome_row(outcome) for measure in MEASURES for outcome in worst(self.outcomes, measure)],
            "pairs": pair_scores(self.pairs),
            "pairs_left_out": pair_scores(self.pairs_left_out),
            "constants": {name: dict(values) for name, values in self.constants.items()},
            "skipped": reasons(self.skipped),
            "skipped_ids": [
                {"id": row.id, "measure": row.measure, "reason": row.told or row.reason} for row in self.skipped
            ],
            "not_understood": dict(self.unread),
            "left_for_fits": self.left_for_fits,
            **({"elsewhere": _apart(self.elsewhere)} if self.elsewhere else {}),
        }

    def to_rows(self) -> Rows:
        """One row per prediction: id, what, predicted, measured, error."""
        return [outcome_row(outcome) for outcome in self.outcomes]

    def to_dataframe(self) -> pd.DataFrame:
        """As `to_rows`."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())


def sorted_out(results: Iterable[Result], left_for_fits: int) -> Validation:
    """`results` as predictions and rows without one."""
    every = tuple(results)
    outcomes = tuple(result for result in every if isinstance(result, Outcome))
    return Validation(outcomes, tuple(result for result in every if isinstance(result, Skipped)), left_for_fits)


def of(outcomes: Sequence[Outcome], measure: str) -> list[Outcome]:
    """Those of `outcomes` that are of `measure`."""
    return [outcome for outcome in outcomes if outcome.measure == measure]


def unlisted(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those of `outcomes` whose published figure is not known to disagree."""
    return [outcome for outcome in outcomes if not outcome.listed]


def listed_row(outcome: Outcome) -> dict[str, Any]:
    """A figure that is known to disagree: predicted over measured, and why."""
    return {
        "id": outcome.id,
        "measure": outcome.measure,
        "model": outcome.model,
        "ratio": outcome.predicted / outcome.measured,
        "reason": outcome.listed,
    }


def listed_rows(validation: Validation) -> Rows:
    """Figures that are known to disagree, for readers: rows alike together, with their range of ratios."""
    alike: dict[tuple[str, str, str, str], list[float]] = {}
    for row in (outcome for outcome in validation.outcomes if outcome.listed):
        key = (row.measure.replace("_", " "), row.source, row.model, row.listed)
        alike.setdefault(key, []).append(row.predicted / row.measured)
    return [
        {
            "measure": measure,
            "of": source,
            "model": model,
            "rows": len(ratios),
            "predicted/measured": f"{min(ratios):.3f} - {max(ratios):.3f}",
            "reason": reason,
        }
        for (measure, source, model, reason), ratios in alike.items()
    ]


def worst(outcomes: Sequence[Outcome], measure: str) -> list[Outcome]:
    """The rows of `measure` with the largest errors, largest first."""
    return sorted(of(outcomes, measure), key=lambda outcome: (-abs(outcome.error), outcome.id))[:WORST]


def reasons(skipped: Iterable[Skipped]) -> dict[str, int]:
    """How many rows have no prediction for the same reason, most first."""
    return dict(Counter(f"{row.measure}: {row.reason}" for row in skipped).most_common())


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """One prediction in SI units: seconds, bytes, FLOP per token or parameters; the error is a fraction.

    low and high are None (null, or an empty cell) for measures without an interval: all but step times.
    """
    return {
        "id": outcome.id,
        "measure": outcome.measure,
        "model": outcome.model,
        "accelerator": outcome.accelerator,
        "kind": outcome.kind,
        "predicted": outcome.predicted,
        "measured": outcome.measured,
        "error": outcome.error,
        "low": outcome.low,
        "high": outcome.high,
        "note": outcome.note,
    }


def _by(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> dict[str, dict[str, Any]]:
    """Scores by what `key` gives and by measure; outcomes to which it gives nothing are left out."""
    names = sorted({key(outcome) for outcome in outcomes} - {""})
    return {name: _scores([outcome for outcome in outcomes if key(outcome) == name]) for name in names}


def _apart(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Scores of a table apart, and its rows."""
    return {
        "overall": _scores(outcomes),
        "intervals": _coverages(outcomes),
        "by_source": _by(outcomes, GROUPS["by_source"]),
        "rows": [outcome_row(outcome) for outcome in outcomes],
    }


def _coverages(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    there = [(measure, coverage(of(outcomes, measure))) for measure in MEASURES]
    return {measure: told._asdict() for measure, told in there if told.rows}


def _scores(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    there = [(measure, of(outcomes, measure)) for measure in MEASURES]
    return {measure: score(rows)._asdict() for measure, rows in there if rows}


def score_rows(validation: Validation) -> Rows:
    """Scores in percent for readers: all rows, then by source, accelerator, and dense or moe; `by_model` is in JSON."""
    rows: Rows = []
    for measure in MEASURES:
        mine = of(validation.outcomes, measure)
        if mine:
            rows.append(_score_row(measure, "all", score(mine)))
        if len(known := unlisted(mine)) < len(mine):
            rows.append(_score_row("", "all but those listed below", score(known)))
        for name in ("by_kind", "by_accelerator", "by_source"):
            groups = _by(mine, GROUPS[name])
            rows += [
                _score_row("", group, Score(**scores[measure])) for group, scores in groups.items() if len(groups) > 1
            ]
    return rows


def _score_row(measure: str, group: str, told: Score) -> dict[str, Any]:
    percent = [100 * (value or 0.0) for value in told[1:]]
    return {"measure": measure.replace("_", " "), "of": group, "rows": told.rows} | dict(
        zip(("median_%", "p90_%", "bias_%"), percent, strict=True)
    )


def interval_rows(validation: Validation) -> Rows:
    """How many measurements intervals hold, in percent, for readers."""
    told = [(measure, coverage(of(validation.outcomes, measure))) for measure in MEASURES]
    return [
        {
            "measure": measure.replace("_", " "),
            "rows": rows,
            "within_%": 100 * (within or 0.0),
            "median_half_width_%": 100 * (half_width or 0.0),
        }
        for measure, (rows, within, half_width) in told
        if rows
    ]


def constant_rows(validation: Validation) -> Rows:
    """Constants that would explain these step times best, for readers: one row per calibration, then what is usual."""
    if not validation.constants:
        return []
    rows: Rows = [
        {"calibration": name, **{known: f"{value:.3g}" for known, value in values.items()}}
        for name, values in validation.constants.items()
    ]
    usual = {factor.name: f"{factor.least:g} to {factor.most:g}" for factor in FACTORS}
    return [*rows, {"calibration": "plausible", **usual}]


def worst_rows(validation: Validation) -> Rows:
    """The worst rows of each measure for readers."""
    return [
        {
            "measure": row.measure.replace("_", " "),
            "id": row.id,
            "model": row.model,
            "accelerator": row.accelerator,
            "predicted": row.predicted,
            "measured": row.measured,
            "error_%": 100 * row.error,
            "note": row.note,
        }
        for measure in MEASURES
        for row in worst(validation.outcomes, measure)
        if row.error
    ]


def every_row(outcomes: Iterable[Outcome]) -> Rows:
    """Each prediction with its interval, and whether that holds the measurement, for readers."""
    return [
        {
            "measure": row.measure.replace("_", " "),
            "id": row.id,
            "model": row.model,
            "predicted": row.predicted,
            "low": "" if row.low is None else row.low,
            "high": "" if row.high is None else row.high,
            "measured": row.measured,
            "error_%": 100 * row.error,
            "inside": "" if row.low is None or row.high is None else str(row.low <= row.measured <= row.high).lower(),
            "note": row.note,
        }
        for row in outcomes
    ]


def skipped_ids(validation: Validation) -> Rows:
    """Every measurement without a prediction, for readers of a table of their own."""
    return [
        {"id": row.id, "measure": row.measure.replace("_", " "), "without_a_prediction": row.told or row.reason}
        for row in validation.skipped
    ]


def skipped_rows(validation: Validation) -> Rows:
    """Reasons with their counts for readers."""
    return [{"rows": count, "without_a_prediction": reason} for reason, count in reasons(validation.skipped).items()]
