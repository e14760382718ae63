"""The plan file: read back equal, equal for equal inputs, and refused wherever its parts do not belong together."""

import json
import re
from math import isfinite
from pathlib import Path

import pytest
from msgspec import structs

from moeplan import planner
from moeplan.analytic.spread import interval
from moeplan.cost.durations import predict
from moeplan.draft import draft_with_steps
from moeplan.errors import MoeplanError, PlanVersionError, ScheduleError, SpecError
from moeplan.layout import Colocated, Disaggregated
from moeplan.optimizer.evaluate import evaluate, refreshed, simulate
from moeplan.plan import SCHEMA_VERSION, Provenance, is_stale, program_of, steps_of
from moeplan.plan_file import read_plan, write_plan
from moeplan.plan_rules import LARGEST, SPREADS, check
from moeplan.schedule import to_text
from moeplan.simulate import step_ns
from moeplan.spec.case import Case
from moeplan.spec.record import to_json
from moeplan.spec.shipped import load_calibration, load_cluster, load_model
from moeplan.spec.workload import Workload

FIXTURES = Path(__file__).parent / "fixtures" / "plans"
LAYOUTS = {
    "colocated": (Colocated(pp=2, dp=2, ep=2), "1f1b"),
    "interleaved": (Colocated(tp=2, pp=2, vpp=2), "interleaved"),
    "disaggregated": (Disaggregated(attention_gpus=2, ffn_gpus=2, attention_nics=2, ffn_nics=2), "af-pipe"),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def plan(request, make_case, machine_of):
    return made(make_case, machine_of, request.param)


def made(make_case, machine_of, name):
    layout, schedule = LAYOUTS[name]
    case = make_case(4, global_batch=8)
    plan, steps = draft_with_steps(case, layout, schedule=schedule)
    return evaluate(structs.replace(plan, durations=predict(case, plan.graph, plan.batch, machine_of(case))), steps)


@pytest.fixture
def edited(tmp_path):
    """edited(plan, change): the plan in a file whose JSON `change` has altered."""

    def edit(plan, change):
        raw = json.loads(to_json(plan))
        change(raw)
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(raw))
        return path

    return edit


def put(*path, value):
    """A change that sets the field at `path`."""

    def change(raw):
        for key in path[:-1]:
            raw = raw[key]
        raw[path[-1]] = value

    return change


def test_a_plan_read_back_is_equal_to_the_byte(plan, tmp_path):
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    assert read_plan(path) == plan
    assert to_json(read_plan(path)) == path.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_predictions_are_those_of_the_text_in_the_file(plan, tmp_path):
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert step_ns(simulate(again, program_of(again))) / 1e9 == plan.predictions.step_s


def test_equal_inputs_give_equal_bytes():
    def once():
        cluster = load_cluster("laptop")
        case = Case(model=load_model("tiny-moe"), cluster=cluster, workload=Workload(seq_len=64, global_batch=16))
        ranking = planner.optimize(case, load_calibration("laptop"))
        return [to_json(found.best) for found in ranking.found]

    one, two = once(), once()
    assert len(one) == 3
    assert one == two


def test_provenance_changes_nothing_but_itself(plan):
    signed = structs.replace(plan, provenance=Provenance(software="x", created="now", command=("optimize",)))
    assert to_json(signed) != to_json(plan)
    assert to_json(structs.replace(signed, provenance=Provenance())) == to_json(plan)


