"""Memory of schedules in closed form: micro-batches alive, a V of stages, and DualPipe's two copies."""

import numpy as np
import pytest
from msgspec import structs

from moeplan.draft import draft
from moeplan.errors import SpecError
from moeplan.layout import Colocated, Disaggregated, Recompute
from moeplan.layouts import stages
from moeplan.peaks import peak_of
from moeplan.plan import steps_of
from moeplan.resources.memory import CLOSED, IN_V, in_v, state_bytes, tracks
from moeplan.resources.memory.closed import alive
from moeplan.resources.memory.state import static_bytes
from moeplan.resources.memory.track import waits_since
from moeplan.schedule import Shape
from moeplan.schedules import make
from moeplan.spec.workload import Memory

NONE = Recompute()


def whole(schedule, position, positions, microbatches):
    """Micro-batches of a whole position that are alive: half stages count half."""
    return sum(alive(schedule, position, positions, microbatches).values()) / (2 if schedule in IN_V else 1)


def test_micro_batches_alive_are_the_papers():
    """Of eight positions the fullest: ZB-H1 as 1F1B, ZB-V as many, V-Half 5, V-Min 4 (arXiv 2405.15362), DualPipe 9."""
    fullest = {s: max(whole(s, r, 8, 32) for r in range(8)) for s in CLOSED}
    assert fullest == {"zb-h1": 8, "zb-h2": 15, "zbv": 8, "v-half": 5, "v-min": 4, "dualpipe": 9}


@pytest.mark.parametrize("positions", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("schedule", [*IN_V, "dualpipe"])
def test_positions_of_a_v_and_of_two_directions_keep_as_much(schedule, positions):
    assert np.ptp([whole(schedule, r, positions, 1000) for r in range(positions)]) == pytest.approx(0)


@pytest.mark.parametrize("schedule", CLOSED)
def test_no_more_is_alive_than_there_is(schedule):
    assert max(max(alive(schedule, r, 8, 2).values()) for r in range(8)) <= 2


def test_a_schedule_nobody_knows_is_refused():
    with pytest.raises(SpecError, match="'other' has no closed form of memory; right is one of zb-h1"):
        alive("other", 0, 8, 8)


def test_zero_bubble_needs_what_1f1b_needs_where_no_rows_wait(make_case):
    """As many micro-batches and the same state; only rows that wait between actions are not counted."""
    case = make_case(4, num_layers=8, global_batch=32)
    told = peak_of(case, Colocated(pp=4), NONE, "zb-h1").bytes
    assert told == pytest.approx(peak_of(case, Colocated(pp=4), NONE, "1f1b").bytes, rel=0.03)


def test_in_a_v_the_first_position_holds_both_ends(make_case):
    case = make_case(4, num_layers=8)
    graph = in_v(case, stages(case, Colocated(pp=4, vpp=2)))
    assert graph.stages == ((0,), (1,), (2,), (3,), (3,), (2,), (1,), (0,))
    assert [graph.stages[p.stage] for p in graph.pieces if p.kind in ("embedding", "head")] == [(0,), (0,)]
    turn = [e.kind for e, a, b in zip(graph.edges, graph.pieces, graph.pieces[1:], strict=False) if b.stage > a.stage]
    assert turn == ["send"] * 3 + ["local"] + ["send"] * 3


def test_schedules_in_a_v_order_by_their_memory(make_case):
    case = make_case(8, num_layers=16, global_batch=64, seq_len=512)
    most = [max(peak_of(case, Colocated(pp=8), NONE, schedule).bytes) for schedule in ("v-min", "v-half", "zbv")]
    assert most == sorted(most)


@pytest.mark.parametrize("zero", [0, 1])
def test_dualpipe_holds_two_stages_and_shares_their_states(make_case, zero):
    """Weights and gradients of its stage and the opposite one; of optimizer states half of both, where ZeRO shares."""
    case = make_case(8, num_layers=8, global_batch=64, memory=Memory(zero=zero))
    graph = stages(case, Colocated(pp=4, dp=2))
    small = structs.replace(case, workload=structs.replace(case.workload, seq_len=1))
    told = peak_of(small, Colocated(pp=4, dp=2), NONE, "dualpipe").bytes
    both = [[state_bytes(case, graph, p) for p in (r, 3 - r)] for r in range(4)]
    whole_ = [sum(sum(one) for one in pair) for pair in both]
    states = [sum(one.main + one.optimizer for one in pair) for pair in both]
    expected = [w - (s / 2 if zero else 0) for w, s in zip(whole_, states, strict=True)]
    assert told == pytest.approx(expected, rel=0.08)
    assert min(a / static_bytes(case, graph, p) for p, a in enumerate(told)) > (1.2 if zero else 1.9)


@pytest.mark.parametrize(
    ("layout", "schedule"),
    [
        (Colocated(pp=4), "1f1b"),
        (Colocated(pp=4, vpp=2), "interleaved"),
        (Colocated(pp=2, vpp=3), "interleaved"),
        (Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=2), "af-pipe"),
    ],
)
def test_a_short_order_shows_what_a_long_one_needs(make_case, layout, schedule):
    case = make_case(4 if layout != Colocated(pp=2, vpp=3) else 2, num_layers=8, global_batch=16)
    bytes_ = peak_of(case, layout, NONE, schedule).bytes
    for batch in (40, 160):
        longer = structs.replace(case, workload=structs.replace(case.workload, global_batch=batch))
        assert peak_of(longer, layout, NONE, schedule).bytes == pytest.approx(bytes_, rel=1e-9)


def test_rows_wait_where_they_come_before_their_turn(make_case):
    """In GPipe forwards come one by one and never wait; gradients do not either."""
    first, last = tracks(make("gpipe", Shape(2, 2, 4)))
    assert list(waits_since(first)[:4]) == list(range(4))
    assert all(waits_since(last)[4:] == range(4, 8))
    plan = draft(make_case(2, num_layers=4, global_batch=4), Colocated(pp=2), schedule="gpipe")
    assert len(tracks(steps_of(plan))[0].stages) == 8
