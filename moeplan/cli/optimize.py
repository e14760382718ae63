"""`moeplan optimize`."""

from __future__ import annotations

from typing import Annotated

import typer

from moeplan.cli.app import (
    CalibrationName,
    Cluster,
    Dtype,
    Format,
    GlobalBatch,
    Gpus,
    Model,
    SeqLen,
    Settings,
    app,
    check_apart,
    check_format,
    check_output,
    machine_readable,
    read_case,
    report_to,
    say,
    say_stored,
    store_plan,
    with_refusals,
)


@app.command()
def optimize(  # noqa: PLR0913
    model: Model,
    cluster: Cluster,
    seq_len: SeqLen,
    global_batch: GlobalBatch,
    gpus: Gpus = None,
    family: Annotated[list[str] | None, typer.Option("--family", help="search this family (may be repeated)")] = None,
    settings: Settings = None,
    calibration: CalibrationName = None,
    dtype: Dtype = "bf16",
    output: Annotated[str, typer.Option("-o", "--output", help="where the plan goes; - is stdout")] = "plan.json",
    strict: Annotated[bool, typer.Option("--strict", help="exit with 1 on a warning")] = False,
    format_: Format = "table",
) -> None:
    """Choose the best layout and write its plan.

    Example: moeplan optimize --model tiny-moe --cluster laptop --seq-len 64 --global-batch 16 -o plan.json
    """
    from moeplan import planner, report
    from moeplan.spec.shipped import load_calibration

    check_format(format_)
    check_output(output)
    check_apart({"-o": output}, [model, cluster, calibration])
    case, fixed = read_case(model, cluster, seq_len, global_batch, gpus, dtype, settings or [])
    measured = load_calibration(calibration or case.cluster.calibration)
    ranking = planner.optimize(
        case, measured, families=family or (), fixed=fixed, progress=lambda name: say(f"searching {name}")
    )
    plan = with_refusals(ranking.best) if ranking.best else None
    if plan:
        store_plan(plan, output)
    out = report_to(output)
    if format_ == "table":
        report.print_ranking(ranking, out)
    else:
        print(machine_readable(format_, report.ranking_rows(ranking), ranking.to_dict()), file=out)
    if plan is None:
        planner.winner(ranking)
        return
    out.flush()
    say_stored(plan, output)
    if strict and plan.warnings:
        raise typer.Exit(1)
