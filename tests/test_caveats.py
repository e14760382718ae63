"""What a user is told beside the numbers: which peak and FLOP an MFU takes, and what a checkpoint's type means."""

import re
from html import escape
from io import StringIO

import pytest
from msgspec import structs

from moeplan.batch import batch, sequences
from moeplan.caveats import (
    assumed_rates,
    batch_warnings,
    fit_warning,
    mfu_basis,
    mfu_warning,
    quantised_note,
    warnings_of,
)
from moeplan.closed import closed_estimate, short_note
from moeplan.cost.compute import peak_flop_per_s
from moeplan.draft import draft
from moeplan.errors import SpecError
from moeplan.estimator import estimate, estimate_facts
from moeplan.layout import Colocated
from moeplan.planner import optimize
from moeplan.report import plan_facts, print_estimate
from moeplan.resources.parameters import total_parameters
from moeplan.spec.cluster import first_gpus
from moeplan.spec.override import override
from moeplan.spec.shipped import load_calibration, load_cluster, load_model, shipped
from moeplan.units import FlopPerS


def test_the_peak_is_dense():
    """420 TFLOP/s on an H100 are 42 %, not the 21 % of its peak with sparsity."""
    peak = peak_flop_per_s(load_cluster("dgx-h100").gpu, "bf16")
    assert 420e12 / peak == pytest.approx(0.424, abs=0.001)


def test_an_element_type_without_a_peak_is_refused():
    gpu = structs.replace(load_cluster("dgx-h100").gpu, name="unknown", peak_flop_per_s={"fp32": FlopPerS(60e12)})
    with pytest.raises(SpecError, match="gpu 'unknown': no peak for bf16; the cluster file gives fp32"):
        peak_flop_per_s(gpu, "bf16")


@pytest.fixture
def told(make_case):
    case = make_case(8)
    return estimate(case, load_calibration(case.cluster.calibration), Colocated(dp=8, ep=4))


def test_an_mfu_says_what_it_divides_by_and_what_it_counts(told):
    for facts in (estimate_facts(told), plan_facts(told.plan)):
        assert facts["mfu_of"] == mfu_basis(told.plan.case, told.plan.predictions.peak_flop_per_s)
    assert mfu_basis(told.plan.case, 989.5e12).startswith(
        "989.5 TFLOP/s per GPU (dense bf16); active experts, causal half"
    )


@pytest.mark.parametrize(("mfu", "warns"), [(0.5, False), (1.0, False), (1.52, True)])
def test_more_than_all_of_the_peak_is_a_warning(told, mfu, warns):
    plan = structs.replace(told.plan, predictions=structs.replace(told.plan.predictions, mfu=mfu))
    assert any("MFU 152% is more than the GPUs can do" in warning for warning in warnings_of(plan)) == warns


@pytest.mark.parametrize(("linear", "cause"), [("same", "more than the GPUs can do"), ("fp8", "multiply in fp8")])
def test_an_mfu_above_one_tells_of_a_narrower_type_where_there_is_one(told, linear, cause):
    """Of 67 TFLOP/s in fp32, products in fp8 reach several times the peak."""
    case = override(told.plan.case, [f"execution.linear={linear}"])
    assert mfu_warning(case, 1.0) == ""
    assert mfu_warning(case, 2.88).startswith("MFU 288% is ")
    assert cause in mfu_warning(case, 2.88)


@pytest.mark.parametrize(
    ("zero", "layout", "warns"),
    [(3, Colocated(pp=2, dp=4), True), (3, Colocated(dp=8), False), (2, Colocated(pp=8), 0)],
)
def test_weights_that_stay_gathered_in_a_pipeline_are_told(make_case, zero, layout, warns):
    case = override(make_case(8, num_layers=8), [f"memory.zero={zero}"])
    found = [text for text in warnings_of(draft(case, layout, schedule="1f1b")) if "stay gathered" in text]
    assert len(found) == warns
    assert all(text.startswith(f"memory.zero 3 with {layout.pp} pipeline positions: all weights") for text in found)


def test_an_estimate_tells_the_warnings_of_its_plan(make_case):
    """On paper, in a notebook and as plain numbers; how much is short stands in place of what is needed."""
    case = override(make_case(8, model="gpt-oss-20b"), ["memory.zero=3", "memory.usable=0.01"])
    told, out = estimate(case, load_calibration("h800"), Colocated(pp=2, dp=4, ep=4)), StringIO()
    print_estimate(told, out)
    assert quantised_note(case.model) in told.notes
    for note in told.notes:
        assert note in out.getvalue()
        assert escape(note) in told._repr_html_()
    assert told.to_dict()["warnings"] == list(told.plan.warnings)
    assert set(told.notes) ^ set(told.plan.warnings) == {fit_warning(told.plan), told.notes[-1]}
    assert told.notes[-1] == short_note(told.short_bytes)


