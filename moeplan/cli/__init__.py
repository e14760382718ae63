"""The command line: options in, one call of the planner, simulator or executor, a report out.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 no feasible plan, 2 bad input or usage, 3 a run
failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, NoReturn

import typer

from moeplan.cli import (
    calibrate,
    estimate,
    models,
    optimize,
    plans,
    run,
    topology,
    topology_choose,
    topology_place,
    validate,
)
from moeplan.cli.app import app, say
from moeplan.errors import MoeplanError

__all__ = [
    "app",
    "calibrate",
    "estimate",
    "main",
    "models",
    "optimize",
    "plans",
    "run",
    "topology",
    "topology_choose",
    "topology_place",
    "validate",
]

USAGE_ERRORS: Any = typer.BadParameter.__mro__[1]
"""What a wrong option raises: typer names only this one kind of it."""


def main() -> NoReturn:
    """Run the command line; errors become one line on stderr and an exit code."""
    _reopen()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        _end(code if isinstance(code, int) else 0)
    except MoeplanError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        say(f"moeplan: {' '.join(str(error).split())}")
        _end(error.exit_code)
    except USAGE_ERRORS as error:
        say(f"moeplan: {' '.join(error.format_message().split())} (moeplan --help)")
        _end(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _end(130)
    except BrokenPipeError:
        _end(0)
    except OSError as error:
        say(f"moeplan: output cannot be written: {error.strerror or error}")
        _end(3)


def _reopen() -> None:
    """Streams that were closed before we started take what is written to them and lose it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _end(code: int) -> NoReturn:
    """Exit with `code`; what stdout still holds is lost where it cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
