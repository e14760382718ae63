"""An estimate: its buckets are all of the memory, its seconds all of the work, and it is what the plan predicts."""

import pytest

from moeplan.analytic.form import CLASSES
from moeplan.analytic.spread import SPREAD
from moeplan.analytic.step import Step
from moeplan.by_hand import recompute_of
from moeplan.closed import MEANING, ONLY_CLOSED, closed_dict, closed_estimate, closed_form
from moeplan.errors import SpecError
from moeplan.estimator import GIB, Bytes, estimate, estimate_rows
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.mesh import mesh_of
from moeplan.peaks import peak_of
from moeplan.resources.memory import State, static_bytes
from moeplan.resources.parameters import total_parameters
from moeplan.spec.model import moe_layers
from moeplan.spec.override import override
from moeplan.spec.shipped import load_calibration, load_model, shipped
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


def test_a_mesh_has_a_closed_form_beside_the_simulated_step_and_two_sides_have_none(told):
    closed = told.closed_form
    if isinstance(told.plan.layout, Disaggregated):
        assert closed is None
        assert told.to_dict()["closed_form"] is None
        assert "closed form" not in told._repr_html_()
        return
    assert closed.low_s < closed.step_s < closed.high_s
    assert closed == closed_form(
        told.plan.case,
        load_calibration("h800"),
        told.plan.layout,
        schedule=told.plan.schedule.name,
        recompute=told.plan.recompute,
    )
    plain = told.to_dict()["closed_form"]
    assert (plain["step_s"], plain["low_s"], plain["high_s"]) == closed[:3]
    assert sum(part["seconds"] for part in plain["parts"]) == pytest.approx(closed.step_s)
    assert sum(part["share"] for part in plain["parts"]) == pytest.approx(1)
    assert {part["source"] for part in plain["parts"]} <= set(SPREAD)
    for part in plain["parts"]:
        assert MEANING[part["name"]] in told._repr_html_()


def test_every_part_of_a_closed_form_has_a_meaning():
    assert {*CLASSES, *Step._fields} - {"compute"} == set(MEANING)


@pytest.mark.parametrize("schedule", ONLY_CLOSED)
def test_orders_that_nobody_wrote_have_a_closed_form_and_are_not_simulated(schedule, make_case):
    """No bubble is larger than 1F1B's but of V-Half and V-Min, which save memory and wait in every micro-batch."""
    case, layout, calibration = make_case(8, global_batch=64), Colocated(pp=4, dp=2), load_calibration("h800")
    closed, usual = (closed_form(case, calibration, layout, schedule=name) for name in (schedule, "1f1b"))
    assert (closed.step_s <= usual.step_s) == (schedule not in ("v-half", "v-min"))
    assert (_bubble(closed) <= _bubble(usual) * (1 + 1e-9)) == (schedule not in ("v-half", "v-min"))
    with pytest.raises(SpecError, match="has a closed form alone; simulated and run are 1f1b, interleaved, gpipe"):
        estimate(case, calibration, layout, schedule=schedule)


@pytest.mark.parametrize("layout", [Colocated(pp=4, dp=2), Piper(pp=4, ep=2)])
@pytest.mark.parametrize("schedule", ONLY_CLOSED)
def test_orders_that_nobody_wrote_have_a_peak_per_position(schedule, layout, make_case):
    """That of `peak_of`; whether it fits is told against the usable bytes."""
    case, calibration = make_case(8, num_layers=8, global_batch=64), load_calibration("h800")
    told = closed_estimate(case, calibration, layout, schedule=schedule)
    peaks = peak_of(case, mesh_of(layout), Recompute(), schedule).bytes
    assert [row["peak_gib"] * GIB for row in told.positions] == pytest.approx(peaks)
    assert [row["peak_gb"] * 1e9 for row in told.positions] == pytest.approx(peaks)
    assert all(0 < row["static_gib"] < row["peak_gib"] and row["fits"] for row in told.positions)
    assert told.warnings == ()
    tight = override(case, [f"memory.usable={min(peaks) / case.cluster.gpu.hbm_bytes * 0.99}"])
    short = closed_estimate(tight, calibration, layout, schedule=schedule)
    assert not any(row["fits"] for row in short.positions)
    assert short.warnings[0].startswith("does not fit: ")


