"""What a schedule is: text, what precedes what, and the refusal of every order that is not legal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import ScheduleError
from moeplan.schedule import (
    Action,
    Shape,
    alternate,
    check,
    dependencies,
    from_text,
    in_groups,
    to_text,
    without_phantoms,
)

ACTIONS = st.builds(Action, st.integers(0, 99), st.sampled_from("FBIW"), st.integers(0, 999))
HOMES = ((0,), (1,))


def rows(*texts):
    return tuple(from_text(text, where="row") for text in texts)


@given(st.lists(st.lists(ACTIONS, min_size=1, max_size=2).map(tuple)))
def test_text_read_back_is_equal(steps):
    assert from_text(to_text(steps), where="row") == tuple(steps)


@pytest.mark.parametrize("word", ["F0", "0F", "0X0", "0F0&", "&", "-1F0", "0F0.5", "0F0&&0B0", "1" * 30 + "F0", "0f0"])
def test_a_word_that_is_no_step_is_named(word):
    with pytest.raises(ScheduleError, match=r"position 3: step 1 "):
        from_text(f"0F0 {word}", where="position 3")


@pytest.mark.parametrize(
    ("action", "needs"),
    [
        ("0F3", []),
        ("2F3", [["1F3"]]),
        ("1B3", [["1F3"], ["2B3", "2I3"]]),
        ("1I3", [["1F3"], ["2B3", "2I3"]]),
        ("2B3", [["2F3"]]),
        ("1W3", [["1I3"]]),
    ],
)
def test_dependencies(action, needs):
    ((step,),) = rows(action)
    assert [[str(a) for a in options] for options in dependencies(step[0], 3)] == needs


@pytest.mark.parametrize(
    "texts",
    [
        ("0F0 0B0", "1F0 1B0"),
        ("0F0 0I0 0W0", "1F0 1I0 1W0"),
        ("0F0 0B0", "1F0 1I0 1W0"),
    ],
)
def test_full_and_split_backwards_are_complete(texts):
    check(rows(*texts), HOMES, 1)


def test_an_overlapped_pair_counts_as_two_actions():
    check(rows("0F0 0F1 0B0&0F2 0B1 0B2", "1F0 1B0&1F1 1B1&1F2 1B2"), HOMES, 3)


def test_microbatches_of_one_stage_may_live_at_several_positions():
    homes = ((0, 1), (1, 0))
    check(rows("0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"), homes, 2)
    with pytest.raises(ScheduleError, match="position 0, step 0: 0F1 belongs to position 1"):
        check(rows("0F1 1F1 1B1 0B1", "0F0 1F0 1B0 0B0"), homes, 2)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("0F0 0B0",), "1 positions, the layout has 2"),
        (("0F0 0B0", "1F0"), "stage 1, micro-batch 0 has F; F and B, or F, I and W, are due"),
        (("0F0 0B0", ""), "stage 1, micro-batch 0 has nothing"),
        (("0F0 0B0", "1F0 1I0"), "stage 1, micro-batch 0 has FI;"),
        (("0F0 0B0", "1F0 1B0 1W0"), "stage 1, micro-batch 0 has FBW;"),
        (("0F0 0B0 0F0", "1F0 1B0"), "position 0, step 2: 0F0 stands twice"),
        (("0F0&0F0 0B0", "1F0 1B0"), "position 0, step 0: 0F0 stands twice"),
        (("0F0 0B0 1F0", "1B0"), "position 0, step 2: 1F0 belongs to position 1"),
        (("0F0 0B0", "1F0 1B0 2F0"), "position 1, step 2: 2F0 is outside of 2 stages, 1 micro-batches"),
        (("0F0 0B0", "1F0 1B0 1F1"), "position 1, step 2: 1F1 is outside of 2 stages, 1 micro-batches"),
        (("0B0 0F0", "1F0 1B0"), "position 0, step 0: 0B0 waits for 0F0 1B0|1I0; position 1, step 0: 1F0 waits"),
        (("0F0 0B0", "1B0 1F0"), "position 0, step 1: 0B0 waits for 1B0|1I0; position 1, step 0: 1B0 waits for 1F0"),
        (("0F0&0B0", "1F0 1B0"), "position 0, step 0: 0F0&0B0 waits for 0F0 1B0|1I0"),
        (("0F0 0W0 0I0", "1F0 1B0"), "position 0, step 1: 0W0 waits for 0I0"),
    ],
)
def test_an_illegal_order_is_refused_with_its_place(texts, message):
    with pytest.raises(ScheduleError) as caught:
        check(rows(*texts), HOMES, 1)
    assert message in str(caught.value)


def test_groups_pass_one_chunk_before_the_next():
    shape = Shape(positions=2, stages=4, microbatches=3)
    forwards = " ".join(map(str, in_groups(shape, 1, "F")))
    assert forwards == "1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3"
    backwards = " ".join(map(str, in_groups(shape, 1, "B")))
    assert backwards == "3B0 3B1 1B0 1B1 3B2 3B3 1B2 1B3"
    assert to_text(without_phantoms(in_groups(shape, 1, "F"), shape)) == "1F0 1F1 3F0 3F1 1F2 3F2"


@given(st.integers(0, 8), st.integers(0, 12))
def test_alternate_keeps_both_orders(count, warmup):
    forwards = [Action(0, "F", m) for m in range(count)]
    backwards = [Action(0, "B", m) for m in range(count)]
    order = alternate(forwards, backwards, warmup)
    assert [a for a in order if a.kind == "F"] == forwards
    assert [a for a in order if a.kind == "B"] == backwards
    assert order[: min(warmup, count)] == forwards[:warmup]
