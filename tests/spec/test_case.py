"""Inputs that are right alone and do not go together are refused in one line."""

import pytest

from moeplan.errors import SpecError
from moeplan.spec.case import Case, check_case
from moeplan.spec.execution import Execution
from moeplan.spec.override import override
from moeplan.spec.shipped import load_cluster, load_model, shipped
from moeplan.spec.workload import Memory, Workload


def case_of(model="tiny-moe", cluster="h800-16x8", **further):
    workload = Workload(seq_len=4096, global_batch=256)
    return Case(model=load_model(model), cluster=load_cluster(cluster), workload=workload, **further)


@pytest.mark.parametrize("name", shipped("model"))
def test_modules_of_further_tokens_are_trained_where_there_are_some(name):
    case = case_of(name, memory=Memory(mtp=True))
    if case.model.mtp_layers:
        assert check_case(case) == case
    else:
        with pytest.raises(SpecError, match=f"^memory.mtp true: model {name} has no MTP modules .*; right is false$"):
            check_case(case)


@pytest.mark.parametrize(
    ("cluster", "linear", "peak"),
    [
        ("dgx-a100", "fp8", "fp8"),
        ("frontier", "mxfp8", "fp8"),
        ("mi300x", "nvfp4", "fp4"),
        ("dgx-h200", "nvfp4", "fp4"),
        ("laptop", "fp8_block", "fp8"),
    ],
)
def test_gpus_multiply_only_in_what_they_have_a_peak_for(cluster, linear, peak):
    with pytest.raises(SpecError, match=f"^execution.linear {linear}: gpu .*: no peak for {peak}; there are .*bf16"):
        check_case(case_of(cluster=cluster, execution=Execution(linear=linear)))


@pytest.mark.parametrize("cluster", ["dgx-b200", "dgx-b300", "gb200-nvl72", "gb300-nvl72", "mi355x"])
def test_and_in_all_that_they_have(cluster):
    for linear in ("same", "fp8", "fp8_block", "mxfp8", "nvfp4"):
        assert override(case_of(cluster=cluster), [f"execution.linear={linear}"]).execution.linear == linear
