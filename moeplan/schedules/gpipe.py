"""GPipe: all forwards, then all backwards (Huang et al., arXiv 1811.06965)."""

from __future__ import annotations

from moeplan.schedule import Shape, Steps, alternate, in_groups, without_phantoms

NAME = "gpipe"


def make(shape: Shape) -> Steps:
    """Every forward before any backward; each position keeps all micro-batches alive."""
    whole = shape._replace(group=shape.microbatches)
    rows = []
    for position in range(shape.positions):
        forwards, backwards = in_groups(whole, position, "F"), in_groups(whole, position, "B")
        rows.append(without_phantoms(alternate(forwards, backwards, len(forwards)), shape))
    return tuple(rows)
