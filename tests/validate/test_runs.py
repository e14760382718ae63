"""Runs: what is measured, what is assumed, what is predicted, and why some rows are left out."""

import re

import pytest

from moeplan.estimator import estimate
from moeplan.layout import Colocated, Recompute
from moeplan.spec.case import Case
from moeplan.spec.shipped import load_model
from moeplan.spec.workload import Workload
from moeplan.validate.flop import Convention, flop_per_token
from moeplan.validate.outcome import Outcome, Skip, Skipped
from moeplan.validate.settings import (
    degrees,
    expert_parallel,
    global_batch,
    memory_unit_bytes,
    recompute_rule,
    seq_len,
)

TOKENS = 32 * 512 / 8


@pytest.mark.parametrize(("pp", "rel"), [(None, 1e-9), (2, 0.01)])
def test_a_step_is_what_estimate_says_of_the_same_layout(runs, names, run_row, pp, rel):
    """Exactly so without a pipeline; with one, transfers that wait for each other come on top."""
    run = run_row(model="mixtral-8x7b", pp=pp, measured_peak_mem_gb=10.0)
    case = Case(
        model=load_model("mixtral-8x7b"),
        cluster=names.part("dgx-h100", 8),
        workload=Workload(seq_len=512, global_batch=32),
    )
    told = estimate(case, names.calibration("dgx-h100"), Colocated(pp=pp or 1, ep=4, dp=8 // (pp or 1)))
    step, peak = runs.compare(run)
    assert step.predicted == pytest.approx(told.plan.predictions.step_s, rel=rel)
    assert step.predicted <= told.plan.predictions.step_s * (1 + 1e-9)
    assert peak.predicted == max(sum(stage.bytes) for stage in told.stages)
    assert (step.model, step.kind, step.accelerator) == ("mixtral-8x7b", "moe", "H100 SXM 80GB")
    assert (step.measured, peak.measured) == (0.1, 10e9)


def test_the_last_rank_where_a_source_prints_its_memory(runs, run_row):
    changes = {"model": "mixtral-8x7b", "measured_peak_mem_gb": 10.0}
    fullest, last = (
        next(o.predicted for o in runs.compare(run_row(id=number, **changes)) if o.measure == "peak_memory")
        for number in ("OWN-1", "CIG-1")
    )
    step = runs.step(run_row(**changes))
    assert (fullest, last) == (max(step.peak_bytes), step.peak_bytes[-1])
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
    assert runs.compare(run_row(measured_step_s=None)) == []
    both = run_row(measured_step_s=None, measured_tflops_per_gpu=1.0, measured_tokens_per_s_per_gpu=1e6)
    flop, _ = runs.compare(both)
    assert (flop.measure, flop.measured) == ("flop", 1e6)


def test_what_is_taken_where_nothing_is_published(run_row):
    bare = run_row(**dict.fromkeys(("pp", "ep", "etp", "micro_batch", "global_batch", "seq_len")))
    model = load_model("tiny-moe")
    assert seq_len(bare) == 4096
    assert global_batch(bare) == 4 * 8
    assert global_batch(run_row(global_batch=None, tp=2, micro_batch=3)) == 4 * 2 * 2 * 3
    given = degrees(bare, model)
    assert (given.tp, given.pp, given.vpp, given.ep, given.etp, given.micro_batch) == (None, None, None, 8, None, 1)


@pytest.mark.parametrize(
    ("model", "changes", "ep"),
    [
        ("tiny-moe", {"pp": None}, 8),
        ("tiny-moe", {}, 4),
        ("tiny-moe", {"tp": 2, "etp": None}, 2),
        ("deepseek-v2", {"gpus": 64}, 8),
    ],
)
def test_experts_are_spread_over_a_stages_first_gpus(run_row, model, changes, ep):
    assert expert_parallel(run_row(**changes), load_model(model)) == ep


@pytest.mark.parametrize(
    ("text", "attention", "ffn", "exact"),
    [
        ("", "none", "none", True),
        ("none/FP8 params", "none", "none", True),
        ("none at 8K", "none", "none", True),
        ("full", "full", "full", True),
        ("full AC", "full", "full", True),
        ("selective(flash)", "none", "none", True),
        ("selective + sequence parallel", "none", "none", True),
        ("selective:core_attn", "none", "none", True),
        ("selective:moe", "none", "full", True),
        ("selective:moe+layernorm", "none", "full", False),
        ("selective:mlp+mla_up_proj (relaxed in later steps)", "none", "none", False),
        ("selective (RMSNorm, MLA up-proj)", "none", "none", False),
    ],
)
def test_rules_of_recomputation(text, attention, ffn, exact):
    assert recompute_rule(text) == (Recompute(attention=attention, ffn=ffn), exact)


@pytest.mark.parametrize("text", ["full layers=5", "selective AC", "per-op SAC", "selective:router", "some"])
def test_rules_that_cannot_be_planned(text):
    with pytest.raises(Skip, match="recompute"):
        recompute_rule(text)


def test_every_published_rule_is_known_or_refused(published_runs):
    refused = set()
    for text in {run.recompute for run in published_runs.values()}:
        try:
            recompute_rule(text)
        except Skip:
            refused.add(text)
    assert refused == {"full layers=5", "selective AC", "per-op SAC"}


def test_memory_is_not_compared_where_single_modules_are_recomputed(runs, run_row):
    step, peak = runs.compare(run_row(recompute="selective:mlp", measured_peak_mem_gb=1.0))
    assert step.note == "recomputed modules taken as kept"
    assert peak == Skipped("OWN-1", "peak_memory", "recompute: memory of single modules is not planned")


@pytest.mark.parametrize(
    ("notes", "unit"),
    [
        ("", 1e9),
        ("mem unit GiB", 2**30),
        ("peak allocated GiB; overlap", 2**30),
        ("mem unit GB as printed (GiB for Qwen3-30B rows)", 1e9),
        ("peak HBM GiB/rank; mem unit GB (as reported)", 1e9),
    ],
)
def test_the_unit_of_memory_is_the_notes(run_row, notes, unit):
    assert memory_unit_bytes(run_row(notes=notes)) == unit


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "MXFP8"}, "FP8 and FP4 are not planned"),
        ({"cp": 2}, "context parallelism is not planned"),
        ({"dispatcher_or_overlap": "FSDP8 + torch.compile"}, r"fully sharded data parallelism \(FSDP\) is not planned"),
        ({"dispatcher_or_overlap": "DualPipe; DeepEP"}, "DualPipe is not planned"),
        ({"dispatcher_or_overlap": "PP schedule zbv"}, "zero-bubble schedules are not planned"),
        ({"recompute": "full layers=5"}, "recompute: "),
        ({"dp": 3}, "dp is not what the other degrees leave"),
        ({"gpus": 12}, "hardware: GPUs are not whole nodes of 8"),
        ({"ep": 3}, "layout: "),
        ({"vpp": 5}, "layout: pp N [*] vpp N = N stages for N layers"),
        ({"global_batch": 10**7}, "more than 200,000 actions"),
        ({"model": "Nemotron_3_Nano"}, "model: Mamba-2 layers are not planned"),
        ({"hardware": "Intel Gaudi 3"}, "hardware: no cluster with it ships"),
    ],
)
def test_rows_that_moeplan_cannot_plan(runs, run_row, changes, reason):
    (skipped,) = runs.compare(run_row(**changes))
    assert isinstance(skipped, Skipped)
    assert skipped.measure == "step_time"
    assert re.match(reason, skipped.reason), skipped.reason


def test_modules_that_predict_further_tokens_are_told_to_be_missing(runs, run_row):
    (step,) = runs.compare(run_row(model="deepseek-v3", gpus=64, pp=8, ep=8))
    assert isinstance(step, Outcome)
    assert step.note == "without its MTP module"


def test_rows_alike_are_worked_out_once(runs, run_row):
    assert runs.step(run_row()) is runs.step(run_row(id="OWN-2", measured_step_s=3.0, notes="again"))
