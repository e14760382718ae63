"""The closed form of a step: what it adds up to, and where it agrees with the simulated step."""

from typing import NamedTuple

import numpy as np
import pytest
from msgspec import structs

from moeplan.analytic.bubble import idle
from moeplan.analytic.factors import factors_of, on_classes
from moeplan.analytic.form import CLASSES, form
from moeplan.analytic.step import FIXED_S, _idle, stacked, step
from moeplan.cost.exposure import BEHIND, EXPERT_BETWEEN, TAIL
from moeplan.cost.pricing import Pricing
from moeplan.draft import dealt
from moeplan.errors import SpecError
from moeplan.estimator import estimate
from moeplan.layout import Colocated, Piper, Recompute
from moeplan.layouts import stages
from moeplan.spec.execution import Execution


class Partly(NamedTuple):
    """What the idle time of a form depends on."""

    positions: np.ndarray
    microbatches: np.ndarray
    bubble: np.ndarray
    path: np.ndarray
    turns: np.ndarray
    directions: np.ndarray


MODEL = {"num_layers": 8, "hidden": 2048, "expert_width": 1024, "experts": 16, "vocab": 32000}
LAYOUTS = {
    "one stage": (16, Colocated(dp=16, ep=8), "1f1b", Recompute()),
    "four stages": (16, Colocated(pp=4, dp=4, ep=4), "1f1b", Recompute()),
    "tensor parallel": (16, Colocated(tp=2, pp=2, dp=4, ep=4), "1f1b", Recompute()),
    "interleaved": (16, Colocated(pp=2, vpp=2, dp=8, ep=8), "interleaved", Recompute()),
    "gpipe": (16, Piper(pp=4, ep=4), "gpipe", Recompute()),
    "recomputed": (16, Colocated(pp=2, dp=8, ep=8), "1f1b", Recompute(attention="full", ffn="full")),
    "uneven": (16, Colocated(pp=4, dp=4, ep=4, split=(3, 2, 2, 1)), "1f1b", Recompute()),
}


def formed(case, layout, schedule, machine, recompute=Recompute()):  # noqa: B008
    graph = stages(case, layout)
    return form(Pricing(case, graph, machine, recompute), dealt(case, layout, graph), schedule)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_closed_form_agrees_with_the_simulated_step(name, make_case, machine_of):
    """Within 3 % where nothing overlaps: the simulator has no stragglers and no time between steps."""
    gpus, layout, schedule, recompute = LAYOUTS[name]
    case = make_case(gpus, global_batch=256, seq_len=4096, **MODEL)
    machine = machine_of(case)
    simulated = estimate(case, machine.calibration, layout, schedule=schedule, recompute=recompute)
    constants = on_classes(factors_of(machine.calibration.constants))
    told = step(formed(case, layout, schedule, machine, recompute), constants)
    assert told.step_s - told.straggling - FIXED_S == pytest.approx(simulated.plan.predictions.step_s, rel=0.03)


def test_a_half_last_microbatch_counts_half(make_case, machine_of):
    """On one position the step is linear in the micro-batches, short ones included."""
    layout = Colocated(micro_batch=4)
    told = [
        step(formed(case, layout, "1f1b", machine_of(case))).compute.sum()
        for case in (make_case(1, global_batch=n, seq_len=1024, **MODEL) for n in (4, 6, 8))
    ]
    assert told[1] == pytest.approx((told[0] + told[2]) / 2)


def test_the_parts_add_up_and_factors_act_on_their_class_alone(make_case, machine_of):
    case = make_case(16, global_batch=256, seq_len=4096, **MODEL)
    one = formed(case, Colocated(tp=2, pp=2, dp=4, ep=4), "1f1b", machine_of(case))
    before = step(one)
    assert before.step_s == pytest.approx(before.compute.sum() + sum(before[1:]))
    times = np.ones(len(CLASSES))
    times[CLASSES.index("expert")] = 3.0
    after = step(one, times)
    assert after.compute[CLASSES.index("expert")] == pytest.approx(3 * before.compute[CLASSES.index("expert")])
    assert after.compute[CLASSES.index("gemm")] == before.compute[CLASSES.index("gemm")]


def test_gradients_hide_behind_one_microbatch_but_for_their_tail(make_case, machine_of):
    """Exposed: max(0, s - 0.8 b) + 0.06 s for s seconds of reduce-scatter and b of one backward."""
    case = make_case(16, global_batch=256, seq_len=4096, **MODEL)
    layout = Colocated(dp=16, ep=8)
    plain = formed(case, layout, "1f1b", machine_of(case))
    hidden = plain._replace(hides_gradients=np.array(1.0))
    scatter = float(plain.scatter_s[0])
    behind = float((plain.backward @ plain.pieces).sum())
    assert step(plain).gradients == scatter > 0
    assert step(hidden).gradients == pytest.approx(max(0.0, scatter - BEHIND * behind) + TAIL * scatter, rel=0.05)


def test_divided_weights_are_gathered_for_every_microbatch(make_case, machine_of):
    """Without overlap each micro-batch waits for two gathers and one reduce-scatter."""
    case = make_case(16, global_batch=64, seq_len=4096, **MODEL)
    layout = Colocated(dp=16, ep=8)
    once = formed(case, layout, "1f1b", machine_of(case))
    split = formed(structs.replace(case, memory=structs.replace(case.memory, zero=3)), layout, "1f1b", machine_of(case))
    waits = step(split).gradients + step(split).parameters
    assert waits == pytest.approx(4 * float(2 * once.gather_s[0] + once.scatter_s[0]))
    assert step(split._replace(hides_parameters=np.array(1.0))).step_s < step(split).step_s


