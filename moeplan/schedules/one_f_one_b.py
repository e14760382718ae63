"""1F1B with one stage per position (PipeDream-flush; Narayanan et al., arXiv 2104.04473, section 2.2)."""

from __future__ import annotations

from moeplan.errors import SpecError
from moeplan.schedule import Shape, Steps, alternate, in_groups, without_phantoms

NAME = "1f1b"


def make(shape: Shape) -> Steps:
    """Position i runs positions - 1 - i forwards ahead, then one forward and one backward in turn.

    Raises SpecError for more stages than positions: that order would deadlock.
    """
    if shape.stages > shape.positions:
        raise SpecError(
            f"schedule 1f1b: {shape.stages} stages on {shape.positions} positions; interleaved takes several"
        )
    rows = []
    for position in range(shape.positions):
        forwards, backwards = in_groups(shape, position, "F"), in_groups(shape, position, "B")
        rows.append(without_phantoms(alternate(forwards, backwards, shape.positions - 1 - position), shape))
    return tuple(rows)
