"""Runs: what is measured, what is assumed, what is predicted, and why some rows are left out."""

import re

import pytest

from moeplan.analytic.step import FIXED_S
from moeplan.estimator import estimate
from moeplan.layout import Colocated
from moeplan.spec.case import Case
from moeplan.spec.shipped import load_model
from moeplan.spec.workload import Workload
from moeplan.validation.flop import Convention, flop_per_token
from moeplan.validation.outcome import Skipped
from moeplan.validation.runs import Runs
from moeplan.validation.settings import memory_unit_bytes
from moeplan.validation.steps import peak

TOKENS = 32 * 512 / 8


@pytest.mark.parametrize("pp", [None, 2])
def test_a_step_is_what_estimate_says_of_the_same_layout(runs, names, run_row, pp):
    """Within 3 % but for the time between steps, which no program has; on 8 GPUs nothing is lost to stragglers."""
    run = run_row(model="mixtral-8x7b", pp=pp, measured_peak_mem_gb=10.0)
    case = Case(
        model=load_model("mixtral-8x7b"),
        cluster=names.part("dgx-h100", 8),
        workload=Workload(seq_len=512, global_batch=32),
    )
    told = estimate(case, names.calibration("dgx-h100"), Colocated(pp=pp or 1, ep=4, dp=8 // (pp or 1)))
    step, peak = runs.compare(run)
    assert step.predicted - FIXED_S == pytest.approx(told.plan.predictions.step_s, rel=0.03)
    assert step.low < step.predicted < step.high
    assert peak.predicted == max(sum(stage.bytes) for stage in told.stages)
    assert (step.model, step.kind, step.accelerator) == ("mixtral-8x7b", "moe", "H100 SXM 80GB")
    assert (step.measured, peak.measured) == (0.1, 10e9)


def test_the_last_rank_where_a_source_prints_its_memory(runs, run_row):
    changes = {"model": "mixtral-8x7b", "measured_peak_mem_gb": 10.0}
    fullest, last = (
        next(o.predicted for o in runs.compare(run_row(id=number, **changes)) if o.measure == "peak_memory")
        for number in ("OWN-1", "CIG-1")
    )
    each = peak(runs.setting(run_row(**changes))).bytes
    assert (fullest, last) == (max(each), each[-1])
    assert fullest > last


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 0.1),
        ({"measured_tokens_per_s_per_gpu": 1.0}, 0.1),
        ({"measured_step_s": None, "measured_tokens_per_s_per_gpu": TOKENS}, 1.0),
    ],
)
def test_a_printed_step_comes_before_a_printed_rate(runs, run_row, changes, seconds):
    assert runs.measured_s(run_row(**changes)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("changes", "flop_per_s"), [({"measured_tflops_per_gpu": 0.5}, 0.5e12), ({"measured_mfu": 50.0}, 0.5 * 989e12)]
)
def test_tflops_and_mfu_give_a_step_time_in_the_sources_convention(runs, run_row, changes, flop_per_s):
    for number, attention in (("OWN-1", "half"), ("N24-1", "full")):
        run = run_row(id=number, measured_step_s=None, **changes)
        flop = flop_per_token(load_model("tiny-moe"), 512, Convention(prefix="X", attention=attention))
        assert runs.measured_s(run) == pytest.approx(flop * TOKENS / flop_per_s)


def test_only_what_is_printed_is_compared(runs, run_row):
    assert [o.measure for o in runs.compare(run_row())] == ["step_time"]
    (nothing,) = runs.compare(run_row(measured_step_s=None))
    assert nothing.reason.startswith("nothing measured: measured_step_s, measured_tokens_per_s_per_gpu, measured_tf")
    both = run_row(measured_step_s=None, measured_tflops_per_gpu=1.0, measured_tokens_per_s_per_gpu=1e6)
    flop, _ = runs.compare(both)
    assert (flop.measure, flop.measured) == ("flop", 1e6)


@pytest.mark.parametrize(
    ("notes", "unit"),
    [
        ("", 1e9),
        ("mem unit GiB", 2**30),
        ("mem unit TiB", 2**40),
        ("peak 0.1 TiB", 2**40),
        ("memory unit: MB", 1e6),
        ("mem unit tb", 1e12),
        ("peak allocated GiB; overlap", 2**30),
        ("mem unit GB as printed (GiB for Qwen3-30B rows)", 1e9),
        ("peak HBM GiB/rank; mem unit GB (as reported)", 1e9),
    ],
)
def test_the_unit_of_memory_is_the_notes(run_row, notes, unit):
    assert memory_unit_bytes(run_row(notes=notes)) == unit


def test_a_unit_of_memory_that_is_none_is_a_reason(runs, run_row):
    _, skipped = runs.compare(run_row(measured_peak_mem_gb=1.0, notes="mem unit furlongs"))
    assert skipped.measure == "peak_memory"
    assert skipped.told == "notes: mem unit furlongs: right is mb, mib, gb, gib, tb, tib"


