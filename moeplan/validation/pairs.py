"""Pairs of runs that differ in one thing: what it changes, predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moeplan.spec.record import Record
from moeplan.tables import Rows
from moeplan.validation.outcome import Outcome
from moeplan.validation.tables import Text, read_table

SEEN = 0.05
"""A smaller effect may have either sign: identical jobs differ by as much from release to release."""


class Pair(Record):
    """Two rows of runs."""

    id_a: Text
    id_b: Text
    what: Text
    """What b has that a has not."""
    kind: str = ""
    """overlap, dispatcher, recompute, dtype, parallel, schedule."""


class Ratio(NamedTuple):
    """Step time of b over that of a."""

    id_a: str
    id_b: str
    what: str
    predicted: float
    measured: float
    listed: str = ""
    """Why one of both steps is set aside; empty where the same reason sets both aside, which a ratio leaves out."""

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def sign_right(self) -> bool | None:
        """Whether both say faster, or both slower; None where the measured effect is too small to say."""
        if abs(self.measured - 1) <= SEEN:
            return None
        return (self.predicted - 1) * (self.measured - 1) > 0


def read_pairs(path: Path) -> list[Pair]:
    """The pairs in `path`; SpecError as `read_table`."""
    return read_table(path, Pair, key=("id_a", "id_b"))


def ratios(
    pairs: Iterable[Pair], outcomes: Iterable[Outcome], tokens: Mapping[str, float], measure: str = "step_time"
) -> list[Ratio]:
    """Ratios of seconds per token and GPU of the pairs whose rows both have a prediction of `measure`.

    `tokens` are tokens per GPU and step by id, so that rows with different batches may be a pair.
    """
    steps = {outcome.id: outcome for outcome in outcomes if outcome.measure == measure}
    found = []
    for pair in pairs:
        if pair.id_a in steps and pair.id_b in steps:
            a, b, per_token = steps[pair.id_a], steps[pair.id_b], tokens[pair.id_a] / tokens[pair.id_b]
            predicted, measured = b.predicted / a.predicted * per_token, b.measured / a.measured * per_token
            listed = "" if a.listed == b.listed else a.listed or b.listed
            found.append(Ratio(pair.id_a, pair.id_b, pair.what, predicted, measured, listed))
    return found


def pair_scores(found: Sequence[Ratio]) -> dict[str, Any]:
    """`pair_score` of all, and of those that are not listed."""
    return pair_score(found) | {"without_listed": pair_score([ratio for ratio in found if not ratio.listed])}


def pair_score_rows(validated: Mapping[str, Sequence[Ratio]]) -> Rows:
    """Scores in percent for readers, by the constants behind the predictions."""
    rows: Rows = []
    for constants, found in validated.items():
        known = [ratio for ratio in found if not ratio.listed]
        for of, some in (("all", found), ("all but those listed", known)):
            if some and not (some is known and len(known) == len(found)):
                told = pair_score(some)
                rows.append(
                    {
                        "constants": constants,
                        "of": of,
                        "pairs": told["pairs"],
                        "median_%": 100 * told["median_ape"],
                        "p90_%": 100 * told["p90_ape"],
                        "effects": told["effects"],
                        "right sign": told["sign_right"],
                    }
                )
    return rows


def pair_score(found: Sequence[Ratio]) -> dict[str, Any]:
    """Pairs, median and 90th percentile of |predicted / measured - 1|, and how many effects have the right sign."""
    if not found:
        return {"pairs": 0, "median_ape": None, "p90_ape": None, "effects": 0, "sign_right": 0}
    errors = np.abs([ratio.error for ratio in found])
    signs = [ratio.sign_right for ratio in found if ratio.sign_right is not None]
    return {
        "pairs": len(found),
        "median_ape": float(np.median(errors)),
        "p90_ape": float(np.percentile(errors, 90)),
        "effects": len(signs),
        "sign_right": sum(signs),
    }


def pair_rows(found: Sequence[Ratio]) -> Rows:
    """Ratios of seconds per token for readers, worst first."""
    return [
        {
            "what": ratio.what,
            "a": ratio.id_a,
            "b": ratio.id_b,
            "predicted_b/a": ratio.predicted,
            "measured_b/a": ratio.measured,
            "error_%": 100 * ratio.error,
            "listed": ratio.listed,
        }
        for ratio in sorted(found, key=lambda ratio: (-abs(ratio.error), ratio.id_a))
    ]