def test_a_quantised_checkpoint_is_trained_in_the_workloads_type(make_case):
    """gpt-oss-20b is published in mxfp4; its weights count in bf16, 41.83 GB or 38.96 GiB."""
    model = load_model("gpt-oss-20b")
    plan = draft(make_case(8, model="gpt-oss-20b"), Colocated(dp=8, ep=8), schedule="1f1b")
    assert quantised_note(model) in warnings_of(plan)
    assert "mxfp4" in quantised_note(model)
    weights = total_parameters(model) * plan.case.memory.weight_bytes
    assert (round(weights / 1e9, 2), round(weights / 2**30, 2)) == (41.83, 38.96)


@pytest.mark.parametrize(
    ("cluster", "linear", "told"),
    [
        ("h800-16x8", "mxfp8", "the share that fp8_block reach, of a dense peak of 1979 TFLOP/s in fp8"),
        ("mi300x", "fp8", "the share that bf16 reach, of a dense peak of 2614.9 TFLOP/s in fp8"),
        ("mi355x", "nvfp4", "the share that bf16 reach, of a dense peak of 10066 TFLOP/s in fp4"),
        ("dgx-b200", "nvfp4", "times the share that fp8 or fp8_block reach, of a dense peak of 4500 TFLOP/s in fp8"),
        ("h800-16x8", "fp8_block", ""),
        ("mi300x", "same", ""),
    ],
)
def test_rates_that_nobody_measured_are_told_with_the_peak_they_are_of(cluster, linear, told, make_case):
    machine = load_cluster(cluster)
    case = override(structs.replace(make_case(8), cluster=first_gpus(machine, 8)), [f"execution.linear={linear}"])
    calibration = load_calibration(machine.calibration)
    noted = assumed_rates(case, calibration)
    assert len(noted) == bool(told)
    assert all(text.startswith(f"execution.linear {linear}: rates assumed: ") and text.endswith(told) for text in noted)
    assert set(noted) <= set(estimate(case, calibration, Colocated(dp=8)).notes)
    assert set(noted) <= set(optimize(case, calibration, families="colocated").best.warnings)
    closed = closed_estimate(case, calibration, Colocated(dp=4, pp=2), schedule="zb-h1")
    assert set(noted) <= set(closed.warnings)


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "shards", "told"),
    [
        (16, 2, 4, []),
        (15, 2, 4, [r"the last micro-batch is short: 15 sequences are not a multiple of 2 \* 4"]),
        (10, 2, 4, ["the last micro-batch is short: 10 .* 2 \\* 4; 2 of 4 data-parallel ranks have none of it"]),
        (3, 1, 4, ["the last .*; 1 of 4 data-parallel ranks have none of it", "3 sequences for 4 .*: some have none"]),
    ],
)
def test_sequences_that_do_not_divide_are_told(global_batch, micro_batch, shards, told, make_case):
    dealt = batch(global_batch, micro_batch, shards)
    noted = batch_warnings(dealt, 1)
    assert len(noted) == len(told)
    assert all(re.fullmatch(pattern, text) for pattern, text in zip(told, noted, strict=True))
    idle = sum(not sequences(dealt, dealt.microbatches - 1, shard) for shard in range(shards))
    assert all((f"; {idle} of {shards}" in text) == (idle > 0) for text in noted[:1])
    case, layout = make_case(shards, global_batch=global_batch), Colocated(dp=shards, micro_batch=micro_batch)
    assert set(noted) <= set(estimate(case, load_calibration("h800"), layout).notes)
    assert set(noted) <= set(closed_estimate(case, load_calibration("h800"), layout, schedule="zb-h1").warnings)


def test_a_plan_shows_the_settings_it_was_made_with(make_case):
    settings = ["execution.hidden=expert,tensor", "execution.flash_attention=false", "execution.kernels=fused"]
    case = override(make_case(8), [*settings, "memory.communicator=600 MB", "memory.zero=2"])
    facts = plan_facts(estimate(case, load_calibration("h800"), Colocated(dp=8)).plan)
    for root in ("execution", "memory"):
        told = [f"{root}.{setting}" for setting in re.split(r", (?=\w+=)", facts[root])]
        assert getattr(override(make_case(8), told), root) == getattr(case, root)
    usual = plan_facts(estimate(make_case(8), load_calibration("h800"), Colocated(dp=8)).plan)
    assert usual["execution"] == usual["memory"] == "as moeplan run"


def test_plain_checkpoints_have_no_note():
    noted = {name for name in shipped("model") if quantised_note(load_model(name))}
    assert noted == {"deepseek-v3", "gpt-oss-20b", "gpt-oss-120b", "kimi-k2"}
