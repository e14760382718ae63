"""AF-Pipe against closed forms of a pipeline of attention and FFN groups in turn."""

from itertools import accumulate
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import ScheduleError
from moeplan.schedule import Shape, check
from moeplan.schedules import make
from moeplan.schedules.af_pipe import most_alive
from moeplan.schedules.af_pipe import row as row_of

FORWARD = 1000


def order(pairs, chunks, depth, groups=4, group=0):
    """Steps and shape: `pairs` attention and FFN groups with `chunks` layers each, whole groups of micro-batches."""
    group = group or ceil(2 * pairs * depth)
    shape = Shape(2 * pairs, 2 * pairs * chunks, group * groups, group, depth)
    return make("af-pipe", shape), shape


@pytest.mark.parametrize("pairs", [1, 2, 4])
@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("transfer", [0, 250, 500, 1000])
def test_fill_and_drain(simulated, pairs, chunks, transfer):
    """F_{p-1} starts after (2p - 1) (T + T_M2N); filling and draining take (2p - 1) (3 T + 2 T_M2N), within 5 %."""
    steps, shape = order(pairs, chunks, 1 + transfer / FORWARD)
    program, start, end = simulated(
        steps, shape.stages, shape.microbatches, forward=FORWARD, backward=2 * FORWARD, transfer=transfer
    )
    last = shape.positions - 1
    assert min(start[op.id] for op in program.ops if op.position == last) == last * (FORWARD + transfer)
    busy = shape.microbatches * chunks * 3 * FORWARD
    assert max(end) - busy == pytest.approx(last * (3 * FORWARD + 2 * transfer), rel=0.05)


@pytest.mark.parametrize("pairs", [1, 2, 4])
@pytest.mark.parametrize("chunks", [2, 4, 8])
@pytest.mark.parametrize("depth", [1.0, 1.5, 2.0])
def test_live_chunks(pairs, chunks, depth):
    """Rank r keeps (v - 1) G + ceil(2 (2p - 1 - r) x) + 1 chunks alive."""
    steps, shape = order(pairs, chunks, depth)
    for rank, row in enumerate(steps):
        alive = [0]
        for ((_, kind, _),) in row:
            alive.append(alive[-1] + (1 if kind == "F" else -1))
        assert max(alive) == (chunks - 1) * shape.group + ceil(2 * (2 * pairs - 1 - rank) * depth) + 1


@given(
    pairs=st.integers(1, 4),
    stages=st.integers(1, 24),
    microbatches=st.integers(1, 40),
    depth=st.sampled_from([1, 1.5, 2]),
    data=st.data(),
)
def test_most_alive_is_counted_without_the_order(pairs, stages, microbatches, depth, data):
    shape = Shape(2 * pairs, 2 * pairs + stages, microbatches, depth=depth)
    position = data.draw(st.integers(0, 2 * pairs - 1))
    alive = list(accumulate(1 if kind == "F" else -1 for ((_, kind, _),) in row_of(shape, position)))
    assert most_alive(shape, position) == max(alive)


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [1.0, 1.25, 1.5, 2.0, 2.5])
def test_groups_of_2p_x_never_deadlock(pairs, depth):
    for extra in range(3):
        steps, shape = order(pairs, 3, depth, group=ceil(2 * pairs * depth) + extra)
        check(steps, [(s % shape.positions,) for s in range(shape.stages)], shape.microbatches)


@pytest.mark.parametrize("pairs", [2, 3, 4])
@pytest.mark.parametrize("depth", [1.0, 1.5, 2.0])
def test_groups_below_2p_minus_1_x_deadlock(pairs, depth):
    steps, shape = order(pairs, 3, depth, group=ceil((2 * pairs - 1) * depth) - 1)
    with pytest.raises(ScheduleError, match="deadlock: position 0, step "):
        check(steps, [(s % shape.positions,) for s in range(shape.stages)], shape.microbatches)


@pytest.mark.parametrize("stages", [5, 6, 7, 9, 11])
@pytest.mark.parametrize("microbatches", [1, 5, 11])
def test_uneven_layers_and_groups_leave_a_legal_order(stages, microbatches):
    for depth in (1.0, 1.7):
        shape = Shape(4, stages, microbatches, depth=depth)
        check(make("af-pipe", shape), [(s % 4,) for s in range(stages)], microbatches)
