"""`moeplan simulate` and `moeplan show`: what a plan file says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

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
    say_wrote,
)


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
    from moeplan.optimizer.evaluate import simulate as simulated
    from moeplan.plan import program_of
    from moeplan.plan_file import read_plan
    from moeplan.simulate import metrics, timeline_to_trace, write_chrome

    check_format(format_)
    check_trace(trace, plan_file)
    plan = read_plan(plan_file)
    program = program_of(plan)
    timeline = simulated(plan, program)
    use = metrics(program, timeline)
    if trace is not None:
        write_chrome(timeline_to_trace(program, plan.graph, timeline), trace)
        say_wrote(trace)
    rows = report.use_rows(plan, use)
    step_s, out = use.step_ns / 1e9, report_to(trace)
    if format_ == "table":
        report.print_table(rows, out, title=f"one step: {step_s:.6g} s, {len(program.ops)} operations")
    else:
        print(
            machine_readable(format_, rows, {"step_s": step_s, "operations": len(program.ops), "positions": rows}),
            file=out,
        )


@app.command()
def show(plan_file: PlanFile, format_: Format = "table") -> None:
    """Show what a plan says: layout, ranks, layers, memory and predictions.

    Example: moeplan show plan.json
    """
    from moeplan import report
    from moeplan.plan_file import read_plan

    check_format(format_)
    plan = read_plan(plan_file)
    plan = fresh(plan)
    facts, rows = report.plan_facts(plan), report.position_rows(plan)
    if format_ == "table":
        report.print_table(
            [{"what": report.heading(k), "value": report.cell(v, k)} for k, v in facts.items()], sys.stdout
        )
        report.print_table(rows, sys.stdout)
        for line in (*plan.assumptions, *(f"warning: {w}" for w in plan.warnings)):
            print(line)
    else:
        print(machine_readable(format_, rows, {**facts, "positions": rows}))
