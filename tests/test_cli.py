"""The command line: results on stdout, one line on stderr for what is wrong, exit codes, files whole or not at all."""

import csv
import io
import json
import os
import sys

import pytest

from moeplan import __version__, cli
from moeplan.plan_file import read_plan
from moeplan.simulate import read_chrome

CASE = ["--model", "tiny-moe", "--cluster", "laptop", "--gpus", "4", "--seq-len", "64", "--global-batch", "8"]
FAMILY = ["--family", "piper"]


class Done:
    """What a command left: exit code, stdout, stderr."""

    def __init__(self, code, captured):
        self.code, self.out, self.err = code, captured.out, captured.err

    @property
    def line(self):
        """The only line of stderr."""
        lines = [line for line in self.err.splitlines() if not line.startswith("searching ")]
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def moeplan(monkeypatch, capsys, tmp_path):
    """moeplan(*arguments): the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["moeplan", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return Done(caught.value.code, capsys.readouterr())

    return run


@pytest.fixture
def plan_file(moeplan, tmp_path):
    assert moeplan("optimize", *CASE, *FAMILY).code == 0
    return tmp_path / "plan.json"


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_optimize_ranks_every_family_and_writes_the_plan_of_the_first(moeplan, tmp_path):
    done = moeplan("optimize", *CASE, "-o", "best.json", "--format", "json")
    assert done.code == 0
    told = json.loads(done.out)
    ranking = told["ranking"]
    assert {row["family"] for row in ranking} == {"colocated", "piper", "disaggregated"}
    assert [row["step_s"] for row in ranking] == sorted(row["step_s"] for row in ranking)
    plan = read_plan(tmp_path / "best.json")
    assert plan.predictions.step_s == ranking[0]["step_s"]
    assert plan.provenance.software == f"moeplan {__version__}"
    assert [file.name for file in tmp_path.iterdir()] == ["best.json"]
    assert any(row["because"] == "cannot be 3% faster than the best" and row["such_as"] for row in told["pruned"])
    assert any(note.startswith("why: ") for note in told["notes"])
    assert "wrote best.json" in done.err


def test_the_table_names_units_and_the_baseline(moeplan):
    done = moeplan("optimize", *CASE, *FAMILY)
    for word in ("step s", "tokens/s", "MFU", "peak GiB", "exposed s", "bubble", "colocated", "piper"):
        assert word in done.out
    assert "FLOP/s dense bf16 of each of 4 GPUs, causal attention" in done.out


def test_optimize_as_csv_has_a_header_and_a_row_per_family(moeplan):
    rows = rows_of(moeplan("optimize", *CASE, *FAMILY, "--format", "csv").out)
    assert {row["family"] for row in rows} == {"colocated", "piper"}
    assert all(float(row["step_s"]) > 0 and 0 < float(row["mfu"]) < 1 for row in rows)


def test_a_plan_on_stdout_stands_alone(moeplan, tmp_path):
    done = moeplan("optimize", *CASE, *FAMILY, "-o", "-")
    assert done.code == 0
    assert json.loads(done.out)["schema"] == "moeplan.plan"
    assert "tokens/s" in done.err
    assert list(tmp_path.iterdir()) == []


def test_set_reaches_the_plan(moeplan, tmp_path):
    settings = ["--set", "model.top_k=4", "--set", "layout.pp=2", "--set", "memory.bytes_per_parameter=16"]
    assert moeplan("optimize", *CASE, *FAMILY, *settings).code == 0
    plan = read_plan(tmp_path / "plan.json")
    assert (plan.case.model.top_k, plan.layout.pp, plan.case.memory.bytes_per_parameter) == (4, 2, 16)


def test_equal_commands_write_equal_plans_but_for_provenance(moeplan, tmp_path):
    written = []
    for name in ("one.json", "two.json"):
        assert moeplan("optimize", *CASE, *FAMILY, "-o", name).code == 0
        written.append({k: v for k, v in json.loads((tmp_path / name).read_text()).items() if k != "provenance"})
    assert json.dumps(written[0]) == json.dumps(written[1])


def test_simulate_repeats_the_prediction_and_writes_a_trace_that_reads_back(moeplan, plan_file, tmp_path):
    done = moeplan("simulate", plan_file, "--trace", "trace.json", "--format", "json")
    assert done.code == 0
    told, plan = json.loads(done.out), read_plan(plan_file)
    assert told["step_s"] == plan.predictions.step_s
    assert len(told["positions"]) == len(plan.graph.positions)
    for position in told["positions"]:
        spent = position["compute_s"] + position["exposed_communication_s"] + position["bubble_s"]
        assert spent == pytest.approx(told["step_s"])
    trace = read_chrome(tmp_path / "trace.json")
    assert sorted(span.op for span in trace.spans) == list(range(told["operations"]))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["args"]["op"] for e in events if e["ph"] == "X"} == set(range(told["operations"]))


@pytest.mark.parametrize("command", ["simulate", "show"])
def test_tables_and_csv_of_a_plan(moeplan, plan_file, command):
    rows = rows_of(moeplan(command, plan_file, "--format", "csv").out)
    assert [row["position"] for row in rows] == [p.name for p in read_plan(plan_file).graph.positions]
    done = moeplan(command, plan_file)
    assert done.code == 0
    assert "stage 0" in done.out
    assert done.err == ""


def test_show_tells_total_and_active_parameters(moeplan, plan_file):
    told = json.loads(moeplan("show", plan_file, "--format", "json").out)
    assert told["parameters"] > told["active_parameters"] > 0
    assert told["world"] == 4
    assert told["weights_gb"] == pytest.approx(2 * told["parameters"] / 1e9)
    assert [p["ranks"] for p in told["positions"]] == ["0-3"]


BAD_INPUT = {
    "unknown model": (["--model", "tiny-mo"], "no model 'tiny-mo'; did you mean 'tiny-moe'?"),
    "unknown cluster": (["--cluster", "lapptop"], "no cluster 'lapptop'; did you mean 'laptop'?"),
    "unknown calibration": (["--calibration", "h801"], "no calibration 'h801'; did you mean 'h800'?"),
    "missing file": (["--model", "none.toml"], "none.toml: No such file or directory"),
    "broken TOML": (["--model", "broken.toml"], "broken.toml: not valid TOML"),
    "broken JSON": (["--model", "broken.json"], "broken.json: not valid JSON"),
    "other family": (["--model", "llama.json"], "llama"),
    "negative length": (["--seq-len", "-64"], "options: Expected `int` >= 1 - at `$.seq_len`"),
    "empty batch": (["--global-batch", "0"], "options: Expected `int` >= 1 - at `$.global_batch`"),
    "absurd batch": (["--global-batch", str(10**12)], "options: Expected `int` <= 100000000"),
    "negative size": (["--set", "model.hidden=-64"], "Expected `int` >= 1 - at `$.model.hidden`"),
    "wrong dimension": (["--set", "cluster.node.link=200 GiB"], "'200 GiB' is not a BytesPerS; units: B/s"),
    "no unit": (["--set", "cluster.node.link=200"], "200 needs a unit, written as text"),
    "unknown field": (["--set", "model.topk=4"], "no field 'topk'; fields of model: name, num_layers"),
    "no setting": (["--set", "model.top_k"], "not a setting; right: path=value"),
    "top-k above experts": (["--set", "model.top_k=9"], "top_k 9 is not within 1..experts 8"),
    "heads": (["--set", "model.attention.kv_heads=3"], "heads 4 % kv_heads 3 is not 0"),
    "unknown family": (["--family", "ring"], "family 'ring' is not known; there are colocated, piper, disaggregated"),
    "unknown degree": (["--set", "layout.sp=2"], "layout.sp: layouts have"),
    "undividing degree": (["--set", "layout.pp=3"], "does not divide 4 GPUs"),
    "undividing experts": (["--set", "layout.ep=3"], "8 experts % ep 3 is not 0; ep may be 1, 2, 4"),
    "unknown type": (["--dtype", "fp8"], "--dtype 'fp8' is not one of bf16, fp32, fp64"),
    "type without a peak": (["--cluster", "h800-16x8", "--gpus", "8", "--dtype", "fp64"], "no peak for fp64"),
    "part of a node": (["--cluster", "h800-16x8", "--gpus", "12"], "12 GPUs are not whole nodes of 8"),
    "too many GPUs": (["--cluster", "h800-16x8", "--gpus", "136"], "136 GPUs asked for, of 128; take 1 to 128"),
    "no GPUs": (["--gpus", "0"], "0 GPUs asked for, of 8; take 1 to 8"),
    "unknown format": (["--format", "xml"], "--format 'xml' is not table, json or csv"),
    "no such folder": (["-o", "none/plan.json"], "none is not a folder that can be written to"),
    "a folder": (["-o", "."], "is not a regular file; a file is written"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_no_file(moeplan, tmp_path, name):
    arguments, message = BAD_INPUT[name]
    (tmp_path / "broken.toml").write_text('name = "x')
    (tmp_path / "broken.json").write_text('{"model_type": "mixtral",')
    (tmp_path / "llama.json").write_text('{"model_type": "llama"}')
    before = sorted(tmp_path.iterdir())
    done = moeplan("optimize", *CASE, *FAMILY, *arguments)
    assert done.code == 2
    assert done.line.startswith("moeplan: ")
    assert message in done.line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [[], ["optimize"], ["optimize", *CASE[2:]], ["optimize", *CASE, "--gpus", "many"], ["optimise"], ["show"]],
    ids=["nothing", "no options", "no model", "no number", "no command", "no plan"],
)
def test_wrong_usage_is_told_with_exit_code_2(moeplan, tmp_path, arguments):
    done = moeplan(*arguments)
    assert done.code == 2
    assert "Usage: " in done.out + done.err if not arguments else done.line.startswith("moeplan: ")
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_plan_stays_where_nothing_fits(moeplan, plan_file):
    before = plan_file.read_bytes()
    done = moeplan("optimize", *CASE, *FAMILY, "--set", "memory.usable=0.0001")
    assert done.code == 1
    assert "GiB short" in done.line
    assert plan_file.read_bytes() == before


def test_where_nothing_fits_the_exit_code_is_1_and_the_shortage_is_in_gib(moeplan, tmp_path):
    done = moeplan("optimize", *CASE, "--set", "memory.usable=0.0001", "--format", "json")
    assert done.code == 1
    assert "no layout for" in done.line
    assert "GiB of usable HBM per GPU" in done.line
    rows = json.loads(done.out)["ranking"]
    assert not any(row["fits"] for row in rows)
    assert any(row.get("short_gib", 0) > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_strict_makes_a_warning_an_exit_code(moeplan, tmp_path):
    ragged = [*CASE, "--global-batch", "7", *FAMILY, "--set", "layout.pp=1"]
    done = moeplan("optimize", *ragged)
    assert done.code == 0
    assert "warning: the last micro-batch is short" in done.err
    assert moeplan("optimize", *ragged, "--strict").code == 1
    assert moeplan("optimize", *CASE, *FAMILY, "--set", "layout.pp=1", "--strict").code == 0


@pytest.mark.parametrize("command", ["simulate", "show", "run"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "plan.json: No such file or directory"),
        ("{", "plan.json: not valid JSON"),
        ('{"schema": "moeplan.plan", "schema_version": "9.0"}', "9.0 is newer than"),
        ('{"schema": "moeplan.plan", "schema_version": "0.1"}', "0.1 is older than"),
        ('{"schema": "moeplan.plan", "schema_version": "1.0"}', "missing required field"),
    ],
    ids=["missing", "broken", "newer", "older", "incomplete"],
)
def test_a_bad_plan_is_one_line_for_every_command(moeplan, tmp_path, command, content, message):
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    done = moeplan(command, "plan.json")
    assert done.code == 2
    assert message in done.line
    assert done.out == ""


def test_run_without_torch_says_how_to_install_it(moeplan, plan_file, monkeypatch):
    monkeypatch.setattr(cli.run, "find_spec", lambda name: None)
    done = moeplan("run", plan_file)
    assert done.code == 2
    assert "pip install 'moeplan[run]'" in done.line


def test_run_refuses_an_unknown_device(moeplan, plan_file):
    done = moeplan("run", plan_file, "--device", "abacus")
    assert done.code == 2
    assert "--device 'abacus' is not cpu or cuda" in done.line


def test_debug_shows_where_an_error_came_from(moeplan):
    done = moeplan("--debug", "show", "none.json")
    assert done.code == 2
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("moeplan: none.json")


def test_version(moeplan):
    done = moeplan("--version")
    assert (done.code, done.out) == (0, f"moeplan {__version__}\n")


@pytest.mark.parametrize("command", [command.callback.__name__ for command in cli.app.registered_commands])
def test_the_help_of_every_command_has_an_example(moeplan, command):
    done = moeplan(command, "--help")
    assert done.code == 0
    assert f"Example: moeplan {command} " in done.out


def test_an_estimate_is_told_per_position_and_may_become_a_plan(moeplan, tmp_path):
    done = moeplan("estimate", *CASE, "--pp", 2, "--ep", 2, "--format", "json", "-o", "by-hand.json")
    assert done.code == 0
    told = json.loads(done.out)
    assert [row["position"] for row in told["positions"]] == ["stage 0", "stage 1"]
    assert (told["data_parallel"], told["expert_data_parallel"]) == (2, 1)
    assert told["peak_hbm_gb"] * 1e9 == pytest.approx(told["peak_hbm_gib"] * 2**30)
    plan = read_plan(tmp_path / "by-hand.json")
    assert plan.predictions.step_s == told["step_s"]
    assert moeplan("simulate", "by-hand.json").code == 0


def test_an_estimate_has_one_row_per_position_in_csv_and_marks_the_fullest_in_a_table(moeplan):
    table = moeplan("estimate", *CASE, "--attention-gpus", 2, "--ffn-gpus", 2)
    assert table.code == 0
    assert sum(" *" in line.split("  ")[0] for line in table.out.splitlines()) == 2
    rows = rows_of(moeplan("estimate", *CASE, "--attention-gpus", 2, "--ffn-gpus", 2, "--format", "csv").out)
    assert [row["position"] for row in rows] == ["A0", "F0"]


def test_what_the_executor_would_refuse_is_a_warning_of_the_plan(moeplan, tmp_path):
    scored = ["--set", "model.scoring=sigmoid", "--set", "model.routed_scale=2.5"]
    assert moeplan("estimate", *CASE, *scored, "--tp", 2, "--etp", 1, "-o", "plan.json").code == 0
    warnings = read_plan(tmp_path / "plan.json").warnings
    (told,) = (warning for warning in warnings if warning.startswith("moeplan run: "))
    for refused in ("tp 2 cannot be run", "model.scoring 'sigmoid' cannot be run", "model.routed_scale 2.5 cannot"):
        assert refused in told
    assert "cannot be run" in moeplan("run", "plan.json").line


def test_an_estimate_tells_the_closed_form_with_its_parts(moeplan):
    options = ["estimate", *CASE, "--pp", 2, "--ep", 2]
    table, told = moeplan(*options).out, json.loads(moeplan(*options, "--format", "json").out)
    closed = told["closed_form"]
    assert set(closed) == {"step_s", "low_s", "high_s", "parts"}
    assert f"closed form: {closed['step_s']:.4g} s; nine of ten steps between {closed['low_s']:.4g} and" in table
    for part in closed["parts"]:
        assert set(part) == {"name", "what", "seconds", "share", "source"}
        (line,) = (line for line in table.splitlines() if line.split()[:1] == [part["name"]] and part["what"] in line)
        assert line.split()[-2:] == [f"{part['share']:.1%}", part["source"]]


def test_two_sides_have_no_closed_form_and_that_is_no_error(moeplan):
    options = ["estimate", *CASE, "--attention-gpus", 2, "--ffn-gpus", 2]
    assert "closed form: none\n" in moeplan(*options).out
    assert json.loads(moeplan(*options, "--format", "json").out)["closed_form"] is None


def test_a_schedule_without_an_order_is_answered_by_the_closed_form_alone(moeplan, tmp_path):
    options = ["estimate", *CASE, "--pp", 4, "--schedule", "dualpipe"]
    done = moeplan(*options)
    assert done.code == 0
    assert "closed form: " in done.out
    assert done.line == "note: schedule 'dualpipe' has a closed form alone: not simulated, cannot be run"
    assert "peak GiB" in done.out
    told = json.loads(moeplan(*options, "--format", "json").out)
    assert told["closed_form"]["step_s"] == pytest.approx(sum(part["seconds"] for part in told["closed_form"]["parts"]))
    step, *rows = rows_of(moeplan(*options, "--format", "csv").out)
    assert (step["name"], *(float(step[name]) for name in ("seconds", "low_s", "high_s"))) == (
        "step",
        *(told["closed_form"][name] for name in ("step_s", "low_s", "high_s")),
    )
    named = [part["name"] for part in told["closed_form"]["parts"]] + [row["position"] for row in told["positions"]]
    assert [row["name"] for row in rows] == named
    assert [float(row["peak_gib"]) for row in rows[-4:]] == [row["peak_gib"] for row in told["positions"]]
    refused = moeplan(*options, "-o", "plan.json")
    assert refused.code == 2
    assert "no order that a plan could hold" in refused.line
    assert not (tmp_path / "plan.json").exists()


def test_context_parallelism_is_estimated_and_written_and_not_run(moeplan, tmp_path):
    done = moeplan("estimate", *CASE, "--cp", 2, "--ep", 2, "--format", "json", "-o", "plan.json")
    assert done.code == 0
    told = json.loads(done.out)
    assert told["data_parallel"] == 2
    assert "context" in {part["name"] for part in told["closed_form"]["parts"]}
    plan = read_plan(tmp_path / "plan.json")
    assert (plan.layout.cp, plan.graph.cp) == (2, 2)
    again = json.loads(moeplan("simulate", "plan.json", "--format", "json").out)
    assert again["step_s"] == told["step_s"]
    assert any(warning.startswith("moeplan run: cp 2 cannot be run") for warning in plan.warnings)
    refused = moeplan("run", "plan.json")
    assert refused.code == 2
    assert "cp 2 cannot be run" in refused.line


def test_modules_may_be_computed_again(moeplan, tmp_path):
    options = ["--recompute", "experts+norm+activation"]
    done = moeplan("estimate", *CASE, *options, "-o", "plan.json")
    assert done.code == 0
    assert "none/experts+norm+activation" in done.out
    assert read_plan(tmp_path / "plan.json").recompute.modules == ("norm", "activation")
    shown = json.loads(moeplan("show", "plan.json", "--format", "json").out)
    assert shown["recompute"] == "attention none, ffn experts, norm, activation"
    assert "recompute of modules norm, activation cannot be run" in moeplan("run", "plan.json").line


WIDE = [
    *("--model", "deepseek-moe-16b", "--set", "model.num_layers=4", "--cluster", "h800-16x8", "--gpus", "16"),
    *("--seq-len", "4096", "--global-batch", "64"),
]
CARRIED_OUT = ["linear=mxfp8", "kernels=fused", "dispatcher=deepep", "hidden=expert,tensor"]


@pytest.mark.parametrize("setting", CARRIED_OUT)
def test_how_a_step_is_carried_out_reaches_the_search(moeplan, tmp_path, setting):
    """Across nodes, so that the dispatcher and what hides it matter."""
    degrees = ["--set", "layout.ep=16", "--set", "layout.pp=1", "--set", "layout.tp=1"]
    step_s = []
    for settings in ([], ["--set", f"execution.{setting}"]):
        done = moeplan("optimize", *WIDE, "--family", "colocated", *degrees, *settings, "--format", "json")
        assert done.code == 0
        step_s.append(json.loads(done.out)["ranking"][0]["step_s"])
    assert step_s[1] < step_s[0]
    name, value = setting.split("=")
    kept = getattr(read_plan(tmp_path / "plan.json").case.execution, name)
    assert kept == (("expert", "tensor") if name == "hidden" else value)
    assert f"execution.{name}" in moeplan("run", "plan.json").line


@pytest.mark.parametrize("setting", ["memory.zero=3", "memory.offload=1"])
def test_where_the_state_is_reaches_the_search(moeplan, setting):
    static = []
    for settings in ([], ["--set", setting]):
        options = ["--family", "colocated", "--set", "layout.pp=1", "--set", "layout.ep=1", *settings]
        assert moeplan("optimize", *WIDE, *options).code == 0
        static.append(json.loads(moeplan("show", "plan.json", "--format", "json").out)["positions"][0]["static_gib"])
    assert static[1] < 0.9 * static[0]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("execution.linear=fp9", "right is fp8, fp8_block, mxfp8, nvfp4, same"),
        ("execution.kernels=quick", "eager, fused"),
        ("execution.dispatcher=mpi", "right is all_gather, all_to_all, deepep, hybridep"),
        ("execution.hidden=tensor,all", "right is context, expert, gradients, parameters, tensor"),
        ("memory.zero=4", "<= 3"),
        ("memory.offload=2", "<= 1"),
    ],
)
def test_what_is_no_way_to_carry_out_a_step_is_refused_with_those_there_are(moeplan, setting, words):
    for command in ("estimate", "optimize"):
        done = moeplan(command, *CASE, "--set", setting)
        assert done.code == 2
        assert words in done.line


def test_an_estimate_that_does_not_fit_says_so_and_is_no_error(moeplan):
    done = moeplan("estimate", *CASE, "--set", "memory.usable=0.0001")
    assert done.code == 0
    assert "does not fit: " in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "2", "--pp", "2", "--ep", "2"], "etp 2 * ep 2 * pp 2 = 8 does not divide 4 GPUs"),
        (["--pp-split", "2"], "split [2] has 2 layers, not 4"),
        (["--pp-split", "2;2"], "--pp-split '2;2'"),
        (["--set", "layout.pp=2"], "estimate takes degrees as options"),
        (["--schedule", "af-pipe"], "schedule 'af-pipe' is not one of colocated: 1f1b, interleaved, gpipe"),
        (["--recompute", "some"], "--recompute 'some'"),
        (["--pp", "0"], "'--pp', '0': Input should be greater than or equal to 1"),
        (["--ep", "3"], "ep 3"),
    ],
)
def test_an_estimate_of_what_cannot_be_is_refused(moeplan, options, message, tmp_path):
    done = moeplan("estimate", *CASE, *options, "-o", "plan.json")
    assert done.code == 2
    assert message in done.line
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("degrees", [["--depth", "1000000000"], ["--attention-gpus", "2", "--ffn-gpus", "4"]])
def test_what_would_take_for_ever_or_has_no_ranks_is_refused_at_once(moeplan, degrees):
    sides = [] if "--ffn-gpus" in degrees else ["--attention-gpus", "2", "--ffn-gpus", "2"]
    assert moeplan("estimate", *CASE, *sides, *degrees).code == 2


def test_orders_that_are_too_long_are_refused_before_they_are_made(moeplan):
    case = [*CASE[:6], "--seq-len", "1", "--global-batch", "100000000"]
    assert "actions in a step; at most 400,000 are simulated" in moeplan("estimate", *case).line


def test_a_dense_model_is_planned_on_several_nodes(moeplan):
    case = ["--model", "tiny-moe", "--cluster", "h800-16x8", "--gpus", "16", "--seq-len", "64", "--global-batch", "16"]
    dense = ["--set", "model.top_k=0", "--set", "model.dense_layers=4", "--set", "model.dense_width=96"]
    assert moeplan("optimize", *case, *dense).code == 0


def test_closed_streams_lose_what_is_written_to_them(moeplan, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "argv", ["moeplan", "estimate", *CASE, "-o", "plan.json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    sys.stdout.close()
    assert ended.value.code == 0
    assert (tmp_path / "plan.json").exists()


def test_a_loop_of_links_is_no_place_for_a_file(moeplan, tmp_path):
    (tmp_path / "loop.json").symlink_to("loop.json")
    assert "cannot be written" in moeplan("estimate", *CASE, "-o", "loop.json").line
    assert "is empty" in moeplan("estimate", *CASE, "-o", "").line


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("layout.attention_gpus=4", "attention 4 + ffn 1 ranks > 4 GPUs"),
        ("layout.deduplicate=true", "deduplicate true on one node"),
        ("layout.depth=17", "depth 17 is not searched; it may be (1, 2)"),
        ("layout.micro_batch=1000", "micro_batch 1000 > 8 sequences of a step"),
        ("layout.attention_nics=1", "layouts have attention_gpus"),
    ],
)
def test_degrees_that_no_layout_can_have_are_bad_input(moeplan, setting, message):
    done = moeplan("optimize", *CASE, "--family", "disaggregated", "--set", setting)
    assert done.code == 2
    assert message in done.line


def test_a_missing_file_is_not_called_a_bad_one(moeplan):
    line = moeplan("estimate", "--model", "none.toml", *CASE[2:]).line
    assert "No such file" in line
    assert "not valid TOML" not in line


def test_the_models_that_ship_are_listed_with_their_counts(moeplan):
    rows = {row["model"]: row for row in rows_of(moeplan("models", "--format", "csv").out)}
    assert rows["mixtral-8x7b"]["parameters"] == "46702792704"
    assert "tiny-moe" in moeplan("models").out
    assert {row["model"] for row in json.loads(moeplan("models", "--format", "json").out)["models"]} == set(rows)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("layout.tp=8", "tp 8 does not divide 4 GPUs"),
        ("layout.micro_batch=0", "layout.micro_batch: 0 is not a whole number of at least 1"),
        ("layout.deduplicate=5", "layout.deduplicate: 5 is not true or false"),
        ("layout.cp=2", "cp 2 is not planned"),
        ("layout.pairs=2", "no family of piper has pairs"),
        ("cluster.gpu.hbm_bandwidth='0 B/s'", "gpu.hbm_bandwidth is 0 B/s"),
        ("cluster.gpu.peak.bf16='0 FLOP/s'", "gpu.peak.bf16 is 0 FLOP/s"),
        ("model.experts=100000000", "<= 65536"),
    ],
)
def test_what_cannot_be_is_refused_by_its_rule(moeplan, setting, message):
    family = ["--family", "colocated"] if setting.startswith(("layout.tp", "layout.cp")) else FAMILY
    done = moeplan("optimize", *CASE, *family, "--set", setting)
    assert done.code == 2
    assert message in done.line


def test_a_micro_batch_that_is_set_need_not_be_a_usual_one(moeplan, tmp_path):
    done = moeplan("optimize", *CASE, *FAMILY, "--set", "layout.micro_batch=3", "-o", "three.json")
    assert done.code == 0
    assert json.loads((tmp_path / "three.json").read_text())["layout"]["micro_batch"] == 3


def test_what_is_no_file_is_neither_read_nor_replaced(moeplan, tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    assert "is not a regular file" in moeplan("optimize", "--model", "pipe.json", *CASE[2:]).line
    assert "is not a regular file" in moeplan("optimize", *CASE, *FAMILY, "-o", "pipe.json").line
    assert (tmp_path / "pipe.json").is_fifo()


def test_a_link_is_followed(moeplan, tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert moeplan("optimize", *CASE, *FAMILY, "-o", "link.json").code == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["schema"] == "moeplan.plan"


def test_a_trace_never_replaces_its_plan(moeplan, plan_file):
    before = plan_file.read_bytes()
    assert moeplan("simulate", str(plan_file), "--trace", str(plan_file)).code == 2
    assert plan_file.read_bytes() == before


def test_the_command_says_what_is_reached_and_what_is_no_validation(moeplan):
    done = moeplan("validate", "--paper", "piper")
    assert done.code == 0
    assert "which is assumed (calibration mi250x): no validation" in done.out
    assert "NOT reached" not in done.out
    told = json.loads(moeplan("validate", "--paper", "piper", "--format", "json").out)
    assert {fact["counts"] for fact in told["facts"]} == {True, False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--paper", "other"], "--paper 'other': is not compared; piper is"),
        (["--paper", "piper", "--runs", "x.csv"], "alone"),
    ],
)
def test_other_papers_are_refused(options, message, moeplan):
    done = moeplan("validate", *options)
    assert done.code == 2
    assert message in done.line
