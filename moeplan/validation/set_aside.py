"""Rows whose figure no published column explains: they are scored, and every score is given without them too."""

from __future__ import annotations

from pathlib import Path

from moeplan.spec.record import Record
from moeplan.validation.tables import Text, read_table


class Aside(Record):
    """One measure of one row."""

    id: Text
    measure: Text
    """step_time or peak_memory."""
    reason: Text


def read_set_aside(path: Path) -> dict[tuple[str, str], str]:
    """Reasons by id and measure; SpecError as `read_table`."""
    return {(line.id, line.measure): line.reason for line in read_table(path, Aside, key=("id", "measure"))}
