"""Published figures that are known to disagree with a prediction, for a reason beside them: scored with and without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeplan.spec.record import Record
from moeplan.validation.tables import Run, Text, read_table


class Disagreement(Record):
    """Rows of one measure whose published figure is not what it seems."""

    measure: Text
    """flop, step_time or peak_memory."""
    prefix: Text
    """Of the ids of the rows."""
    model: str = ""
    """As the rows call it; empty: any."""
    release: str = ""
    """A part of the rows' source; empty: any."""
    reason: Text


def read_disagreements(path: Path) -> list[Disagreement]:
    """The lines of `path`; SpecError as `read_table`."""
    return read_table(path, Disagreement)


def reason_of(run: Run, measure: str, known: Sequence[Disagreement]) -> str:
    """Why the row's figure of `measure` is known to disagree; empty where it is not."""
    for line in known:
        mine = line.measure == measure and run.id.split("-")[0] == line.prefix
        if mine and line.model in ("", run.model) and line.release in run.source:
            return line.reason
    return ""
