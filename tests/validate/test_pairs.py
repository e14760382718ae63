"""Pairs of runs that differ in one thing."""

import pytest

from moeplan.validation.alike import source_of
from moeplan.validation.names import PUBLISHED
from moeplan.validation.outcome import Outcome
from moeplan.validation.pairs import (
    Pair,
    Ratio,
    pair_rows,
    pair_score,
    pair_score_rows,
    pair_scores,
    ratios,
    read_pairs,
)
from moeplan.validation.set_aside import read_set_aside


def outcome(number, predicted, measured, measure="step_time", listed=""):
    return Outcome(number, measure, predicted, measured, listed=listed)


def test_a_ratio_is_of_seconds_per_token():
    pairs = [Pair(id_a="A-1", id_b="A-2", what="x"), Pair(id_a="A-1", id_b="A-3", what="y")]
    outcomes = [outcome("A-1", 10.0, 8.0), outcome("A-2", 15.0, 20.0), outcome("A-3", 1.0, 1.0, "peak_memory")]
    (found,) = ratios(pairs, outcomes, {"A-1": 1.0, "A-2": 2.0})
    assert (found.predicted, found.measured) == (0.75, 1.25)
    assert found.error == pytest.approx(-0.4)
    assert found.sign_right is False


def test_what_sets_both_steps_aside_leaves_their_ratio():
    """A batch that is not published cancels out; a regression in one of both does not."""
    kept = [outcome("A-1", 1.0, 2.0, listed="x"), outcome("A-2", 1.0, 2.0, listed="x"), outcome("A-3", 1.0, 2.0)]
    pairs = [Pair(id_a="A-1", id_b="A-2", what="y"), Pair(id_a="A-1", id_b="A-3", what="y")]
    found = ratios(pairs, kept, {row.id: 1.0 for row in kept})
    assert [ratio.listed for ratio in found] == ["", "x"]
    assert [pair_scores(found)["pairs"], pair_scores(found)["without_listed"]["pairs"]] == [2, 1]
    rows = pair_score_rows({"as shipped": found, "never saw the model": found[:1]})
    assert [(row["constants"], row["of"], row["pairs"]) for row in rows] == [
        ("as shipped", "all", 2),
        ("as shipped", "all but those listed", 1),
        ("never saw the model", "all", 1),
    ]


@pytest.mark.parametrize(
    ("predicted", "measured", "right"), [(0.9, 0.5, True), (1.1, 0.94, False), (1.1, 0.96, None), (1.2, 1.06, True)]
)
def test_small_effects_have_no_sign(predicted, measured, right):
    assert Ratio("a", "b", "x", predicted, measured).sign_right is right


def test_scores_of_ratios_by_hand():
    found = [Ratio("a", "b", "x", 1.0 + i / 10, 1.0) for i in range(3)] + [Ratio("a", "b", "x", 0.6, 0.5)]
    told = pair_score(found)
    assert told == {"pairs": 4, "median_ape": pytest.approx(0.15), "p90_ape": pytest.approx(0.2), "effects": 1} | {
        "sign_right": 1
    }
    assert pair_score([])["median_ape"] is None
    assert [row["error_%"] for row in pair_rows(found)][:2] == pytest.approx([20.0, 20.0])


def test_published_pairs_are_runs_of_one_source(published_runs):
    pairs = read_pairs(PUBLISHED / "pairs.csv")
    assert len(pairs) >= 30
    assert len({(pair.id_a, pair.id_b) for pair in pairs}) == len(pairs)
    for pair in pairs:
        a, b = published_runs[pair.id_a], published_runs[pair.id_b]
        assert (source_of(a), a.model, pair.id_a) != (source_of(b), b.model, pair.id_b)
        assert (source_of(a), a.model) == (source_of(b), b.model)


def test_rows_set_aside_are_few_and_have_reasons(published_runs):
    """At most 8 % of the table."""
    aside = read_set_aside(PUBLISHED / "set_aside.csv")
    rows = {number for number, _ in aside}
    assert rows <= set(published_runs)
    assert len(rows) <= 0.08 * len(published_runs)
    assert {measure for _, measure in aside} <= {"step_time", "peak_memory"}
