"""A few micro-batches show the most bytes that any order of more of them reaches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.draft import draft_with_steps
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.optimizer.candidate import RECOMPUTE, Candidate
from moeplan.optimizer.evaluate import footprint
from moeplan.optimizer.room import Room, enough
from moeplan.schedule import Shape

LAYOUTS = (
    (Colocated(pp=4, dp=2, ep=2), "1f1b"),
    (Colocated(pp=4, dp=2, ep=2), "gpipe"),
    (Colocated(pp=2, vpp=3, dp=4, ep=2), "interleaved"),
    (Colocated(pp=4, vpp=2, dp=2, split=(3, 1, 1, 1, 1, 1, 1, 1)), "interleaved"),
    (Piper(pp=8), "1f1b"),
    (Disaggregated(attention_gpus=4, ffn_gpus=4), "af-pipe"),
    (Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4, depth=2), "af-pipe"),
    (Disaggregated(pairs=3, attention_gpus=3, ffn_gpus=3), "af-pipe"),
    (Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4), "interleaved"),
)


@given(
    drawn=st.sampled_from(LAYOUTS),
    rule=st.sampled_from(RECOMPUTE),
    global_batch=st.integers(1, 300),
    num_layers=st.integers(8, 11),
    dense_layers=st.integers(0, 3),
)
def test_it_is_the_peak_of_the_whole_order(make_case, drawn, rule, global_batch, num_layers, dense_layers):
    layout, schedule = drawn
    if getattr(layout, "split", ()):
        num_layers = sum(layout.split)
    shape = {"num_layers": num_layers, "dense_layers": dense_layers, "dense_width": 48}
    case = make_case(8, global_batch=global_batch, **shape)
    plan, steps = draft_with_steps(case, layout, schedule=schedule, recompute=rule)
    whole = max(footprint(plan, steps).peak)
    assert Room(case).peak_bytes(Candidate(layout, schedule, rule)) == pytest.approx(whole, rel=1e-12)


def test_only_gpipe_needs_all_micro_batches():
    shape = Shape(4, 8, 1000)
    assert enough("gpipe", shape).microbatches == 1000
    assert enough("interleaved", shape).microbatches == 16
    assert enough("af-pipe", shape._replace(depth=2.0)).microbatches == 32
    assert enough("1f1b", shape._replace(microbatches=3)).microbatches == 3


def test_candidates_that_differ_in_recompute_share_an_outline(make_case):
    case = make_case(8)
    room = Room(case)
    candidate = Candidate(Colocated(pp=2, dp=4), "1f1b", Recompute())
    peaks = [room.peak_bytes(candidate._replace(recompute=rule)) for rule in RECOMPUTE]
    assert len(room.outlines) == 1
    assert len(set(peaks)) > 1
