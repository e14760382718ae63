"""Runs that no constant was fitted to: a table apart, read as a user's own table is."""

import pytest

from moeplan.validation import validate
from moeplan.validation.names import PUBLISHED
from moeplan.validation.scores import Validation, coverage, every_row, score
from moeplan.validation.tables import Run, read_table
from moeplan.validation.unread import unread

TABLE = PUBLISHED / "elsewhere.csv"


@pytest.fixture(scope="module")
def jobs():
    return read_table(TABLE, Run)


@pytest.fixture(scope="module")
def found():
    return validate(runs=TABLE, names=PUBLISHED / "elsewhere-names.csv")


def test_no_row_is_in_another_table(jobs, published_runs):
    """Neither under its id nor under another: GPUs, batch, length and what was measured."""

    def key(run):
        return (run.gpus, run.global_batch, run.seq_len, run.measured_step_s, run.measured_tokens_per_s_per_gpu)

    others = published_runs.values()
    assert all(run.source for run in jobs)
    assert len({key(run) for run in jobs}) == len(jobs)
    assert not {key(run) for run in jobs} & {key(run) for run in others}
    assert not {run.id.split("-")[0] for run in jobs} & {run.id.split("-")[0] for run in others}


def test_every_row_is_predicted_and_every_word_of_its_software_understood(jobs, found):
    told = {(row.id, row.measure) for row in found.outcomes}
    assert not found.skipped
    assert {(run.id, "step_time") for run in jobs} <= told
    assert {(run.id, "peak_memory") for run in jobs if run.measured_peak_mem_gb} <= told
    assert not [word for run in jobs for word in unread(run)]


def test_steps_are_as_near_and_intervals_as_wide_as_is_said_of_the_other_tables(found):
    steps = [row for row in found.outcomes if row.measure == "step_time"]
    told = score(steps)
    assert told.median_ape < 0.15
    assert told.p90_ape < 0.36
    assert abs(told.bias) < 0.1
    assert 0.8 <= coverage(steps).within <= 0.97


def test_a_table_apart_is_in_no_other_score(found):
    steps = tuple(row for row in found.outcomes if row.measure == "step_time")
    apart = Validation((), (), 0, elsewhere=steps).to_dict()
    assert "elsewhere" not in Validation(steps, (), 0).to_dict()
    assert apart["overall"]["step_time"]["rows"] == 0
    assert apart["elsewhere"]["overall"]["step_time"] == score(steps)._asdict()
    assert apart["elsewhere"]["intervals"]["step_time"] == coverage(steps)._asdict()
    assert [row["id"] for row in apart["elsewhere"]["rows"]] == [row.id for row in steps]


def test_each_row_says_whether_its_interval_holds_the_measurement(found):
    rows = every_row(found.outcomes)
    inside = {row["id"] for row in rows if row["measure"] == "step time" and row["inside"] == "true"}
    steps = [row for row in found.outcomes if row.measure == "step_time"]
    assert inside == {row.id for row in steps if row.low <= row.measured <= row.high}
    assert {row["inside"] for row in rows if row["measure"] == "peak memory"} == {""}
