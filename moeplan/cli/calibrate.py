"""`moeplan calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeplan.cli.app import app, say

calibrate = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make calibration files from tables of measurements."
)
app.add_typer(calibrate, name="calibrate")


@calibrate.callback()
def group() -> None:
    """Make calibration files from tables of measurements."""


@calibrate.command()
def rebuild(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="an existing folder for the files")],
) -> None:
    """Fit every calibration that ships again, from the measurements that ship, and write one TOML file for each.

    Example: moeplan calibrate rebuild --out /tmp/calibrations
    """
    from moeplan.calibrate.rebuild import accelerators, rebuilt
    from moeplan.spec.record import check_writable, write_whole

    names = accelerators()
    for name in names:
        check_writable(out / f"{name}.toml")
    for name in names:
        write_whole(out / f"{name}.toml", rebuilt(name).encode())
    say(f"wrote {len(names)} calibrations to {out}")