def test_two_copies_of_dualpipe_are_twice_the_state_of_one(make_case):
    """Weights and gradients of two stages; optimizer states are shared with the position opposite."""
    case, layout = make_case(4, num_layers=8), Colocated(pp=4)
    one, two = (
        closed_estimate(case, load_calibration("h800"), layout, schedule=name).positions[1]["static_gib"]
        for name in ("zb-h1", "dualpipe")
    )
    assert one < two < 2.01 * one


def test_where_only_the_memory_is_not_known_the_step_is_told_and_why(make_case):
    case = make_case(4, num_layers=4)
    told = closed_estimate(case, load_calibration("h800"), Colocated(pp=4), schedule="zbv")
    assert told.positions == []
    assert told.note.endswith("no memory: layout: pp 4 * vpp 2 = 8 stages for 4 layers")
    assert told.step.step_s > 0


def test_two_sides_have_no_schedule_in_closed_form_alone(make_case):
    sides = Disaggregated(attention_gpus=2, ffn_gpus=2)
    assert closed_estimate(make_case(4), load_calibration("h800"), sides, schedule="zbv") is None


def _bubble(told):
    return sum(part.seconds for part in told.parts if part.name == "bubble")


def test_an_unknown_schedule_is_refused_with_those_there_are(make_case):
    case, calibration = make_case(4), load_calibration("h800")
    with pytest.raises(SpecError, match=r"'zb' has no closed form; right is one of gpipe, .*dualpipe"):
        closed_form(case, calibration, Colocated(dp=4), schedule="zb")
    with pytest.raises(
        SpecError, match=r"'zb' is not one of colocated: .*; zb-h1, .*dualpipe have a closed form alone"
    ):
        estimate(case, calibration, Colocated(dp=4), schedule="zb")
    with pytest.raises(SpecError, match="'dualpipe' is not one of disaggregated: af-pipe"):
        estimate(case, calibration, Disaggregated(attention_gpus=2, ffn_gpus=2), schedule="dualpipe")


WIDE = {"num_layers": 4, "hidden": 2048, "expert_width": 2048, "experts": 16, "vocab": 32000, "top_k": 4}
"""Large enough that kernels take longer than their launches."""


@pytest.fixture(scope="module")
def wide(make_case):
    """wide(layout, *settings): the estimate of a wide model on two nodes."""

    def told(layout, *settings, calibration="h800", **options):
        case = make_case(16, seq_len=4096, global_batch=64, **WIDE)
        return estimate(override(case, settings), load_calibration(calibration), layout, **options)

    return told


FASTER = {
    "8 bits": (Colocated(dp=16, ep=8), "execution.linear=fp8"),
    "blocks of 8 bits": (Colocated(dp=16, ep=8), "execution.linear=mxfp8"),
    "fused passes": (Colocated(dp=16, ep=8), "execution.kernels=fused"),
    "a token once per node": (Colocated(dp=16, ep=16), "execution.dispatcher=deepep"),
    "hidden dispatch": (Colocated(dp=16, ep=16), "execution.hidden=expert"),
    "hidden tensor parallelism": (Colocated(tp=2, dp=8, ep=8, etp=1), "execution.hidden=tensor"),
    "hidden keys and values": (Colocated(cp=2, dp=8, ep=8), "execution.hidden=context"),
}


@pytest.mark.parametrize("name", FASTER)
def test_what_others_carry_out_better_is_faster_simulated_and_in_closed_form(name, wide):
    layout, setting = FASTER[name]
    before, after = wide(layout), wide(layout, setting)
    assert after.plan.predictions.step_s < before.plan.predictions.step_s
    assert after.closed_form.step_s < before.closed_form.step_s


def test_deepep_moves_fewer_bytes_between_nodes(wide):
    """A token with 4 copies for 2 nodes crosses once per node and not once per copy."""
    seconds = [
        sum(
            part.seconds for part in wide(Colocated(dp=16, ep=16), *settings).closed_form.parts if part.name == "expert"
        )
        for settings in ((), ("execution.dispatcher=deepep",))
    ]
    assert seconds[1] < 0.8 * seconds[0]


