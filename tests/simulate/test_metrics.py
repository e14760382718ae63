"""Where the time of a step goes: parts that sum to the step, and a pipeline by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.simulate import Timeline, Use, metrics, run
from moeplan.simulate.metrics import covered_ns


@settings(max_examples=60)
@given(positions=st.integers(1, 4), chunks=st.integers(1, 2), microbatches=st.integers(1, 5), seed=st.integers(0, 999))
def test_parts_sum_to_the_step(programs, positions, chunks, microbatches, seed):
    program = programs.program("interleaved", positions, positions * chunks, microbatches)
    duration_ns = programs.durations(program, seed)
    found = metrics(program, run(program, duration_ns))
    assert len(found.positions) == positions
    for position, use in enumerate(found.positions):
        assert sum(use) == found.step_ns
        assert min(use) >= 0
        work = [op.id for op in program.ops if op.position == position and op.kind in ("F", "B", "optimizer")]
        assert use.compute_ns == sum(duration_ns[number] for number in work)


def test_one_microbatch_through_two_positions(programs):
    """F 1, rows 3, F 1, B 2, gradients 3, B 2: each position computes 3 of 12, sees both transfers, waits 3."""
    program = programs.program("1f1b", 2, 2, 1)
    found = metrics(program, run(program, programs.unit_times(program, transfer=3)))
    assert found == (12, (Use(3, 6, 3), Use(3, 6, 3)))


def test_communication_behind_compute_is_not_exposed(programs):
    program = programs.by_hand(
        (0, "forward", [(0, "F", (), ())]),
        (0, "send", [(1, "send", (), (1,))]),
        (1, "forward", [(2, "F", (1,), ())]),
    )
    found = metrics(program, run(program, [8, 10, 5]))
    assert found == (15, (Use(8, 2, 5), Use(5, 10, 0)))


def test_a_collective_involves_all_its_positions(programs):
    program = programs.by_hand((0, "sync", [(0, "all_reduce", (), (1,))]), (1, "sync", [(1, "all_reduce", (), (0,))]))
    assert metrics(program, Timeline([0, 2], [4, 6])).positions == (Use(0, 6, 0), Use(0, 6, 0))


def test_nothing_takes_no_time(programs):
    assert metrics(programs.by_hand(), Timeline([], [])) == (0, ())


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12))
def test_the_union_of_intervals_counts_each_nanosecond_once(intervals):
    start = np.array([s for s, _ in intervals], dtype=np.int64)
    end = np.array([s + length for s, length in intervals], dtype=np.int64)
    assert covered_ns(start, end) == len({t for s, length in intervals for t in range(s, s + length)})
