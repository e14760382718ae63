"""Seconds of compute whose launches pass beside it."""

from __future__ import annotations

from math import inf

from moeplan.cost import Parts

SHARPNESS = 4
"""Of the maximum: GPU and host wait for each other a little where both take about as long (assumed)."""


def beside(gpu_s: float, host_s: float) -> float:
    """(gpu^4 + host^4)^(1/4): the longer of the two, and up to a fifth more where they are equal."""
    longer = max(gpu_s, host_s)
    if longer in (0.0, inf):
        return longer
    return float(longer * ((gpu_s / longer) ** SHARPNESS + (host_s / longer) ** SHARPNESS) ** (1 / SHARPNESS))


def together(parts: Parts) -> float:
    """Seconds of all `parts`: what the GPU does one after another, and the host beside it."""
    return beside(sum(parts) - parts.host, parts.host)
