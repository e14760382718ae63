"""`moeplan validate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from moeplan.cli.app import Format, app, check_format, machine_readable


@app.command()
def validate(
    runs: Annotated[Path | None, typer.Option("--runs", help="CSV of training runs")] = None,
    collectives: Annotated[Path | None, typer.Option("--collectives", help="CSV of collectives")] = None,
    gemm: Annotated[Path | None, typer.Option("--gemm", help="CSV of matrix products")] = None,
    layers: Annotated[Path | None, typer.Option("--layers", help="CSV of single layers")] = None,
    names: Annotated[
        Path | None,
        typer.Option("--names", help="CSV that says what models and machines are: kind,name,target,overrides"),
    ] = None,
    format_: Format = "table",
) -> None:
    """Compare predictions with published measurements, or with your own in the same columns.

    Without a file all tables that ship are compared, otherwise only the files given.

    Example: moeplan validate --runs mine.csv --names mine-names.csv
    """
    from moeplan import report
    from moeplan.validation import Tables, published, scores
    from moeplan.validation import validate as compared
    from moeplan.validation.flop import convention_rows
    from moeplan.validation.pairs import pair_rows, pair_score_rows
    from moeplan.validation.sources import source_rows
    from moeplan.validation.unread import unread_rows

    check_format(format_)
    given = Tables(runs, collectives, gemm, layers)
    found = compared(given if any(given) else None, names)
    if format_ != "table":
        print(machine_readable(format_, found.to_rows(), found.to_dict()))
        return
    report.print_table(scores.score_rows(found), sys.stdout, title="|predicted / measured - 1| and its mean with sign")
    report.print_table(scores.interval_rows(found), sys.stdout, title="intervals that should hold 90 %")
    report.print_table(
        scores.worst_rows(found), sys.stdout, title="worst rows, in s, bytes, FLOP per token, parameters"
    )
    pairs = {"as shipped": found.pairs, "never saw the model": found.pairs_left_out}
    report.print_table(pair_score_rows(pairs), sys.stdout, title="ratios of runs that differ in one thing")
    report.print_table(pair_rows(found.pairs), sys.stdout, title="runs that differ in one thing: time per token")
    report.print_table(
        scores.constant_rows(found),
        sys.stdout,
        title="constants fitted to these step times (the shipped are assumed)",
    )
    report.print_table(scores.listed_rows(found), sys.stdout, title="figures known to disagree, and why")
    report.print_table(convention_rows(), sys.stdout, title="what stands behind TFLOPS and MFU")
    own = any(given)
    if not own:
        report.print_table(
            source_rows(path for path in published() if path),
            sys.stdout,
            title="whose rows these are, by the prefix of their ids; the source is that of the first row",
        )
    report.print_table(scores.skipped_ids(found) if own else scores.skipped_rows(found), sys.stdout)
    report.print_table(unread_rows(found.unread), sys.stdout, title="words not understood")
    if not found.outcomes:
        print("no row could be compared: the reasons are above")
    if found.left_for_fits:
        print(f"{found.left_for_fits:,} matrix products left for fits: only every fifth is compared")
