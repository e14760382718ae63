"""How long a pipeline is not full, in passes of its mean position: F forward, B input gradient, W weight gradient."""

from __future__ import annotations

from typing import NamedTuple

from moeplan.errors import SpecError

WHOLE = (1.0, 1.0, 1.0)
SPLIT = (1.0, 1.0, 0.0)
"""What a neighbour waits for where weight gradients are computed later."""


class Idle(NamedTuple):
    """What positions wait for, as multiples of F, B and W."""

    bubble: tuple[float, float, float]
    """Once per step, where micro-batches are many."""
    path: tuple[float, float, float] = WHOLE
    """Of every other position, between the first forward of a micro-batch and its last backward."""
    turns: tuple[float, float] = (0.0, 0.0)
    """A micro-batch takes no less than these multiples of max(F, B) and of W."""
    directions: float = 1.0
    """Ends of the pipeline at which micro-batches enter."""


def idle(schedule: str, positions: int, virtual: int) -> Idle:
    """What a pipeline waits for in `schedule`.

    1F1B and GPipe: p - 1 passes of all three kinds. Interleaved: (p - 1) / v (arXiv 2104.04473, section 2.2). ZB-H1:
    (p - 1)(F + B - W), ZB-H2: (p - 1)(F + B - 2 W) (Zero Bubble, arXiv 2401.10241, table 2). DualPipe: (p / 2 - 1)
    (F&B + B - 3 W), with F&B a whole pass and B both gradients: F + 2 B - W (README of deepseek-ai/DualPipe). ZB-V,
    V-Half and V-Min (arXiv 2405.15362): 1 / 6, 0.4 and 0.62 of p - 1 whole passes, as one tool's orders for 8 positions
    and 32 micro-batches take (assumed for others); forwards and gradients of unequal length then wait for each other in
    every micro-batch, as their orders written out show. SpecError for another schedule, and degrees that it has not.
    """
    others = positions - 1
    found = {
        "gpipe": Idle(_times(others, WHOLE)),
        "1f1b": Idle(_times(others, WHOLE)),
        "interleaved": Idle(_times(others / virtual, WHOLE)),
        "zb-h1": Idle(_times(others, (1, 1, -1)), SPLIT),
        "zb-h2": Idle(_times(others, (1, 1, -2)), SPLIT),
        "zbv": Idle(_times(others / 6, WHOLE), SPLIT),
        "v-half": Idle(_times(0.4 * others, WHOLE), SPLIT, (2.0, 0.5)),
        "v-min": Idle(_times(0.62 * others, WHOLE), SPLIT, (3.0, 0.0)),
        "dualpipe": Idle(_times(max(0.0, positions / 2 - 1), (1, 2, -1)), SPLIT, directions=2.0),
    }
    if schedule not in found:
        raise SpecError(f"schedule {schedule!r} has no closed form; right is one of {', '.join(found)}")
    if schedule == "dualpipe" and positions > 1 and positions % 2:
        raise SpecError(f"schedule dualpipe: pp {positions} is odd; micro-batches enter at both ends, so it is even")
    if positions == 1:
        return Idle(_times(0, WHOLE))
    return found[schedule]


def _times(many: float, passes: tuple[float, float, float]) -> tuple[float, float, float]:
    a, b, c = passes
    return many * a, many * b, many * c
