"""`moeplan calibrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from moeplan.cli.app import app, say
from moeplan.errors import SpecError

calibrate = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make calibration files from tables of measurements."
)
app.add_typer(calibrate, name="calibrate")


@calibrate.callback()
def group() -> None:
    """Make calibration files from tables of measurements."""


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
