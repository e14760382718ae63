"""Numbers inside the text of cells: times or rates of layers, and counts in a configuration."""

from __future__ import annotations

import re
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.validation.tables import Layer

COUNT = r"(\d\w*(?:[.,]\d\w*)*)"
"""A word that begins as a number does, to be read whole by `count`."""
MOST = 10**18
"""Of any number; beyond it is a slip of the unit."""
AMOUNT = r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
RATE = rf"{AMOUNT} ?TFLOPS(?: per \w+)?"


class Times(NamedTuple):
    """Both passes of a row, None where not published: milliseconds, or TFLOP/s where `rates`."""

    forward: float | None
    backward: float | None
    rates: bool


def times_of(row: Layer) -> Times:
    """What forward_ms and backward_ms say; SpecError unless both are milliseconds, or both rates, above 0."""
    told = {"forward_ms": row.forward_ms, "backward_ms": row.backward_ms}
    rates = any("TFLOPS" in text for text in told.values())
    forward, backward = (_amount(column, text, RATE if rates else AMOUNT) for column, text in told.items())
    return Times(forward, backward, rates)


def _amount(column: str, text: str, pattern: str) -> float | None:
    if not text:
        return None
    told = re.fullmatch(pattern, text)
    value = float(told[1]) if told else 0.0
    if not 0 < value <= MOST:
        right = "a rate above 0, such as '400 TFLOPS'" if pattern == RATE else "a number of milliseconds above 0"
        raise SpecError(f"{column}: {text!r} is not {right}; right where nothing was published: an empty cell")
    return value


def count(pattern: str, text: str, column: str) -> int | None:
    """The whole number that `pattern` finds in `text`, thousands with or without commas; None where it finds none.

    SpecError with the column where that is no whole number above 0.
    """
    found = re.search(pattern, text)
    if found is None:
        return None
    told = next(filter(None, found.groups()))
    value = int(told.replace(",", "")) if re.fullmatch(r"\d+|\d{1,3}(,\d{3})+", told) else 0
    if not 0 < value <= MOST:
        raise SpecError(f"{column}: {found[0]!r}: {told!r} is no whole number above 0")
    return value
