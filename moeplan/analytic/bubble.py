"""How long a pipeline is not full, in micro-batches' worth of its mean position."""

from __future__ import annotations

from moeplan.errors import SpecError

THIRD = 1 / 3
"""Forward, input gradient and weight gradient are taken as equally long."""


def bubble(schedule: str, positions: int, virtual: int) -> float:
    """Idle seconds of a position over the seconds that a mean position needs for one micro-batch.

    1F1B and GPipe: p - 1. Interleaved: (p - 1) / v (arXiv 2104.04473, section 2.2). ZB-H1: (p - 1)(F + B - W), ZB-V and
    ZB-H2: (p - 1)(F + B - 2 W) = 0 (Zero Bubble, arXiv 2401.10241, table 2). V-Half and V-Min: 2 / 3 and 1 of (p - 1)
    (assumed; arXiv 2405.15362 gives measured throughput only). DualPipe: (p / 2 - 1)(F&B + B - 3 W), with F&B a whole
    pass and B both gradients (README of deepseek-ai/DualPipe). SpecError for another schedule.
    """
    idle = positions - 1
    found = {
        "gpipe": float(idle),
        "1f1b": float(idle),
        "interleaved": idle / virtual,
        "zb-h1": idle * THIRD,
        "zb-h2": 0.0,
        "zbv": 0.0,
        "v-half": 2 * THIRD * idle,
        "v-min": float(idle),
        "dualpipe": max(0.0, positions / 2 - 1) * 2 * THIRD,
    }
    if schedule not in found:
        raise SpecError(f"schedule {schedule!r} has no closed form; right is one of {', '.join(found)}")
    return found[schedule]
