"""Seconds for pieces of work, with where each number came from."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Seconds of one piece of work."""

    seconds: float
    source: str
    """Where the number came from: measured, interpolated, roofline or assumed."""