REFUSED = {
    "unknown field": (put("colour", value=1), SpecError, "unknown field `colour`"),
    "unknown field inside": (put("graph", "sp", value=1), SpecError, "unknown field `sp`.*graph"),
    "other schema": (put("schema", value="else"), SpecError, "not a plan: schema is not 'moeplan.plan'"),
    "no version": (put("schema_version", value=1), PlanVersionError, "schema_version 1 is not MAJOR.MINOR"),
    "newer minor": (put("schema_version", value="1.99"), PlanVersionError, "1.99 is newer than 1.4; upgrade moeplan"),
    "newer major": (put("schema_version", value="2.0"), PlanVersionError, "2.0 is newer than 1.4; upgrade moeplan"),
    "older major": (put("schema_version", value="0.9"), PlanVersionError, "0.9 is older than 1.0 and cannot be read"),
    "another family": (put("layout", "family", value="ring"), SpecError, "'ring'"),
    "fewer ranks": (
        put("graph", "positions", 0, "ranks", value=[[0]]),
        SpecError,
        "3 places do not hold ranks 0..2 once each",
    ),
    "a rank twice": (
        put("graph", "positions", 1, "ranks", value=[[2, 2]]),
        SpecError,
        "4 places do not hold ranks 0..3 once each",
    ),
    "ranks beyond the cluster": (
        put("case", "cluster", "node", "gpus", value=2),
        SpecError,
        "4 ranks, its cluster has 2|nodes and NICs are not those",
    ),
    "replicas": (put("graph", "replicas", 0, "groups", value=[[1], [0]]), SpecError, "replicas are not the ranks"),
    "unsummed": (put("graph", "replicas", value=[]), SpecError, "replicas are not the ranks that hold the same"),
    "edge": (put("graph", "edges", 1, "kind", value="local"), SpecError, "edges do not join the pieces"),
    "no layer": (put("graph", "pieces", 1, "layer", value=1), SpecError, "are not the chain of 4 layers"),
    "stage nowhere": (put("graph", "stages", 1, value=[9]), SpecError, "a stage lives outside of the 2 positions"),
    "stage twice at home": (put("graph", "stages", 1, value=[1, 1]), SpecError, "stage 1 lists a position twice"),
    "short predictions": (
        put("predictions", "static_hbm_bytes", value=[1.0]),
        SpecError,
        "static_hbm_bytes has 1 values for 2 positions",
    ),
    "negative step": (put("predictions", "step_s", value=-1.0), SpecError, "step_s -1 is not from 0 to "),
    "version with zeros": (put("schema_version", value="1.00"), PlanVersionError, "'1.00' is not MAJOR.MINOR"),
    "version in other digits": (put("schema_version", value="١.٠"), PlanVersionError, "is not MAJOR.MINOR"),
    "no bandwidth": (put("case", "cluster", "node", "nic", value="0 B/s"), SpecError, "node.nic is 0"),
    "batch": (put("batch", "microbatches", value=3), SpecError, "3 micro-batches of 1 .* do not hold the 8 sequences"),
    "workload": (put("case", "workload", "global_batch", value=64), SpecError, "do not hold the 64 sequences"),
    "degrees": (put("layout", "dp", value=4), SpecError, "layout: dp 4, but the graph and batch have [12]"),
    "degree below one": (put("layout", "micro_batch", value=0), SpecError, "micro_batch 0 must be at least 1"),
    "placement": (put("placement", "nodes", value=[0, 0, 0, 1]), SpecError, "nodes and NICs are not those"),
    "experts": (put("graph", "ep", value=3), SpecError, "2 ranks of .* hold experts in 3 parts"),
    "size": (put("case", "model", "hidden", value=-64), SpecError, "Expected `int` >= 1.*hidden"),
    "unit": (put("case", "cluster", "gpu", "hbm", value="80 GB/s"), SpecError, "'80 GB/s' is not a Bytes"),
    "step": (put("schedule", "positions", 1, value="1F0 oops"), ScheduleError, "position 1: step 1 'oops' is not"),
    "missing step": (put("schedule", "positions", 0, value=""), ScheduleError, "micro-batch 0 has nothing"),
    "position": (put("schedule", "positions", value=[]), ScheduleError, "0 positions, the layout has 2"),
    "overlap": (put("overlap", "forward", value=[]), SpecError, "has no stream in both passes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_whose_parts_do_not_fit_is_refused(plan, edited, name):
    change, error, message = REFUSED[name]
    path = edited(plan, change)
    with pytest.raises(error, match=message) as caught:
        read_plan(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_layout_that_contradicts_its_edges_is_refused(make_case, machine_of, edited):
    plan = made(make_case, machine_of, "disaggregated")
    path = edited(plan, put("layout", "deduplicate", value=True))
    with pytest.raises(SpecError, match="layout: deduplicate True, but the graph and batch have False"):
        read_plan(path)


def test_layers_cut_otherwise_than_the_layout_says_are_refused(make_case, machine_of, edited):
    path = edited(made(make_case, machine_of, "colocated"), put("layout", "split", value=[3, 1]))
    with pytest.raises(SpecError, match=r"layout: split \[3, 1\], but the graph has stages of \[2, 2\] layers"):
        read_plan(path)


@pytest.mark.parametrize("share", [0, 1, 100, 2000, -2])
def test_a_plan_cut_short_is_no_json(plan, tmp_path, share):
    path = tmp_path / "plan.json"
    path.write_bytes(to_json(plan)[:share])
    with pytest.raises(SpecError, match=r"plan\.json: (not valid JSON|is empty)"):
        read_plan(path)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b'"plan"', b"{}", b'{"schema": ["moeplan.plan"]}'])
def test_other_json_is_no_plan(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="not a plan"):
        read_plan(path)


def leaves(value, path=()):
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(child, (*path, key))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


@pytest.mark.parametrize("number", [-1, 0, 7, 10**9])
def test_any_other_number_is_refused_or_harmless(plan, edited, number):
    """Every third whole number of the file in turn: one line that says what is wrong, or a plan that simulates."""
    refusals = []
    for path in list(leaves(json.loads(to_json(plan))))[::3]:
        try:
            again = read_plan(edited(plan, put(*path, value=number)))
            simulate(again, program_of(again))
        except MoeplanError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert not any("\n" in line for line in refusals)


def test_another_legal_order_is_another_step(make_case, machine_of, edited):
    """1F1B rewritten by hand to all forwards first, in the order of micro-batches: slower, and simulated as written."""
    plan = made(make_case, machine_of, "colocated")
    rows = [sorted(row.split(), key=lambda word: "B" in word) for row in plan.schedule.positions]
    assert [" ".join(row) for row in rows] != list(plan.schedule.positions)

    def serial(raw):
        """Position 1 runs each micro-batch forwards and backwards; position 0 sends the next only after that."""
        count = plan.batch.microbatches
        raw["schedule"]["positions"] = [" ".join(f"{s}F{m} {s}B{m}" for m in range(count)) for s in (0, 1)]

    forwards_first = read_plan(edited(plan, put("schedule", "positions", value=[" ".join(row) for row in rows])))
    one_by_one = read_plan(edited(plan, serial))
    steps = {step_ns(simulate(p, program_of(p))) for p in (plan, forwards_first, one_by_one)}
    assert len(steps) > 1
    assert step_ns(simulate(one_by_one, program_of(one_by_one))) > 1.2 * step_ns(simulate(plan, program_of(plan)))
    first = [op.kind for op in program_of(forwards_first).ops if op.position == 0 and op.kind in "FB"]
    assert first == sorted(first, reverse=True)


def test_an_illegal_order_is_refused_with_its_place(make_case, machine_of, edited):
    plan = made(make_case, machine_of, "colocated")
    first, second, *rest = plan.schedule.positions[1].split()
    assert (first, second) == ("1F0", "1B0")
    text = " ".join((second, first, *rest))
    expected = re.escape("position 1, step 0: 1B0 waits for 1F0")
    with pytest.raises(ScheduleError, match=expected):
        read_plan(edited(plan, put("schedule", "positions", 1, value=text)))
    other = plan.schedule.positions[0].replace("0F1", "1F1")
    with pytest.raises(ScheduleError, match="position 0, step 1: 1F1 belongs to position 1"):
        read_plan(edited(plan, put("schedule", "positions", 0, value=other)))


def test_durations_that_lack_an_operation_are_told(plan):
    bare = structs.replace(plan, durations=())
    with pytest.raises(SpecError, match="durations: 0F0 has none; an entry F, F with piece 0 is due"):
        simulate(bare, program_of(bare))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("case", "model", "top_k"), 1),
        (("case", "workload", "seq_len"), 32),
        (("case", "memory", "usable"), 0.5),
        (("durations",), []),
        (("durations", 0, "seconds"), -1.0),
        (("predictions", "step_s"), 1.0),
        (("predictions", "peak_hbm_bytes", 0), 1.0),
    ],
)
def test_inputs_edited_under_predictions_are_refused(plan, edited, where, value):
    """Durations and predictions belong to the inputs they were made for; a schedule may be edited, they may not."""
    with pytest.raises(SpecError, match="inputs or predictions were edited after they were made"):
        read_plan(edited(plan, put(*where, value=value)))


