"""What a source's software does without saying so."""

import pytest

from moeplan.errors import SpecError
from moeplan.validation.names import PUBLISHED
from moeplan.validation.stacks import Stack, Stacks, Unknown, read_stacks
from moeplan.validation.tables import Run


def test_conditions_come_after_the_rows_own_words_the_rest_before(run_row):
    stacks = Stacks(
        [
            Stack(rows="OWN X", settings="execution.kernels=fused; execution.linear=mxfp8", hidden="gradients"),
            Stack(rows="OWN", where="dtype=FP8|FP4", settings="execution.linear=fp8_block"),
            Stack(rows="Y", settings="execution.graphs=step"),
        ]
    )
    assert stacks.settings(run_row(dtype="FP8", dispatcher_or_overlap="ep_a2a_overlap")) == [
        "execution.kernels=fused",
        "execution.linear=mxfp8",
        "execution.linear=fp8",
        "execution.hidden=['expert', 'gradients']",
        "execution.linear=fp8_block",
    ]
    assert stacks.settings(run_row(id="Z-1")) == ["execution.linear=same"]


def test_lines_are_about_a_prefix_or_one_row_not_about_how_ids_begin(run_row):
    stacks = Stacks([Stack(rows="OWN", settings="a=1"), Stack(rows="OWN-1", settings="b=2")])
    assert stacks.settings(run_row())[:2] == ["a=1", "b=2"]
    assert stacks.settings(run_row(id="OWN-10"))[:1] == ["a=1"]
    assert stacks.settings(run_row(id="OWNER-1")) == ["execution.linear=same"]


def test_a_prefix_is_a_publication_only_with_its_source(run_row):
    stacks = Stacks([Stack(rows="OWN", settings="a=1", unknown="b: c=3")], sources=frozenset({("OWN", "a paper")}))
    known, other = run_row(source="a paper"), run_row(source="mine")
    assert (stacks.knows(known), stacks.settings(known)[0], len(stacks.unknown(known))) == (True, "a=1", 1)
    assert (stacks.knows(other), stacks.settings(other), stacks.unknown(other)) == (
        False,
        ["execution.linear=same"],
        [],
    )


def test_what_is_open_is_read_with_its_alternatives(run_row):
    line = Stack(rows="OWN", unknown="gradients: a=1 & b=2 | c=3; recompute: d=4")
    gradients = Unknown("gradients", (("a=1", "b=2"), ("c=3",)))
    assert Stacks([line]).unknown(run_row()) == [gradients, Unknown("recompute", (("d=4",),))]
    assert Stacks([line]).unknown(run_row(recompute="none")) == [gradients]
    narrower = Stack(rows="OWN-1", unknown="gradients: e=5")
    assert Stacks([line, narrower]).unknown(run_row(recompute="none")) == [Unknown("gradients", (("e=5",),))]


def test_a_condition_on_no_column_is_one_line(tmp_path):
    path = tmp_path / "stacks.csv"
    path.write_text("rows,where,hidden,settings,unknown\nA,colour=red,,execution.graphs=step,\n")
    with pytest.raises(SpecError, match=r"stacks.csv \(A\): where 'colour=red': no column 'colour' of runs"):
        read_stacks(path)


def test_every_source_that_ships_has_a_practice_with_a_source(published_runs):
    lines = read_stacks(PUBLISHED / "stacks.csv")._lines
    assert all(line.note for line in lines)
    general = [word for line in lines if not line.where for word in line.rows.split()]
    alone = {run.id.split("-")[0] for run in published_runs.values() if not run.id.startswith(tuple(general))}
    assert alone <= {"ZOO"}


def test_a_row_of_no_known_source_has_only_its_own_words():
    row = Run(id="HOME-1", model="m", hardware="h", gpus=1, dtype="FP8")
    assert read_stacks(PUBLISHED / "stacks.csv").settings(row) == ["execution.linear=fp8"]


FP32_ALONE = ("memory.bytes_per_parameter=16", "memory.weight_bytes=0")


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("FSDP", [*FP32_ALONE, "execution.hidden=['gradients', 'parameters']"]),
        ("FSDP; no overlap of DP", [*FP32_ALONE, "execution.hidden=['parameters']"]),
        ("Megatron-FSDP", ["execution.kernels=fused", "execution.hidden=['gradients', 'parameters']"]),
        ("DeepSpeed ZeRO-3", ["execution.hidden=['gradients', 'parameters']"]),
        ("ZeRO-2", []),
        ("Megatron-LM", ["execution.kernels=fused"]),
        ("Megatron-DeepSpeed", []),
        ("NeMo; execution.kernels=eager", ["execution.kernels=fused", "execution.kernels=eager"]),
    ],
)
def test_software_of_which_nothing_more_is_told_does_what_it_does_by_default(run_row, words, settings):
    found = Stacks().settings(run_row(dispatcher_or_overlap=words))
    assert [one for one in found if one.startswith(("execution.hidden", "execution.kernels", *FP32_ALONE))] == settings


def test_what_a_source_is_known_to_do_stands_instead(run_row):
    stacks = Stacks([Stack(rows="OWN", settings="execution.kernels=eager", hidden="parameters")])
    found = stacks.settings(run_row(dispatcher_or_overlap="Megatron-LM; FSDP"))
    assert [one for one in found if one.startswith("execution.kernels")] == ["execution.kernels=eager"]
    assert "execution.hidden=['parameters']" in found
