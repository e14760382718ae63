"""`moeplan run`: the only command that sees the executor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeplan.cli.app import (
    Format,
    PlanFile,
    app,
    check_format,
    check_trace,
    fresh,
    machine_readable,
    report_to,
    say,
    say_wrote,
)
from moeplan.errors import ExecutionError, SpecError
from moeplan.plan import Plan

if TYPE_CHECKING:
    from moeplan_exec.run import RunResult, StepResult


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
    from moeplan.plan_file import read_plan

    check_format(format_)
    if device not in ("cpu", "cuda"):
        raise SpecError(f"--device {device!r} is not cpu or cuda")
    check_trace(trace, plan_file)
    plan = read_plan(plan_file)
    if find_spec("torch") is None:
        raise SpecError("moeplan run needs torch: pip install 'moeplan[run]' ('.[run]' in a clone)")
    from moeplan_exec.launch import launch
    from moeplan_exec.run import Options, leave
    from moeplan_exec.run import run as run_rank
    from moeplan_exec.start import from_environment

    plan = fresh(plan)
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
        say("moeplan: interrupted" if isinstance(error, KeyboardInterrupt) else f"moeplan: {error}")
        leave(130 if isinstance(error, KeyboardInterrupt) else ExecutionError.exit_code)


def _progress(steps: int) -> Callable[[StepResult], None]:
    """A line per step on stderr, with a bar where that is a terminal."""
    width = 24

    def tell(step: StepResult) -> None:
        done = (step.step + 1) * width // steps
        bar = f"[{'=' * done}{' ' * (width - done)}] " if sys.stderr.isatty() else ""
        say(f"{bar}step {step.step + 1}/{steps}  loss {step.loss:.6f}  {step.seconds:.3f} s")

    return tell


def _report_run(plan: Plan, result: RunResult, trace: Path | None, format_: str) -> None:
    from moeplan import report
    from moeplan.simulate import write_chrome

    if trace is not None:
        write_chrome(result.trace, trace)
        say_wrote(trace)
    rows = [{"step": s.step + 1, "loss": s.loss, "measured_s": s.seconds} for s in result.steps]
    predicted, out = {"predicted_s": plan.predictions.step_s}, report_to(trace)
    if format_ == "table":
        report.print_table([row | predicted for row in rows], out)
    else:
        print(machine_readable(format_, [row | predicted for row in rows], {"steps": rows, **predicted}), file=out)
