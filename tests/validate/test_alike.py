"""Empty cells that other rows of the table tell, and ladders."""

import pytest

from moeplan.validation.alike import ladders, told


@pytest.fixture
def rows(run_row):
    def make(*changes):
        return [run_row(id=f"OWN-{number}", **change) for number, change in enumerate(changes)]

    return make


def test_an_empty_cell_is_taken_from_the_row_most_alike(rows):
    table = rows(
        {"vpp": 2, "dtype": "FP8"},
        {"vpp": None, "dtype": "BF16", "micro_batch": 2},
        {"vpp": 4, "dtype": "BF16"},
        {"vpp": 5, "dtype": "BF16", "model": "mixtral-8x7b"},
    )
    found = told(table)["OWN-1"]
    assert found.run.vpp == 4
    assert found.borrowed == {"vpp": "OWN-2"}
    assert found.values == {"vpp": (2, 4)}
    assert told(table)["OWN-0"].borrowed == {}


def test_of_rows_as_much_alike_the_nearest_counts(rows):
    empty = {"recompute": None}
    table = rows({"recompute": "none"}, {"recompute": "selective:moe"}, empty, empty, {"recompute": "full"})
    assert [told(table)[f"OWN-{number}"].run.recompute for number in (2, 3)] == ["selective:moe", "full"]


def test_nothing_is_taken_from_another_source_machine_or_number_of_stages(rows, run_row):
    table = [*rows({"vpp": None}, {"vpp": 2, "pp": 4}, {"vpp": 2, "hardware": "frontier"}), run_row(id="X-1", vpp=2)]
    assert told(table)["OWN-0"].run.vpp is None


def test_without_a_pipeline_there_are_no_virtual_stages_to_take(rows):
    assert told(rows({"vpp": None, "pp": 1}, {"vpp": 2, "pp": 1}))["OWN-0"].run.vpp is None


def test_a_ladder_carries_its_words(rows):
    words = ("baseline alltoall", "+loss fusion", "+DeepEP", "all opts", "alltoall", "+DeepEP")
    found = ladders(rows(*({"dispatcher_or_overlap": text} for text in words)))
    assert [run.dispatcher_or_overlap for run in found] == [
        "baseline alltoall",
        "baseline alltoall; +loss fusion",
        "baseline alltoall; +loss fusion; +DeepEP",
        "baseline alltoall; +loss fusion; +DeepEP; all opts",
        "alltoall",
        "alltoall; +DeepEP",
    ]


@pytest.mark.parametrize("change", [{"model": "mixtral-8x7b"}, {"gpus": 16}, {"hardware": "frontier"}])
def test_another_job_starts_another_ladder(rows, change):
    found = ladders(rows({"dispatcher_or_overlap": "alltoall"}, {"dispatcher_or_overlap": "+DeepEP"} | change))
    assert found[1].dispatcher_or_overlap == "+DeepEP"
