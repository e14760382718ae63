"""AF-Pipe: interleaved 1F1B over attention and FFN groups in turn (DisagMoE, section 4.2)."""

from __future__ import annotations

from math import ceil

from moeplan.schedule import Shape, Steps, alternate, in_groups, without_phantoms

NAME = "af-pipe"


def make(shape: Shape) -> Steps:
    """Positions A_0, F_0, A_1, F_1, ...; warm-up of ceil(2 (positions - 1 - i) depth) + (chunks - 1) group forwards.

    `group` of at least ceil(positions depth) keeps the pipeline full; the order ends for any smaller one that is at
    least (positions - 1) depth.
    """
    group = shape.group or ceil(shape.positions * shape.depth)
    shape = shape._replace(group=group)
    chunks = -(-shape.stages // shape.positions)
    rows = []
    for position in range(shape.positions):
        forwards, backwards = in_groups(shape, position, "F"), in_groups(shape, position, "B")
        warmup = (chunks - 1) * group + ceil(2 * (shape.positions - 1 - position) * shape.depth)
        rows.append(without_phantoms(alternate(forwards, backwards, warmup), shape))
    return tuple(rows)
