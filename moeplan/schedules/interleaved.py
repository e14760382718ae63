"""Interleaved 1F1B: several chunks per position (Narayanan et al., arXiv 2104.04473, section 2.2)."""

from __future__ import annotations

from moeplan.schedule import Shape, Steps, alternate, in_groups, without_phantoms

NAME = "interleaved"


def make(shape: Shape) -> Steps:
    """Warm-up of 2 (positions - 1 - i) + (chunks - 1) group forwards at position i, then 1F1B over all chunks."""
    chunks = -(-shape.stages // shape.positions)
    group = shape.group or shape.positions
    rows = []
    for position in range(shape.positions):
        forwards, backwards = in_groups(shape, position, "F"), in_groups(shape, position, "B")
        warmup = 2 * (shape.positions - 1 - position) + (chunks - 1) * group
        rows.append(without_phantoms(alternate(forwards, backwards, warmup), shape))
    return tuple(rows)
