"""AF-Pipe: interleaved 1F1B over attention and FFN groups in turn (DisagMoE, section 4.2).

Which layers a group owns and where rows go is the paper's; group size, depth and warm-up are our own derivation.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from moeplan.schedule import Shape, Step, Steps, alternate, in_groups, without_phantoms

NAME = "af-pipe"


def make(shape: Shape) -> Steps:
    """Positions A_0, F_0, A_1, F_1, ...; every transfer counts as pipeline latency.

    `group` of at least ceil(positions depth) keeps the pipeline full; the order ends for any smaller one that is at
    least (positions - 1) depth.
    """
    return tuple(row(shape, position) for position in range(shape.positions))


def row(shape: Shape, position: int) -> tuple[Step, ...]:
    """The steps of one position: ceil(2 (positions - 1 - i) depth) + (chunks - 1) group forwards ahead, then 1F1B."""
    shape = shape._replace(group=shape.group or ceil(shape.positions * shape.depth))
    chunks = -(-shape.stages // shape.positions)
    forwards, backwards = in_groups(shape, position, "F"), in_groups(shape, position, "B")
    warmup = (chunks - 1) * shape.group + ceil(2 * (shape.positions - 1 - position) * shape.depth)
    return without_phantoms(alternate(forwards, backwards, warmup), shape)


def most_alive(shape: Shape, position: int) -> int:
    """Most actions of `row` at once whose forward has run and whose backward has not, without making the row."""
    group = shape.group or ceil(shape.positions * shape.depth)
    chunks, groups = -(-shape.stages // shape.positions), -(-shape.microbatches // group)
    real_chunks = np.arange(chunks) * shape.positions + position < shape.stages
    real_microbatches = (np.arange(groups * group) < shape.microbatches).reshape(groups, 1, group)
    forwards = (real_microbatches & real_chunks[:, None]).ravel().astype(int)
    backwards = (real_microbatches & real_chunks[::-1, None]).ravel().astype(int)
    ahead = min((chunks - 1) * group + ceil(2 * (shape.positions - 1 - position) * shape.depth), len(forwards))
    after = len(forwards) - ahead
    steady = np.stack((forwards[ahead:], -backwards[:after]), axis=1).ravel()
    return int(np.cumsum(np.concatenate((forwards[:ahead], steady, -backwards[after:]))).max())
