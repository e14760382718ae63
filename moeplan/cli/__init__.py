"""The command line: options in, one call of the planner, simulator or executor, a report out.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 no feasible plan, 2 bad input or usage, 3 a run
failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from msgspec import structs

from moeplan import __version__
from moeplan.errors import ExecutionError, MoeplanError, SpecError
from moeplan.plan import Plan, Provenance
from moeplan.spec.case import Case
from moeplan.spec.record import check_writable, to_json

if TYPE_CHECKING:
    from moeplan_exec.run import RunResult, StepResult

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Plan, simulate and run the training of Mixture-of-Experts language models.",
)

USAGE_ERRORS: Any = typer.BadParameter.__mro__[1]
"""What a wrong option raises: typer names only this one kind of it."""

Format = Annotated[str, typer.Option("--format", help="table, json or csv")]
PlanFile = Annotated[Path, typer.Argument(help="a plan.json", metavar="PLAN")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"moeplan {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show a traceback with an error")] = False,
) -> None:
    """Options of every command."""


@app.command()
def optimize(  # noqa: PLR0913
    model: Annotated[str, typer.Option("--model", help="shipped name, TOML file, or HuggingFace config.json")],
    cluster: Annotated[str, typer.Option("--cluster", help="shipped name or TOML file")],
    seq_len: Annotated[int, typer.Option("--seq-len", help="tokens per sequence")],
    global_batch: Annotated[int, typer.Option("--global-batch", "--gbs", help="sequences per step")],
    gpus: Annotated[int | None, typer.Option("--gpus", help="use the first N GPUs, in node order")] = None,
    family: Annotated[list[str] | None, typer.Option("--family", help="search this family (may be repeated)")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="override an input: model.top_k=4")] = None,
    calibration: Annotated[str | None, typer.Option("--calibration", help="shipped name or TOML file")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="bf16, fp32 or fp64")] = "bf16",
    output: Annotated[str, typer.Option("-o", "--output", help="where the plan goes; - is stdout")] = "plan.json",
    strict: Annotated[bool, typer.Option("--strict", help="exit with 1 on a warning")] = False,
    format_: Format = "table",
) -> None:
    """Choose the best layout and write its plan.

    Example: moeplan optimize --model tiny-moe --cluster laptop --seq-len 64 --global-batch 16 -o plan.json
    """
    from moeplan import planner, report
    from moeplan.spec.shipped import load_calibration

    _check_format(format_)
    _check_output(output)
    case, fixed = read_case(model, cluster, seq_len, global_batch, gpus, dtype, settings or [])
    measured = load_calibration(calibration or case.cluster.calibration)
    ranking = planner.optimize(
        case, measured, families=family or (), fixed=fixed, progress=lambda name: _say(f"searching {name}")
    )
    out = sys.stderr if output == "-" else sys.stdout
    rows = report.ranking_rows(ranking)
    if format_ == "table":
        report.print_ranking(ranking, out)
    else:
        print(_machine(format_, rows, {"ranking": rows, "notes": report.ranking_notes(ranking)}), file=out)
    plan = planner.winner(ranking)
    _write_plan(plan, output)
    if strict and plan.warnings:
        raise typer.Exit(1)


def read_case(
    model: str, cluster: str, seq_len: int, global_batch: int, gpus: int | None, dtype: str, settings: list[str]
) -> tuple[Case, dict[str, Any]]:
    """The case that the options describe, and the degrees that `--set layout.x=n` fixes."""
    from moeplan.resources.work import ELEMENT_BYTES
    from moeplan.spec.case import check_case
    from moeplan.spec.cluster import first_gpus
    from moeplan.spec.override import override, split_settings
    from moeplan.spec.record import convert
    from moeplan.spec.shipped import load_cluster, load_model
    from moeplan.spec.workload import Workload

    if dtype not in ELEMENT_BYTES:
        raise SpecError(f"--dtype {dtype!r} is not one of {', '.join(ELEMENT_BYTES)}")
    raw = {"seq_len": seq_len, "global_batch": global_batch, "dtype": dtype}
    machine = load_cluster(cluster)
    case = Case(
        model=load_model(model),
        cluster=machine if gpus is None else first_gpus(machine, gpus),
        workload=convert(raw, Workload, where="options"),
    )
    inputs, fixed = split_settings(settings)
    return check_case(override(case, inputs)), fixed


def _check_trace(trace: Path | None, plan_file: Path) -> None:
    """SpecError before the work where the trace could not be written, or would replace the plan."""
    if trace is not None:
        _check_output(str(trace))
        if trace.resolve() == plan_file.resolve():
            raise SpecError(f"--trace {trace}: is the plan itself")


def _check_output(output: str) -> None:
    """SpecError before the work where the plan could not be written after it."""
    if output.endswith(("/", os.sep)):
        raise SpecError(f"{output}: names a folder; a file is written")
    if output != "-":
        check_writable(Path(output))


def _write_plan(plan: Plan, output: str) -> None:
    provenance = Provenance(
        software=f"moeplan {__version__}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(sys.argv[1:]),
    )
    plan = structs.replace(plan, provenance=provenance)
    if output == "-":
        sys.stdout.write(to_json(plan).decode())
        return
    from moeplan.plan import write_plan

    write_plan(plan, Path(output))
    _say(f"wrote {output}")
    for warning in plan.warnings:
        _say(f"warning: {warning}")


@app.command()
def simulate(
    plan_file: PlanFile,
    trace: Annotated[Path | None, typer.Option("--trace", help="write a Chrome trace (opens in Perfetto)")] = None,
    format_: Format = "table",
) -> None:
    """Simulate one step of a plan, from its own schedule text.

    Example: moeplan simulate plan.json --trace trace.json
    """
    from moeplan import report
    from moeplan.optimize.evaluate import simulate as simulated
    from moeplan.plan import program_of, read_plan
    from moeplan.simulate import metrics, timeline_to_trace, write_chrome

    _check_format(format_)
    _check_trace(trace, plan_file)
    plan = read_plan(plan_file)
    program = program_of(plan)
    timeline = simulated(plan, program)
    use = metrics(program, timeline)
    if trace is not None:
        write_chrome(timeline_to_trace(program, plan.graph, timeline), trace)
        _say(f"wrote {trace}")
    rows = report.use_rows(plan, use)
    step_s = use.step_ns / 1e9
    if format_ == "table":
        report.print_table(rows, sys.stdout, title=f"one step: {step_s:.6g} s, {len(program.ops)} operations")
    else:
        print(_machine(format_, rows, {"step_s": step_s, "operations": len(program.ops), "positions": rows}))


@app.command()
def show(plan_file: PlanFile, format_: Format = "table") -> None:
    """Show what a plan says: layout, ranks, layers, memory and predictions.

    Example: moeplan show plan.json
    """
    from moeplan import report
    from moeplan.plan import read_plan

    _check_format(format_)
    plan = read_plan(plan_file)
    plan = _fresh(plan)
    facts, rows = report.plan_facts(plan), report.position_rows(plan)
    if format_ == "table":
        report.print_table(
            [{"what": k.replace("_", " "), "value": report.cell(v, k)} for k, v in facts.items()], sys.stdout
        )
        report.print_table(rows, sys.stdout)
        for line in (*plan.assumptions, *(f"warning: {w}" for w in plan.warnings)):
            print(line)
    else:
        print(_machine(format_, rows, {**facts, "positions": rows}))


@app.command()
def run(
    plan_file: PlanFile,
    steps: Annotated[int, typer.Option("--steps", min=1, help="optimizer steps")] = 5,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda")] = "cpu",
    trace: Annotated[Path | None, typer.Option("--trace", help="write the measured Chrome trace")] = None,
    seed: Annotated[int, typer.Option("--seed", help="of parameters and data")] = 0,
    format_: Format = "table",
) -> None:
    """Run a plan: start its ranks on this machine, or join torchrun or srun.

    Example: moeplan run plan.json --steps 5
    """
    from moeplan.plan import read_plan

    _check_format(format_)
    if device not in ("cpu", "cuda"):
        raise SpecError(f"--device {device!r} is not cpu or cuda")
    _check_trace(trace, plan_file)
    plan = read_plan(plan_file)
    if find_spec("torch") is None:
        raise SpecError("moeplan run needs torch: pip install 'moeplan[run]' ('.[run]' in a clone)")
    from moeplan_exec.launch import launch
    from moeplan_exec.run import Options, leave
    from moeplan_exec.run import run as run_rank
    from moeplan_exec.start import from_environment

    plan = _fresh(plan)
    options = Options(steps=steps, device=device, seed=seed, trace=trace is not None)  # type: ignore[arg-type]
    start = from_environment()
    report_step = _progress(steps) if start is None or start.rank == 0 else (lambda step: None)
    try:
        result = (launch if start is None else run_rank)(plan, options, on_step=report_step)
        if start is None or start.rank == 0:
            _report_run(plan, result, trace, format_)
    except (ExecutionError, KeyboardInterrupt) as error:
        if start is None:
            raise
        _say("moeplan: interrupted" if isinstance(error, KeyboardInterrupt) else f"moeplan: {error}")
        leave(130 if isinstance(error, KeyboardInterrupt) else ExecutionError.exit_code)


def _fresh(plan: Plan) -> Plan:
    """`plan` with predictions for its own schedule text."""
    from moeplan.optimize.evaluate import refreshed
    from moeplan.plan import is_stale

    if is_stale(plan):
        _say("note: the schedule was edited; predictions are simulated again")
    return refreshed(plan)


def _progress(steps: int) -> Callable[[StepResult], None]:
    """A line per step on stderr, with a bar where that is a terminal."""
    width = 24

    def tell(step: StepResult) -> None:
        done = (step.step + 1) * width // steps
        bar = f"[{'=' * done}{' ' * (width - done)}] " if sys.stderr.isatty() else ""
        _say(f"{bar}step {step.step + 1}/{steps}  loss {step.loss:.6f}  {step.seconds:.3f} s")

    return tell


def _report_run(plan: Plan, result: RunResult, trace: Path | None, format_: str) -> None:
    from moeplan import report
    from moeplan.simulate import write_chrome

    if trace is not None:
        write_chrome(result.trace, trace)
        _say(f"wrote {trace}")
    rows = [{"step": s.step + 1, "loss": s.loss, "measured_s": s.seconds} for s in result.steps]
    predicted = {"predicted_s": plan.predictions.step_s}
    if format_ == "table":
        report.print_table([row | predicted for row in rows], sys.stdout)
    else:
        print(_machine(format_, [row | predicted for row in rows], {"steps": rows, **predicted}))


def _check_format(name: str) -> None:
    if name not in ("table", "json", "csv"):
        raise SpecError(f"--format {name!r} is not table, json or csv")


def _machine(name: str, rows: list[dict[str, Any]], whole: dict[str, Any]) -> str:
    """The result as JSON (whole) or CSV (its rows)."""
    from moeplan import report

    return report.as_json(whole) if name == "json" else report.as_csv(rows)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> NoReturn:
    """Run the command line; errors become one line on stderr and an exit code."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        _end(code if isinstance(code, int) else 0)
    except MoeplanError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        _say(f"moeplan: {' '.join(str(error).split())}")
        _end(error.exit_code)
    except USAGE_ERRORS as error:
        _say(f"moeplan: {' '.join(error.format_message().split())} (moeplan --help)")
        _end(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _end(130)
    except BrokenPipeError:
        _end(0)
    except OSError as error:
        _say(f"moeplan: output cannot be written: {error.strerror or error}")
        _end(3)


def _end(code: int) -> NoReturn:
    """Exit with `code`; what stdout still holds is lost where it cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
