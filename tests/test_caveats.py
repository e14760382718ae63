"""What a user is told beside the numbers: which peak and FLOP an MFU takes, and what a checkpoint's type means."""

import pytest
from msgspec import structs

from moeplan.caveats import mfu_basis, not_simulated, quantised_note, warnings_of
from moeplan.cost.compute import peak_flop_per_s
from moeplan.draft import draft
from moeplan.errors import SpecError
from moeplan.estimator import estimate, estimate_facts
from moeplan.layout import Colocated
from moeplan.report import plan_facts
from moeplan.resources.parameters import total_parameters
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


def test_a_quantised_checkpoint_is_trained_in_the_workloads_type(make_case):
    """gpt-oss-20b is published in mxfp4; its weights count in bf16, 41.83 GB or 38.96 GiB."""
    model = load_model("gpt-oss-20b")
    plan = draft(make_case(8, model="gpt-oss-20b"), Colocated(dp=8, ep=8), schedule="1f1b")
    assert quantised_note(model) in warnings_of(plan)
    assert "mxfp4" in quantised_note(model)
    weights = total_parameters(model) * plan.case.memory.weight_bytes
    assert (round(weights / 1e9, 2), round(weights / 2**30, 2)) == (41.83, 38.96)


@pytest.mark.parametrize(
    ("setting", "layout", "told"),
    [
        ("execution.hidden=gradients,expert", Colocated(dp=8), "execution.hidden gradients: hidden in the closed form"),
        ("execution.hidden=expert", Colocated(dp=8), ""),
        ("memory.zero=3", Colocated(dp=8), "memory.zero 3: the closed form gathers weights for every micro-batch"),
        ("memory.zero=3", Colocated(pp=2, dp=4), ""),
        ("memory.offload=0.5", Colocated(dp=8), ""),
        ("memory.mtp=true", Colocated(dp=8), ""),
    ],
)
def test_what_the_simulated_step_leaves_out_is_told_where_it_matters(setting, layout, told, make_case):
    plan = draft(override(make_case(8), [setting]), layout, schedule="1f1b")
    noted = not_simulated(plan)
    assert [text for text in noted if not text.startswith(told or "nothing")] == []
    assert len(noted) == bool(told)
    assert set(noted) <= set(warnings_of(plan))


def test_modules_of_further_tokens_take_seconds_in_the_closed_form_alone(make_case):
    case = override(make_case(8, model="deepseek-v3"), ["memory.mtp=true"])
    (noted,) = not_simulated(draft(case, Colocated(dp=8, ep=8), schedule="1f1b"))
    assert noted.startswith("memory.mtp: forwards and backwards of further tokens")


def test_plain_checkpoints_have_no_note():
    noted = {name for name in shipped("model") if quantised_note(load_model(name))}
    assert noted == {"deepseek-v3", "gpt-oss-20b", "gpt-oss-120b", "kimi-k2"}
