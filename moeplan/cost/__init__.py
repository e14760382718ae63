"""Seconds for pieces of work, with where each number came from."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Seconds of one piece of work."""

    seconds: float
    source: str
    """Where the number came from: measured, interpolated, roofline or assumed."""


class Parts(NamedTuple):
    """Seconds of compute by what bounds them; the host's seconds pass beside the others, not after them."""

    gemm: float = 0.0
    """Matrix products in the workload's element type."""
    narrow_gemm: float = 0.0
    """Matrix products in 8 or 4 bits."""
    attention: float = 0.0
    stream: float = 0.0
    """Passes over HBM."""
    cast: float = 0.0
    """Passes over HBM that only change the element type, each one kernel whose bytes are all counted."""
    host: float = 0.0
    """Launches, as the host makes them one after another."""
