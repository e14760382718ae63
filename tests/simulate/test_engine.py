"""The engine: the longest path where nothing is shared, the arithmetic by hand where something is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import ScheduleError, SpecError
from moeplan.program import is_receive, longest_path
from moeplan.simulate import Demand, Timeline, compute_streams, run, timeline_to_trace
from moeplan.trace import length_ns

CASES = st.tuples(
    st.sampled_from(["1f1b", "gpipe", "interleaved", "af-pipe"]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from(["none", "full"]),
)


def drawn(programs, case):
    name, positions, chunks, microbatches, recompute = case
    stages = positions * (1 if name == "1f1b" else chunks)
    return programs.program(name, positions, stages, microbatches, recompute)


def demands(program, duration_ns, latency_ns):
    """Each transfer over the way out of its sender and the way into its receiver."""
    sends = [op for op in program.ops if op.peers and not is_receive(program, op)]
    return {op.id: Demand(latency_ns, duration_ns[op.id], (op.position, 100 + op.peers[0]), (1.0, 1.0)) for op in sends}


@settings(max_examples=150)
@given(case=CASES, seed=st.integers(0, 2**32))
def test_without_sharing_the_engine_is_the_longest_path(programs, case, seed):
    program = drawn(programs, case)
    duration_ns = programs.durations(program, seed)
    timeline = run(program, duration_ns)
    assert timeline.end_ns == longest_path(program, duration_ns)
    assert timeline.start_ns == [end - d for end, d in zip(timeline.end_ns, duration_ns, strict=True)]
    assert run(program, duration_ns, exclusive=compute_streams(program)) == timeline


@settings(max_examples=100)
@given(case=CASES, seed=st.integers(0, 2**32), latency_ns=st.integers(0, 5))
def test_shared_links_only_delay_and_runs_repeat(programs, case, seed, latency_ns):
    program = drawn(programs, case)
    duration_ns = programs.durations(program, seed)
    transfers = demands(program, duration_ns, latency_ns)
    alone = [d + latency_ns * (i in transfers) for i, d in enumerate(duration_ns)]
    timeline = run(program, duration_ns, transfers=transfers)
    assert all(end >= bound for end, bound in zip(timeline.end_ns, longest_path(program, alone), strict=True))
    assert run(program, duration_ns, transfers=transfers) == timeline


@settings(max_examples=50)
@given(case=CASES, seed=st.integers(0, 2**32))
def test_transfers_on_links_of_their_own_take_their_duration(programs, case, seed):
    program = drawn(programs, case)
    duration_ns = programs.durations(program, seed, longest=10**9)
    own = {op.id: Demand(0, duration_ns[op.id], (op.id,), (1.0,)) for op in program.ops if op.peers}
    assert run(program, duration_ns, transfers=own).end_ns == longest_path(program, duration_ns)


def sends(programs, *works, links=None):
    """Transfers that start at once, each from a position of its own, on link 0 or the links named."""
    program = programs.by_hand(*((i, "send", [(i, "send", (), ())]) for i in range(len(works))))
    routes = links or [(0,)] * len(works)
    transfers = {i: Demand(0, work, routes[i], (1.0,) * len(routes[i])) for i, work in enumerate(works)}
    return program, transfers


def test_two_transfers_split_a_link_and_the_rest_flows_at_full_rate(programs):
    program, transfers = sends(programs, 100, 300)
    assert run(program, [0, 0], transfers=transfers) == Timeline([0, 0], [200, 400])


def test_a_late_transfer_takes_half_from_then_on(programs):
    program, transfers = sends(programs, 100, 100)
    transfers[1] = transfers[1]._replace(latency_ns=50)
    assert run(program, [0, 0], transfers=transfers).end_ns == [150, 200]


def test_three_transfers_on_two_links(programs):
    """0 uses both links; 1 the first, 2 and 3 the second: 1/3 for 0, 2 and 3, so 2/3 for 1."""
    program, transfers = sends(programs, 100, 200, 100, 100, links=[(0, 1), (0,), (1,), (1,)])
    assert run(program, [0] * 4, transfers=transfers).end_ns == [300, 300, 300, 300]


def test_ends_are_rounded_up(programs):
    program, transfers = sends(programs, 1, 1, 2, links=[(0,), (0,), (0,)])
    assert run(program, [0] * 3, transfers=transfers).end_ns == [3, 3, 4]
    program, transfers = sends(programs, 9, 9)
    transfers[1] = transfers[1]._replace(shares=(0.25,))
    assert run(program, [0, 0], transfers=transfers).end_ns == [12, 12]


def test_narrow_transfers_do_not_meet(programs):
    program, transfers = sends(programs, 100, 100)
    halves = {i: demand._replace(shares=(0.5,)) for i, demand in transfers.items()}
    assert run(program, [0, 0], transfers=halves).end_ns == [100, 100]


def test_exclusive_streams_take_turns(programs):
    program = programs.by_hand(
        (0, "backward", [(3, "B", (), ()), (4, "B", (), ())]),
        (0, "forward", [(0, "F", (), ()), (1, "F", (), ()), (2, "F", (), ())]),
    )
    duration_ns = [3, 4, 5, 10, 20]
    alone = run(program, duration_ns)
    assert alone.end_ns == [3, 7, 12, 10, 30]
    shared = run(program, duration_ns, exclusive=compute_streams(program))
    assert shared == Timeline([0, 13, 37, 3, 17], [3, 17, 42, 13, 37])


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12))
def test_exclusive_streams_never_overlap_and_never_idle(programs, work):
    """Operations on two streams that wait for nothing else: back to back, in stream order."""
    rows = [[(i, "FB"[side], (), ()) for i, (at, _) in enumerate(work) if at == side] for side in (0, 1)]
    program = programs.by_hand((0, "forward", rows[0]), (0, "backward", rows[1]))
    timeline = run(program, [ns for _, ns in work], exclusive=compute_streams(program))
    spans = sorted(zip(*timeline, strict=True))
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]


def test_of_operations_ready_at_once_the_smaller_id_goes_first(programs):
    late = (1, "forward", [(2, "F", (), ())])
    waiting = [(0, "backward", [(1, "B", (2,), ())]), (0, "forward", [(0, "F", (2,), ())])]
    for order in (waiting, waiting[::-1]):
        program = programs.by_hand(late, *order)
        assert run(program, [5, 5, 7], exclusive=compute_streams(program)).start_ns == [7, 12, 0]
    detour = programs.by_hand(
        late,
        (2, "forward", [(3, "F", (2,), ())]),
        (0, "backward", [(1, "B", (2,), ())]),
        (0, "forward", [(0, "F", (3,), ())]),
    )
    assert run(detour, [5, 5, 7, 0], exclusive=compute_streams(detour)).start_ns == [7, 12, 0, 7]


def test_a_deadlock_names_what_each_stream_waits_for(programs):
    program = programs.by_hand(
        (0, "forward", [(0, "F", (1,), ()), (2, "F", (), ())]),
        (1, "forward", [(1, "F", (0,), ())]),
    )
    message = r"3 operations never ran: position 0, forward: 0F0 waits for 1F0; position 1, forward: 1F0 waits for 0F0$"
    with pytest.raises(ScheduleError, match=message):
        run(program, [1, 1, 1])


@pytest.mark.parametrize("duration_ns", [[1], [1, -1], [1, 1, 1]])
def test_durations_must_fit_the_program(programs, duration_ns):
    program, _ = sends(programs, 1, 1)
    with pytest.raises(SpecError, match="2 durations of at least 0 ns are due"):
        run(program, duration_ns)


def test_fractions_of_a_nanosecond_are_refused(programs):
    program, _ = sends(programs, 1)
    with pytest.raises(TypeError):
        run(program, [1.5])


def test_an_empty_program_takes_no_time(programs):
    assert run(programs.by_hand(), []) == Timeline([], [])


def test_a_trace_has_a_lane_per_position_and_a_span_per_operation(programs):
    program = programs.program("1f1b", 2, 2, 3)
    timeline = run(program, programs.unit_times(program))
    trace = timeline_to_trace(program, programs.chain(2, 2), timeline)
    assert trace.lanes == ("stage 0", "stage 1")
    assert [span.op for span in trace.spans] == [op.id for op in program.ops]
    assert length_ns(trace) == (3 + 2 - 1) * 3
    assert {span.stream for span in trace.spans if span.lane == 1 and span.name == "send.B 0:0"} == {"send send.B 0"}
