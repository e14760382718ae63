"""The application that commands register with, and what they share: options, reading inputs, writing results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from msgspec import structs

from moeplan import __version__
from moeplan.errors import SpecError
from moeplan.plan import Plan, Provenance
from moeplan.spec.case import Case
from moeplan.spec.record import check_writable

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Plan, simulate and run the training of Mixture-of-Experts language models.",
)

Model = Annotated[str, typer.Option("--model", help="shipped name, TOML file, or HuggingFace config.json")]
Cluster = Annotated[str, typer.Option("--cluster", help="shipped name or TOML file")]
SeqLen = Annotated[int, typer.Option("--seq-len", help="tokens per sequence")]
GlobalBatch = Annotated[int, typer.Option("--global-batch", "--gbs", help="sequences per step")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="use the first N GPUs, in node order")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="override an input: model.top_k=4")]
CalibrationName = Annotated[str | None, typer.Option("--calibration", help="shipped name or TOML file")]
Dtype = Annotated[str, typer.Option("--dtype", help="bf16, fp32 or fp64")]
Format = Annotated[str, typer.Option("--format", help="table, json or csv")]
PlanFile = Annotated[Path, typer.Argument(help="a plan.json; - is stdin", metavar="PLAN")]


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


def read_case(
    model: str, cluster: str, seq_len: int, global_batch: int, gpus: int | None, dtype: str, settings: list[str]
) -> tuple[Case, dict[str, Any]]:
    """The case that the options describe, and the degrees that `--set layout.x=n` fixes.

    `gpus` are the first of the cluster that `settings` leave.
    """
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
    workload = convert(raw, Workload, where="options")
    inputs, fixed = split_settings(settings)
    case = override(Case(model=load_model(model), cluster=load_cluster(cluster), workload=workload), inputs)
    if gpus is not None:
        case = structs.replace(case, cluster=first_gpus(case.cluster, gpus))
    return check_case(case), fixed


def check_trace(trace: Path | None, plan_file: Path) -> None:
    """SpecError before the work where the trace could not be written, or would replace the plan."""
    if trace is not None:
        check_output(str(trace))
        check_apart({"--trace": trace}, [plan_file])


def check_apart(outputs: Mapping[str, Path | str | None], inputs: Iterable[Path | str | None]) -> None:
    """SpecError where one of `outputs`, by their options, would replace one of `inputs` or another output."""
    named = [str(one) for one in inputs if one is not None and str(one) != "-"]
    taken = {os.path.realpath(place): "" for one in named for place in (one, os.path.join(one, "config.json"))}
    for option, output in outputs.items():
        if output is None or str(output) == "-":
            continue
        if (place := os.path.realpath(output)) in taken:
            what = f"is that of {taken[place]} too" if taken[place] else "is read by this command, and would be lost"
            raise SpecError(f"{option} {output}: {what}; another file")
        taken[place] = option


def check_output(output: str) -> None:
    """SpecError before the work where the plan could not be written after it."""
    if not output:
        raise SpecError("-o '': is empty; a file, or - for stdout")
    if output.endswith(("/", os.sep)):
        raise SpecError(f"{output}: names a folder; a file is written")
    check_writable(Path(output))


def with_refusals(plan: Plan) -> Plan:
    """`plan` with one warning for all that `moeplan run` would refuse in it."""
    from moeplan_exec.refuse import reasons

    refused = "; ".join(dict.fromkeys(reasons(plan)))
    return structs.replace(plan, warnings=(*plan.warnings, f"moeplan run: {refused}")) if refused else plan


def store_plan(plan: Plan, output: str) -> None:
    """Write `plan` with its provenance to `output`, or to stdout for `-`."""
    provenance = Provenance(
        software=f"moeplan {__version__}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(word.encode(errors="backslashreplace").decode() for word in sys.argv[1:]),
    )
    plan = structs.replace(plan, provenance=provenance)
    from moeplan.plan_file import write_plan

    write_plan(plan, Path(output))


def say_stored(plan: Plan, output: str) -> None:
    """Where `plan` went and its warnings on stderr, unless it is on stdout."""
    if output != "-":
        say(f"wrote {output}")
        for warning in plan.warnings:
            say(f"warning: {warning}")


def report_to(*outputs: Path | str | None) -> TextIO:
    """Where a report goes: stdout, or stderr where one of `outputs` is `-`; SpecError where several are."""
    count = sum(str(output) == "-" for output in outputs if output is not None)
    if count > 1:
        raise SpecError(f"- is given for {count} outputs; one of them can go to stdout")
    return sys.stderr if count else sys.stdout


def fresh(plan: Plan) -> Plan:
    """`plan` with predictions for its own schedule text."""
    from moeplan.optimizer.evaluate import refreshed
    from moeplan.plan import is_stale

    if is_stale(plan):
        say("note: the schedule was edited; predictions are simulated again")
    return refreshed(plan)


def check_format(name: str) -> None:
    """SpecError unless `name` is a format."""
    if name not in ("table", "json", "csv"):
        raise SpecError(f"--format {name!r} is not table, json or csv")


def machine_readable(name: str, rows: list[dict[str, Any]], whole: dict[str, Any]) -> str:
    """The result as JSON (whole) or CSV (its rows)."""
    from moeplan import report

    return report.as_json(whole) if name == "json" else report.as_csv(rows)


def say_wrote(output: Path | str) -> None:
    """Where a file went, unless it is on stdout."""
    if str(output) != "-":
        say(f"wrote {output}")


def say(text: str) -> None:
    """`text` as a line on stderr, lost where nobody reads it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
