"""An estimate: its buckets are all of the memory, its seconds all of the work, and it is what the plan predicts."""

import pytest

from moeplan.estimator import GIB, Bytes, estimate, estimate_rows
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.resources.memory import State, static_bytes
from moeplan.resources.parameters import total_parameters
from moeplan.spec.shipped import load_calibration
from moeplan.spec.workload import Memory

LAYOUTS = {
    "one stage": Colocated(dp=8, ep=4),
    "tensor parallel": Colocated(tp=2, pp=2, dp=2, ep=2),
    "interleaved": Colocated(pp=2, vpp=2, dp=4, ep=4),
    "uneven": Colocated(pp=2, dp=4, ep=2, split=(1, 3)),
    "piper": Piper(pp=4, ep=2),
    "two sides": Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def told(request, make_case):
    case = make_case(8)
    return estimate(case, load_calibration("h800"), LAYOUTS[request.param], recompute=Recompute(ffn="experts"))


def test_buckets_are_all_of_the_memory(told):
    plan = told.plan
    assert [sum(stage.bytes) for stage in told.stages] == pytest.approx(plan.predictions.peak_hbm_bytes)
    for number, stage in enumerate(told.stages):
        state = sum(getattr(stage.bytes, bucket) for bucket in State._fields)
        assert state == pytest.approx(static_bytes(plan.case, plan.graph, number))
        assert min(stage.bytes) >= 0
    assert sum(told.stages[told.worst].bytes) == max(plan.predictions.peak_hbm_bytes)


def test_parameters_of_all_ranks_are_those_of_the_model_once_per_copy(told):
    """Tensor-parallel ranks hold norms and routers each; everything else is held once per replica."""
    graph, model = told.plan.graph, told.plan.case.model
    once = 0.0
    for replica in graph.replicas:
        ranks = {rank for group in replica.groups for rank in group}
        assert ranks
    for stage, position in zip(told.stages, graph.positions, strict=True):
        once += stage.parameters * len(position.ranks[0])
    assert once >= total_parameters(model)


def test_compute_seconds_and_waiting_fill_the_step(told):
    """Work, exposed communication and waiting are the step, where work of one position does not overlap itself."""
    work = {"embedding", "attention", "dense", "experts", "join", "head", "recompute", "tensor_parallel", "optimizer"}
    for stage in told.stages:
        busy = sum(value for kind, value in stage.seconds.items() if kind in work)
        step_s = busy + stage.seconds["exposed"] + stage.seconds["waiting"]
        assert step_s == pytest.approx(told.plan.predictions.step_s, rel=1e-6)


def test_rows_are_in_gib_and_mark_one_position(told):
    rows = estimate_rows(told)
    assert [row["worst"] for row in rows].count(True) == 1
    for row, stage in zip(rows, told.stages, strict=True):
        assert sum(row[f"{bucket}_gib"] for bucket in Bytes._fields) * GIB == pytest.approx(sum(stage.bytes))
        assert row["peak_gb"] * 1e9 == pytest.approx(row["peak_gib"] * GIB)
    frame = told.to_dataframe()
    assert list(frame.peak_gib) == [row["peak_gib"] for row in rows]
    assert told.to_dict()["positions"] == rows


def test_a_layout_that_does_not_fit_is_estimated_and_says_by_how_much(make_case):
    case = make_case(8, memory=Memory(usable=1e-6))
    told = estimate(case, load_calibration("h800"), Colocated(dp=8))
    assert told.short_bytes == pytest.approx(sum(told.stages[0].bytes) - case.cluster.gpu.hbm_bytes * 1e-6)
    assert not told.to_dict()["fits"]
    assert any(warning.startswith("does not fit") for warning in told.plan.warnings)


def test_half_the_layers_are_half_the_flop_of_layers(make_case):
    """The report counts the layers that are in the plan; embedding and head stay."""
    calibration = load_calibration("h800")
    flop = [
        estimate(make_case(4, num_layers=n), calibration, Colocated(dp=4)).to_dict()["model_flop"] for n in (16, 32, 48)
    ]
    assert flop[2] - flop[1] == pytest.approx(flop[1] - flop[0])
    head = flop[0] - (flop[1] - flop[0])
    assert (flop[0] - head) * 2 == pytest.approx(flop[1] - head)
    assert head == pytest.approx(6 * 64 * 512 * 64 * 16)
