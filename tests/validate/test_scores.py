"""Scores against numbers worked out by hand."""

import pytest

from moeplan.validation.outcome import MEASURES, Outcome, Skipped
from moeplan.validation.scores import Validation, score, sorted_out, worst


def outcome(number, predicted, measured=10.0, measure="step_time", model="", accelerator="", kind=""):
    return Outcome(number, measure, predicted, measured, model, accelerator, kind)


def test_median_percentile_and_bias_by_hand():
    """Errors -20, -10, 0, +10 and +40 %: absolute 0, 10, 10, 20, 40."""
    told = score([outcome(f"A-{i}", p) for i, p in enumerate((8.0, 9.0, 10.0, 11.0, 14.0))])
    assert told.rows == 5
    assert told.median_ape == pytest.approx(0.1)
    assert told.p90_ape == pytest.approx(0.2 + 0.6 * 0.2)
    assert told.bias == pytest.approx(0.04)


def test_one_row_is_its_own_percentile():
    told = score([outcome("A-1", 5.0)])
    assert (told.median_ape, told.p90_ape, told.bias) == (0.5, 0.5, -0.5)


def test_no_rows_have_no_error():
    assert score([]) == (0, None, None, None)


ROWS = (
    outcome("A-1", 11.0, model="m", accelerator="x", kind="moe"),
    outcome("A-2", 12.0, model="m", accelerator="y", kind="moe"),
    outcome("B-1", 5.0, model="n", accelerator="x", kind="dense"),
    outcome("B-2", 20.0, measure="gemm", accelerator="x"),
    Skipped("B-3", "gemm", "no peak"),
    Skipped("B-4", "gemm", "no peak"),
    Skipped("B-5", "flop", "no peak"),
)


def test_groups_hold_the_scores_of_their_rows():
    told = sorted_out(ROWS, 7).to_dict()
    assert told["overall"]["step_time"]["rows"] == 3
    assert told["overall"]["step_time"]["bias"] == pytest.approx((0.1 + 0.2 - 0.5) / 3)
    assert list(told["overall"]) == list(MEASURES)
    assert told["overall"]["parameters"] == {"rows": 0, "median_ape": None, "p90_ape": None, "bias": None}
    assert told["by_source"]["A"]["step_time"]["median_ape"] == pytest.approx(0.15)
    assert set(told["by_source"]["B"]) == {"step_time", "gemm"}
    assert {name: scores["step_time"]["rows"] for name, scores in told["by_model"].items()} == {"m": 2, "n": 1}
    assert told["by_accelerator"]["x"]["step_time"]["bias"] == pytest.approx(-0.2)
    assert set(told["by_kind"]) == {"dense", "moe"}
    assert told["skipped"] == {"gemm: no peak": 2, "flop: no peak": 1}
    assert told["left_for_fits"] == 7


def test_the_worst_come_first_whatever_their_sign():
    assert [row.id for row in worst(sorted_out(ROWS, 0).outcomes, "step_time")] == ["B-1", "A-2", "A-1"]


def test_a_table_of_all_rows():
    frame = sorted_out(ROWS, 0).to_dataframe()
    assert list(frame["id"]) == ["A-1", "A-2", "B-1", "B-2"]
    assert frame["error"].tolist() == pytest.approx([0.1, 0.2, -0.5, 1.0])


def test_nothing_to_compare():
    told = Validation((), (), 0).to_dict()
    assert (told["by_source"], told["worst"], told["skipped"]) == ({}, [], {})
