"""`moeplan validate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeplan.cli.app import Format, app, check_format, machine_readable
from moeplan.errors import SpecError

if TYPE_CHECKING:
    from moeplan.tables import Rows
    from moeplan.validation.scores import Validation

MOST_ROWS = 300
"""Predictions of a table of one's own that are listed one by one; of more, the worst."""


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
    paper: Annotated[
        str | None, typer.Option("--paper", help="compare with what a paper says of networks instead: piper")
    ] = None,
    format_: Format = "table",
) -> None:
    """Compare predictions with published measurements, or with your own in the same columns.

    Without a file all tables that ship are compared, otherwise only the files given.

    Example: moeplan validate --runs mine.csv --names mine-names.csv
    """
    from moeplan import report
    from moeplan.validation import Tables
    from moeplan.validation import validate as compared

    check_format(format_)
    if paper is not None:
        if any((runs, collectives, gemm, layers, names)):
            raise SpecError("--paper: compares no table; give it alone")
        _paper(paper, format_)
        return
    given = Tables(runs, collectives, gemm, layers)
    found = compared(given if any(given) else None, names)
    if format_ != "table":
        print(machine_readable(format_, found.to_rows(), found.to_dict()))
        return
    for title, rows in _tables(found, own=any(given)):
        if rows:
            report.print_table(rows, sys.stdout, title=title)
    if not found.outcomes:
        print("no row could be compared: the reasons are above")
    if found.left_for_fits:
        print(f"{found.left_for_fits:,} matrix products left for fits: only every fifth is compared")


def _tables(found: Validation, *, own: bool) -> Iterator[tuple[str, Rows]]:
    """Titles and rows of what was found; `own`: of a user's tables, whose rows are told one by one."""
    from moeplan.validation import published, scores
    from moeplan.validation.flop import convention_rows
    from moeplan.validation.pairs import pair_rows, pair_score_rows
    from moeplan.validation.sources import source_rows
    from moeplan.validation.unread import unread_rows

    yield "|predicted / measured - 1| and its mean with sign", scores.score_rows(found)
    yield "intervals that should hold 90 %", scores.interval_rows(found)
    if own and len(found.outcomes) <= MOST_ROWS:
        shown = [row for row in found.outcomes if row.measure != "step_time_no_constants"]
        yield "row by row, in s, bytes, FLOP per token", scores.every_row(shown)
    else:
        yield "worst rows, in s, bytes, FLOP per token, parameters", scores.worst_rows(found)
    if found.elsewhere:
        apart = scores.Validation(found.elsewhere, (), 0)
        yield "runs that no constant was fitted to (published/elsewhere.csv)", scores.score_rows(apart)
        yield "their intervals", scores.interval_rows(apart)
    pairs = {"as shipped": found.pairs, "never saw the model": found.pairs_left_out}
    yield "ratios of runs that differ in one thing", pair_score_rows(pairs)
    yield "runs that differ in one thing: time per token", pair_rows(found.pairs)
    yield "constants fitted to these step times (the shipped are assumed)", scores.constant_rows(found)
    yield "figures known to disagree, and why", scores.listed_rows(found)
    if not own:
        yield "what stands behind TFLOPS and MFU", convention_rows()
        whose = "whose rows these are, by the prefix of their ids; the source is that of the first row"
        yield whose, source_rows(path for path in published() if path)
    yield "", scores.skipped_ids(found) if own else scores.skipped_rows(found)
    yield "words not understood", unread_rows(found.unread)


def _paper(name: str, format_: str) -> None:
    """What the paper says of networks, beside what is found."""
    from moeplan import report
    from moeplan.spec.shipped import load_calibration
    from moeplan.validation.papers import fact_rows, gain_facts, gain_rows, gains, piper_facts

    if name != "piper":
        raise SpecError(f"--paper {name!r}: is not compared; piper is")
    calibration = load_calibration("mi250x")
    found = {factor: gains(calibration, factor) for factor in (1.0, calibration.network.contention)}
    facts, reported = piper_facts(), [fact for each in found.values() for fact in gain_facts(each)]
    if format_ != "table":
        rows = [fact._asdict() | {"reached": fact.reached} for fact in (*facts, *reported)]
        print(
            machine_readable(
                format_, rows, {"facts": rows, "gains": [g._asdict() for each in found.values() for g in each]}
            )
        )
        return
    report.print_table(
        fact_rows(facts), sys.stdout, title="what Piper and its sources say, and what is found on the graph"
    )
    report.print_table(
        fact_rows(reported),
        sys.stdout,
        title="what rests on a factor of contention, which is assumed (calibration mi250x): no validation",
    )
    for each in found.values():
        report.print_table(
            gain_rows(each),
            sys.stdout,
            title="flat all-to-all over HALO in seconds (HALO in chunks), by bytes per pair",
        )
