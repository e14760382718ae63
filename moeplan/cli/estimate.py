"""`moeplan estimate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

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
from moeplan.errors import SpecError

if TYPE_CHECKING:
    from moeplan.closed import ClosedEstimate


@app.command()
def estimate(  # noqa: PLR0913
    model: Model,
    cluster: Cluster,
    seq_len: SeqLen,
    global_batch: GlobalBatch,
    gpus: Gpus = None,
    family: Annotated[str, typer.Option("--family", help="colocated (default), piper or disaggregated")] = "",
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="tensor parallel")] = None,
    cp: Annotated[int | None, typer.Option("--cp", min=1, help="context parallel")] = None,
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="pipeline parallel")] = None,
    vpp: Annotated[int | None, typer.Option("--vpp", min=1, help="virtual stages per position")] = None,
    pp_split: Annotated[str | None, typer.Option("--pp-split", help="layers per virtual stage: 9,8,8,7")] = None,
    ep: Annotated[int | None, typer.Option("--ep", min=1, help="expert parallel")] = None,
    etp: Annotated[int | None, typer.Option("--etp", min=1, help="expert tensor parallel (default: tp)")] = None,
    dp: Annotated[
        int | None,
        typer.Option("--dp", min=1, help="data parallel of attention; copies of the mesh for piper, disaggregated"),
    ] = None,
    attention_gpus: Annotated[int | None, typer.Option("--attention-gpus", min=1, help="ranks of attention")] = None,
    ffn_gpus: Annotated[int | None, typer.Option("--ffn-gpus", min=1, help="ranks of experts")] = None,
    pairs: Annotated[int | None, typer.Option("--pairs", min=1, help="groups of attention and of FFN ranks")] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="how much deeper AF-Pipe warms up")] = None,
    deduplicate: Annotated[bool, typer.Option("--deduplicate", help="rows cross once per node")] = False,
    micro_batch: Annotated[int, typer.Option("--micro-batch", "--mbs", min=1, help="sequences per rank")] = 1,
    recompute: Annotated[
        str,
        typer.Option(
            "--recompute",
            help="none, experts, full, or attention/ffn such as full/experts; modules after a +: none+norm+activation",
        ),
    ] = "none",
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="1f1b, interleaved, gpipe or af-pipe; in closed form alone zb-h1, zb-h2, zbv, v-half, v-min, dualpipe",
        ),
    ] = "",
    settings: Settings = None,
    calibration: CalibrationName = None,
    dtype: Dtype = "bf16",
    output: Annotated[str | None, typer.Option("-o", "--output", help="write the plan; - is stdout")] = None,
    format_: Format = "table",
) -> None:
    """Say what a layout given by hand would cost, per pipeline position, simulated and in closed form; it need not fit.

    Example: moeplan estimate --model mixtral-8x7b --cluster h800-16x8 --gpus 64 --seq-len 4096 --global-batch 256
    --pp 4 --ep 8
    """
    from moeplan import report
    from moeplan.by_hand import ByHand, layout_of, recompute_of, split_of
    from moeplan.closed import ONLY_CLOSED, closed_estimate
    from moeplan.estimator import estimate as estimated
    from moeplan.estimator import estimate_rows
    from moeplan.spec.shipped import load_calibration

    check_format(format_)
    if output is not None:
        check_output(output)
        check_apart({"-o": output}, [model, cluster, calibration])
    case, fixed = read_case(model, cluster, seq_len, global_batch, gpus, dtype, settings or [])
    if fixed:
        raise SpecError(f"--set layout.{next(iter(fixed))}: estimate takes degrees as options, such as --pp 4")
    given = ByHand(
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        split=split_of(pp_split) if pp_split is not None else None,
        ep=ep,
        etp=etp,
        dp=dp,
        attention_gpus=attention_gpus,
        ffn_gpus=ffn_gpus,
        pairs=pairs,
        depth=depth,
        deduplicate=deduplicate or None,
        micro_batch=micro_batch,
    )
    layout, rule = layout_of(case, given, family), recompute_of(recompute)
    measured = load_calibration(calibration or case.cluster.calibration)
    if schedule in ONLY_CLOSED:
        closed = closed_estimate(case, measured, layout, schedule=schedule, recompute=rule)
        if closed is not None:
            _tell_closed_form(closed, output, format_)
            return
    found = estimated(case, measured, layout, schedule=schedule, recompute=rule)
    plan = with_refusals(found.plan) if output is not None else None
    if plan is not None and output is not None:
        store_plan(plan, output)
    out = report_to(output)
    if format_ == "table":
        report.print_estimate(found, out)
    else:
        print(machine_readable(format_, estimate_rows(found), found.to_dict()), file=out)
    if plan is not None and output is not None:
        out.flush()
        say_stored(plan, output)


def _tell_closed_form(told: ClosedEstimate, output: str | None, format_: str) -> None:
    """What is known of a schedule without an order; SpecError where a plan is asked for."""
    from moeplan import report

    if output is not None:
        raise SpecError(
            f"-o {output}: schedule {told.schedule!r} has a closed form alone and no order that a plan could hold"
        )
    if format_ == "table":
        report.print_closed_estimate(told, sys.stdout)
    else:
        print(machine_readable(format_, told.rows(), told.to_dict()))
    say(f"note: {told.note}")
