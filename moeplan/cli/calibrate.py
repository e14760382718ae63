"""`moeplan calibrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from moeplan.cli.app import app, check_apart, check_output, report_to, say, say_wrote
from moeplan.errors import SpecError

calibrate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make calibration files from measurements.")
app.add_typer(calibrate, name="calibrate")


@calibrate.callback()
def group() -> None:
    """Make calibration files from measurements."""


@calibrate.command()
def rebuild(
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="an existing folder for the files")],
) -> None:
    """Fit every calibration that ships again, from the measurements that ship, and write one TOML file for each.

    Example: moeplan calibrate rebuild --out /tmp/calibrations
    """
    from moeplan.calibrate.rebuild import accelerators, rebuilt
    from moeplan.spec.record import check_writable, write_whole

    if not out.strip():
        raise SpecError(f"--out {out!r}: is empty; an existing folder, or . for this one")
    folder = Path(out)
    if not os.path.isdir(out):
        raise SpecError(f"--out {out!r}: is no folder; an existing folder that can be written to")
    names = accelerators()
    for name in names:
        check_writable(folder / f"{name}.toml")
    texts = {name: rebuilt(name).encode() for name in names}
    for name, text in texts.items():
        write_whole(folder / f"{name}.toml", text)
    say(f"wrote {len(names)} calibrations to {out}")


@calibrate.command()
def fit(
    logs: Annotated[list[Path], typer.Argument(help="logs of nccl-tests or rccl-tests", metavar="LOG...")],
    output: Annotated[str, typer.Option("-o", "--output", help="where the calibration goes; - is stdout")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="shipped name or TOML file; default: the one with the logs' GPU")
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", help="calibration for all that no log tells; default: the cluster's")
    ] = None,
) -> None:
    """Fit how much of its links a machine reaches to logs of nccl-tests, and write a calibration.

    Example: moeplan calibrate fit alltoall_perf_1node.log all_reduce_perf_2node.log --cluster dgx-h100 -o mine.toml
    """
    from moeplan.calibrate.from_logs import calibrated
    from moeplan.report import print_table
    from moeplan.spec.record import write_whole

    check_output(output)
    if output != "-" and not output.endswith(".toml"):
        raise SpecError(f"-o {output}: a calibration's file ends in .toml")
    check_apart({"-o": output}, [*logs, cluster, like])
    found = calibrated(logs, Path(output).stem if output != "-" else "fitted", cluster, like)
    write_whole(Path(output), found.text.encode())
    out = report_to(output)
    print_table(found.rows, out, title=found.title)
    out.flush()
    for warning in found.warnings:
        say(f"warning: {warning}")
    say_wrote(output)