NUMBERS = ("step_s", "tokens_per_s", "mfu", "peak_flop_per_s", "model_flop", "exposed_communication_s", "bubble")


@pytest.mark.parametrize("value", [-1.0, 1e308, "1"])
@pytest.mark.parametrize("name", [*NUMBERS, "spread", "static_hbm_bytes", "peak_hbm_bytes"])
def test_predictions_that_are_no_numbers_are_refused_in_one_line(plan, edited, name, value):
    path = (name, 0) if name.endswith("_bytes") else (name,)

    def change(raw):
        raw["predictions"]["of_inputs"] = ""
        put("predictions", *path, value=value)(raw)

    with pytest.raises(SpecError, match=name if value != "1" else r"Expected `float`, got `str`") as caught:
        read_plan(edited(plan, change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 10.01, 710.0, 1000.0])
def test_a_spread_whose_interval_says_nothing_is_refused(plan, value):
    told = structs.replace(plan.predictions, spread=value, of_inputs="")
    with pytest.raises(SpecError, match=r"predictions: spread .* is not from 0 to 10$"):
        check(structs.replace(plan, predictions=told))


def test_the_widest_interval_of_the_longest_step_is_finite(plan):
    told = structs.replace(plan.predictions, spread=SPREADS, step_s=LARGEST, of_inputs="")
    check(structs.replace(plan, predictions=told))
    assert all(isfinite(end) for end in interval(LARGEST, SPREADS))


