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
    return read_table(path, Pair, optional=("kind",), key=("id_a", "id_b"))


def ratios(pairs: Iterable[Pair], outcomes: Iterable[Outcome], tokens: Mapping[str, float]) -> list[Ratio]:
    """Ratios of seconds per token and GPU of the pairs whose rows both have a prediction.

    `tokens` are tokens per GPU and step by id, so that rows with different batches may be a pair.
    """
    steps = {outcome.id: outcome for outcome in outcomes if outcome.measure == "step_time"}
    found = []
    for pair in pairs:
        if pair.id_a in steps and pair.id_b in steps:
            a, b, per_token = steps[pair.id_a], steps[pair.id_b], tokens[pair.id_a] / tokens[pair.id_b]
            predicted, measured = b.predicted / a.predicted * per_token, b.measured / a.measured * per_token
            found.append(Ratio(pair.id_a, pair.id_b, pair.what, predicted, measured))
    return found


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
        }
        for ratio in sorted(found, key=lambda ratio: (-abs(ratio.error), ratio.id_a))
    ]
