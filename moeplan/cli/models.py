"""`moeplan models`."""

from __future__ import annotations

import sys

from moeplan.cli.app import Format, app, check_format, machine_readable


@app.command()
def models(format_: Format = "table") -> None:
    """List the models that ship, with what is derived from their shapes.

    Example: moeplan models --format csv
    """
    from moeplan import report
    from moeplan.spec.shipped import load_model, shipped

    check_format(format_)
    rows = [report.model_row(load_model(name)) for name in shipped("model")]
    if format_ == "table":
        report.print_table(rows, sys.stdout)
    else:
        print(machine_readable(format_, rows, {"models": rows}))