def test_the_unit_of_memory_may_be_one_models(run_row):
    notes = "mem unit GB as printed (GiB for Qwen3-30B rows)"
    assert [memory_unit_bytes(run_row(notes=notes, model=name)) for name in ("Qwen3-30B-A3B", "Qwen3-235B")] == [
        2**30,
        1e9,
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "INT8"}, "dtype: neither 16 bits"),
        ({"dispatcher_or_overlap": "ZeRO 9"}, "dispatcher_or_overlap: no stage of ZeRO"),
        ({"notes": "capacity factor 1e9"}, "capacity factor: no number"),
        ({"recompute": "selective:router"}, "recompute: module router is not known"),
        ({"dp": 3}, "dp is not what the other degrees leave"),
        ({"gpus": 12}, "hardware: GPUs are not whole nodes of 8"),
        ({"ep": 3}, "layout: "),
        ({"vpp": 5}, "layout: pp N [*] vpp N = N stages for N layers"),
        ({"model": "DeepSeekV4 Flash"}, "model: compressed and windowed latent attention"),
        ({"hardware": "Intel Gaudi 3"}, "hardware: no cluster with it ships"),
    ],
)
def test_rows_that_moeplan_cannot_plan(runs, run_row, changes, reason):
    (skipped,) = runs.compare(run_row(**changes))
    assert isinstance(skipped, Skipped)
    assert skipped.measure == "step_time"
    assert re.match(reason, skipped.reason), skipped.reason


def test_memory_of_very_long_orders_is_that_of_long_ones(runs, run_row):
    _, longest = runs.compare(run_row(global_batch=10**7, measured_peak_mem_gb=1.0))
    _, long = runs.compare(run_row(global_batch=10**5, measured_peak_mem_gb=1.0))
    assert longest.predicted == long.predicted > 0


def test_what_no_record_says_is_told(runs, run_row):
    step, peak = runs.compare(run_row(dispatcher_or_overlap="alltoall; cpu_offload_layers=1", measured_peak_mem_gb=1.0))
    assert step.note == peak.note == "offloaded activations taken as kept"


def test_a_row_that_is_set_aside_is_scored_and_says_why(names, run_row):
    runs = Runs(names, {}, aside={("OWN-1", "step_time"): "a misprint"})
    step, peak = runs.compare(run_row(measured_peak_mem_gb=1.0))
    assert (step.listed, peak.listed) == ("a misprint", "")
    assert step.predicted > 0


def test_modules_that_predict_further_tokens_take_time(runs, run_row):
    """DeepSeek-V3's is one of 62 layers, on the last of 8 stages, and the logits once more."""
    row = {"gpus": 64, "pp": 8, "ep": 8}
    (with_it,), (without,) = (
        runs.compare(run_row(model=name, **row)) for name in ("deepseek-v3", "DeepSeekV3 (w/o MTP)")
    )
    assert 1 < with_it.predicted / without.predicted < 1.4


def test_rows_alike_are_worked_out_once(runs, run_row):
    one, other = run_row(), run_row(id="OWN-2", measured_step_s=3.0, notes="again")
    assert runs.steps.form(runs.setting(one)) is runs.steps.form(runs.setting(other))


MEASURES = [{"measured_step_s": 1.0}, {"measured_tokens_per_s_per_gpu": 9e3}, {"measured_tflops_per_gpu": 100.0}]


@pytest.mark.parametrize("measured", [*MEASURES, {"measured_mfu": 10.0}])
@pytest.mark.parametrize("pp", [1, 2])
def test_an_interval_holds_the_error_of_every_value_of_an_empty_cell(runs, run_row, measured, pp):
    """Where only a rate was published, batches and lengths are compared per token, so that they hardly matter."""
    row = {"model": "mixtral-8x7b", "pp": pp, "vpp": 1, "recompute": "none", "dispatcher_or_overlap": "alltoall"}
    row |= {"measured_step_s": None, **measured, "dtype": "BF16", "tp": 1, "cp": 1}
    batch = 4 * 8
    for column, values in (("global_batch", [batch * k // 4 for k in (1, 2, 4, 8, 16)]), ("seq_len", [2048, 8192])):
        (told,) = runs.compare(run_row(**row | {column: None}))
        for value in values:
            (other,) = runs.compare(run_row(**row | {column: value}))
            ratio = other.predicted / other.measured
            assert told.low / told.measured <= ratio * (1 + 1e-9), (column, value)
            assert told.high / told.measured >= ratio * (1 - 1e-9), (column, value)
        if column == "global_batch" and "measured_step_s" not in measured:
            assert told.high / told.low < 4


def test_a_rate_without_a_batch_is_compared_per_token(runs, run_row):
    """Before, a batch four times as large counted as a step four times as long beside the rate of one as large."""
    row = {"measured_step_s": None, "measured_tokens_per_s_per_gpu": 9e3, "seq_len": 4096, "model": "mixtral-8x7b"}
    row |= {"pp": 1, "recompute": "none", "dispatcher_or_overlap": "alltoall", "tp": 1, "cp": 1}
    (told,) = runs.compare(run_row(**row, global_batch=None))
    (fixed,) = runs.compare(run_row(**row, global_batch=32))
    assert told.predicted == fixed.predicted
    assert told.high < 1.3 * fixed.high