def test_hidden_dispatch_takes_less_of_the_step(make_case, machine_of):
    case = make_case(16, global_batch=64, seq_len=4096, **MODEL)
    layout = Colocated(dp=16, ep=16)
    told = [
        step(formed(structs.replace(case, execution=Execution(hidden=hidden)), layout, "1f1b", machine_of(case)))
        for hidden in ((), ("expert",))
    ]
    expert = [one.compute[CLASSES.index("expert")] for one in told]
    assert expert[1] == pytest.approx(EXPERT_BETWEEN * expert[0])


def bubble(schedule, positions, virtual, forward=1, inputs=1, weights=1):
    """Seconds of the bubble with passes of these lengths."""
    return float(np.dot(idle(schedule, positions, virtual).bubble, (forward, inputs, weights)))


def test_bubbles_are_those_of_their_papers():
    assert bubble("1f1b", 8, 1) == bubble("gpipe", 8, 1) == 3 * 7
    assert bubble("interleaved", 8, 4, 1, 3, 2) == pytest.approx(6 * 7 / 4)
    assert bubble("zb-h1", 7, 1, 1, 3, 2) == 6 * (1 + 3 - 2)
    assert bubble("zb-h2", 7, 1, 2, 3, 1) == 6 * (2 + 3 - 2)
    assert [32 * 3 + bubble(name, 8, 2) for name in ("zbv", "v-half", "v-min")] == pytest.approx(
        [99.5, 104.5, 109], abs=0.15
    )
    assert bubble("dualpipe", 16, 1, 1, 3, 2) == 7 * ((1 + 3 + 2) + (3 + 2) - 3 * 2)
    assert bubble("dualpipe", 1, 1) == 0
    with pytest.raises(SpecError, match="closed form"):
        bubble("af-pipe", 8, 1)
    with pytest.raises(SpecError, match="pp 5 is odd"):
        bubble("dualpipe", 5, 1)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipe"])
@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_a_step_is_no_shorter_than_its_micro_batches_need_from_end_to_end(schedule, microbatches):
    """Position 0 does m (F + B + W) and waits for the rest of the path of the last micro-batch that enters there."""
    positions, passes = 4, np.array([2.0, 3.0, 1.0])
    own = np.tile(passes, (positions, 1))
    what = {name: np.array(value) for name, value in idle(schedule, positions, 2)._asdict().items()}
    form = Partly(positions=np.ones(positions), microbatches=np.array(float(microbatches)), **what)
    entered = microbatches / what["directions"]
    least = positions * (what["path"] @ passes) + (entered - 1) * passes[0] + (1 - what["path"][2]) * passes[2]
    assert _idle(form, own, np.array(0)) + microbatches * passes.sum() >= least - 1e-9


def test_gradients_are_summed_behind_the_backward_only_where_they_are_hidden(make_case, machine_of):
    case = make_case(16, global_batch=64, seq_len=4096, **MODEL)
    sharded = structs.replace(case, memory=structs.replace(case.memory, zero=3))
    found = formed(sharded, Colocated(dp=16, ep=4), "1f1b", machine_of(case))
    back = (found.backward @ found.pieces).sum(axis=-1)
    huge = found._replace(rescatter_s=0.7 * back, regather_s=0.6 * back)
    neither, weights, gradients, both = (
        float(step(huge._replace(hides_parameters=np.array(p), hides_gradients=np.array(g))).step_s)
        for p, g in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    )
    assert both < weights < neither
    assert both < gradients < neither


def test_stacked_forms_are_summed_as_each_alone(make_case, machine_of):
    """Forms of one and of four positions, with and without tensor parallelism."""
    forms = []
    for layout in (Colocated(dp=16, ep=8), Colocated(pp=4, dp=4, ep=4), Colocated(tp=2, pp=2, dp=4, ep=4)):
        case = make_case(16, global_batch=256, seq_len=4096, **MODEL)
        forms.append(formed(case, layout, "1f1b", machine_of(case)))
    alone = [float(step(one).step_s) for one in forms]
    assert step(stacked(forms)).step_s == pytest.approx(alone)


def test_a_module_for_a_further_token_is_one_more_layer_and_head_on_the_last_position(make_case, machine_of):
    """DeepSeek-V3's: what the last position computes grows by one layer with experts and the logits."""
    case = make_case(16, global_batch=64, seq_len=4096, mtp_layers=1, **MODEL)
    layout = Colocated(pp=4, dp=4, ep=4, split=(2, 2, 2, 2))
    with_it = structs.replace(case, memory=structs.replace(case.memory, mtp=True))
    plain, further = (formed(c, layout, "1f1b", machine_of(c)) for c in (case, with_it))
    known = plain.forward.shape[1]
    more = further.forward[:, :known] - plain.forward
    assert not more[:-1].any()
    assert more[-1].sum() == 3
    assert ((more[-1] == 1) == (plain.forward[-1] > 0)).all()
    assert further.forward[:, known:].tolist() == [[0, 0, 0]] * 3 + [[1, 0, 0]]


def test_in_dualpipe_a_position_holds_two_opposite_stages(make_case, machine_of):
    """Stages of 3, 2, 2 and 1 layers: the first and the last position run the mean of both."""
    case = make_case(16, global_batch=64, seq_len=4096, **MODEL)
    layout = Colocated(pp=4, dp=4, ep=4, split=(3, 2, 2, 1))
    one, both = (formed(case, layout, name, machine_of(case)).forward for name in ("1f1b", "dualpipe"))
    assert (both == (one + one[::-1]) / 2).all()