def test_an_edited_schedule_is_predicted_again(make_case, machine_of):
    plan = made(make_case, machine_of, "colocated")
    rows = [sorted(row, key=lambda step: step[0].kind == "B") for row in steps_of(plan)]
    text = structs.replace(plan.schedule, positions=tuple(map(to_text, rows)))
    other = structs.replace(plan, schedule=text)
    assert is_stale(other)
    assert not is_stale(plan)
    again = refreshed(other)
    assert not is_stale(again)
    assert again.predictions.step_s == step_ns(simulate(other, program_of(other))) / 1e9
    assert max(again.predictions.peak_hbm_bytes) > max(plan.predictions.peak_hbm_bytes)


@pytest.mark.parametrize("name", ["piper", "disaggregated"])
def test_plans_of_version_one_keep_loading(name):
    """Written by moeplan at plan version 1.0; Piper's dp then counted attention's data-parallel ranks."""
    path = FIXTURES / f"1.0-{name}.json"
    old, plan = json.loads(path.read_text()), read_plan(path)
    assert plan.schema_version == SCHEMA_VERSION
    assert plan.predictions.step_s == old["predictions"]["step_s"]
    assert evaluate(plan, steps_of(plan)).predictions.step_s == pytest.approx(plan.predictions.step_s)
    if name == "piper":
        assert plan.layout.dp * plan.layout.ep == old["layout"]["dp"]


OLD_EDITS = {
    "model": (put("case", "model", "hidden", value=128), "inputs or predictions were edited after they were made"),
    "workload": (put("case", "workload", "seq_len", value=1), "inputs or predictions were edited after they were made"),
    "recompute": (put("recompute", "ffn", value="experts"), "inputs or predictions were edited after they were made"),
    "two degrees": (put("layout", "tp", value=2), "inputs or predictions were edited after they were made"),
}


@pytest.mark.parametrize("name", OLD_EDITS)
def test_edited_inputs_of_an_old_plan_are_refused_as_those_of_a_new_one(tmp_path, name):
    change, message = OLD_EDITS[name]
    raw = json.loads((FIXTURES / "1.0-piper.json").read_text())
    change(raw)
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    with pytest.raises(SpecError, match=message):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tp", 2, r"tp, cp and etp 1, not \[2, 1, 1\]"),
        ("dp", 5, "a dp that ep divides"),
        ("dp", None, "whole numbers are due"),
        ("ep", 0, "whole numbers are due"),
    ],
)
def test_contradictions_of_an_old_piper_layout_are_not_smoothed_over(tmp_path, field, value, message):
    raw = json.loads((FIXTURES / "1.0-piper.json").read_text())
    raw["predictions"]["of_inputs"] = ""
    raw["layout"][field] = value
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    with pytest.raises(SpecError, match=message):
        read_plan(tmp_path / "plan.json")


def test_paths_may_be_text(plan, tmp_path):
    write_plan(plan, str(tmp_path / "plan.json"))
    assert read_plan(str(tmp_path / "plan.json")) == plan
