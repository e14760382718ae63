"""How long a pipeline is not full, in micro-batches' worth of its mean position."""

from __future__ import annotations

from moeplan.errors import SpecError

THIRD = 1 / 3
"""Forward, input gradient and weight gradient are taken as equally long."""


def bubble(schedule: str, positions: int, virtual: int) -> float:
    """Idle seconds of a position over the seconds that a mean position needs for one micro-batch.

    1F1B and GPipe: p - 1. Interleaved: (p - 1) / v (arXiv 2104.04473, section 2.2). ZB-H1: (p - 1)(F + B - W), ZB-H2:
    (p - 1)(F + B - 2 W) = 0 (Zero Bubble, arXiv 2401.10241, table 2). ZB-V, V-Half and V-Min (arXiv 2405.15362): 1 / 6,
    0.4 and 0.62 of (p - 1), as orders for 8 positions and 32 micro-batches take (assumed for others); what V-Min waits
    in every micro-batch besides is `step`'s. DualPipe:
    (p / 2 - 1)(F&B + B - 3 W), with F&B a whole pass and B both gradients (README of deepseek-ai/DualPipe). SpecError
    for another schedule.
    """
    idle = positions - 1
    found = {
        "gpipe": float(idle),
        "1f1b": float(idle),
        "interleaved": idle / virtual,
        "zb-h1": idle * THIRD,
        "zb-h2": 0.0,
        "zbv": idle / 6,
        "v-half": 0.4 * idle,
        "v-min": 0.62 * idle,
        "dualpipe": max(0.0, positions / 2 - 1) * 2 * THIRD,
    }
    if schedule not in found:
        raise SpecError(f"schedule {schedule!r} has no closed form; right is one of {', '.join(found)}")
    return found[schedule]