def test_divided_and_offloaded_state_takes_less_of_the_hbm(wide):
    """ZeRO 3 divides weights and gradients over 16 ranks too; offloaded states are in the host's memory instead."""
    layout = Colocated(dp=16)
    plain, split, away = wide(layout), wide(layout, "memory.zero=3"), wide(layout, "memory.offload=1")
    first = [told.stages[0].bytes for told in (plain, split, away)]
    assert first[1].weights == pytest.approx(first[0].weights / 16)
    assert first[1].gradients == pytest.approx(first[0].gradients / 16)
    assert first[2].main + first[2].optimizer == 0
    assert away.stages[0].host_bytes == pytest.approx(first[0].main + first[0].optimizer)
    assert plain.stages[0].host_bytes == 0
    assert away.plan.predictions.step_s > plain.plan.predictions.step_s
    assert away.closed_form.step_s > plain.closed_form.step_s


@pytest.mark.parametrize("hidden", ["gradients", "parameters"])
def test_what_travels_behind_compute_shortens_both_steps(hidden, wide):
    before, after = (wide(Colocated(dp=16, ep=8), *settings) for settings in ((), (f"execution.hidden={hidden}",)))
    assert after.closed_form.step_s < before.closed_form.step_s
    assert after.plan.predictions.step_s < before.plan.predictions.step_s


@pytest.mark.parametrize("recompute", [Recompute(), Recompute(attention="full", ffn="full")], ids=["kept", "again"])
def test_modules_of_further_tokens_lengthen_the_simulated_step_as_the_closed_form(recompute, wide):
    """On one position no order matters: without stragglers both are the same sum."""
    plain, further = (
        wide(Colocated(dp=16, ep=8), "model.mtp_layers=2", f"memory.mtp={trained}", recompute=recompute)
        for trained in ("false", "true")
    )
    simulated = further.plan.predictions.step_s - plain.plan.predictions.step_s
    assert simulated > 0
    closed = further.closed_form.step_s - plain.closed_form.step_s
    straggling = sum(
        sign * part.seconds
        for sign, told in ((1, further), (-1, plain))
        for part in told.closed_form.parts
        if part.name == "straggling"
    )
    assert simulated == pytest.approx(closed - straggling, rel=0.02)


def test_context_parallel_ranks_keep_half_the_activations_each(wide):
    """Two ranks share the tokens of one sequence."""
    kept = [
        wide(layout).stages[0].bytes.activations for layout in (Colocated(dp=16, ep=8), Colocated(cp=2, dp=8, ep=8))
    ]
    assert kept[1] == pytest.approx(kept[0] / 2, rel=0.05)


def test_modules_computed_again_are_not_kept(wide, make_case):
    case, calibration = make_case(16, seq_len=4096, global_batch=64, **WIDE), load_calibration("h800")
    plain, less = (
        estimate(case, calibration, Colocated(dp=16, ep=8), recompute=recompute_of(text))
        for text in ("none", "none+norm+activation")
    )
    assert less.stages[0].bytes.activations < plain.stages[0].bytes.activations
    assert less.plan.predictions.step_s > plain.plan.predictions.step_s
    assert less.to_dict()["recompute"] == "none/none+norm+activation"


@pytest.mark.parametrize("model", shipped("model"))
def test_every_model_that_ships_has_a_closed_form_whose_parts_add_up(model, make_case):
    further = load_model(model).mtp_layers > 0
    case = make_case(8, model=model, seq_len=4096, global_batch=64, memory=Memory(mtp=further))
    layout = Colocated(tp=2, pp=2, dp=2, ep=2 if case.model.experts else 1)
    closed = closed_form(case, load_calibration("h800"), layout)
    parts = closed_dict(closed)["parts"]
    assert sum(part["seconds"] for part in parts) == pytest.approx(closed.step_s)
    assert all(part["seconds"] > 0 for part in parts)
    assert ("expert" in {part["name"] for part in parts}) == bool(moe_layers(case.model))
