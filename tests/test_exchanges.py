"""What is told of how rows reach their experts."""

import pytest

from moeplan.draft import draft
from moeplan.exchanges import exchange_text
from moeplan.layout import Colocated, Disaggregated
from moeplan.spec.override import override


def test_the_size_of_a_message_is_that_of_the_rows_for_one_rank(make_case):
    """2 of 8 experts, 4,096 tokens: 4,096 x 2 x (64 x 2 + 2 + 24) bytes over 8 ranks."""
    case = make_case(16, seq_len=4096)
    told = exchange_text(draft(case, Colocated(dp=16, ep=8), schedule="1f1b"))
    assert told == f"flat among 8 ranks, {4096 * 2 * (64 * 2 + 2 + 24) / 8 / 1024:.3g} KiB to each"


def test_padded_rows_count_in_a_message(make_case):
    case = override(make_case(16, seq_len=4096), ["execution.capacity=2"])
    told = exchange_text(draft(case, Colocated(dp=16, ep=8), schedule="1f1b"))
    assert f" {2 * 4096 * 2 * (64 * 2 + 2 + 24) / 8 / 1024:.3g} KiB" in told


@pytest.mark.parametrize(
    ("setting", "text"),
    [("execution.exchange=halo", "halo among 8 ranks"), ("execution.dispatcher=deepep", "deepep")],
)
def test_the_way_that_a_case_names_is_told(setting, text, make_case):
    case = override(make_case(16, per_node=4), [setting])
    assert exchange_text(draft(case, Colocated(dp=16, ep=8), schedule="1f1b")).startswith(text)


def test_between_two_sides_nothing_is_exchanged_inside_a_position(make_case):
    sides = Disaggregated(attention_gpus=8, ffn_gpus=8)
    assert exchange_text(draft(make_case(16), sides, schedule="af-pipe")) == "none"
