"""The command line: options in, one call of the planner, simulator or executor, a report out.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 no feasible plan, 2 bad input or usage, 3 a run
failed, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import pairwise
from typing import Any, NoReturn, TextIO

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
from moeplan.errors import MoeplanError, SpecError

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


CLOSED_PIPE = 141
"""What shells say of a program that wrote to a pipe nobody reads any more: 128 + SIGPIPE."""


def main() -> NoReturn:
    """Run the command line; errors become one line on stderr and an exit code."""
    streams = _reopen()
    code = _run()
    for stream in streams:
        _flush(stream)
    sys.exit(code)


def _run() -> int:
    """Run the command line; its exit code."""
    try:
        _check_words(sys.argv[1:])
        code = app(standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except MoeplanError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        say(f"moeplan: {' '.join(str(error).split())}")
        return error.exit_code
    except USAGE_ERRORS as error:
        say(f"moeplan: {_usage(error.format_message())} (moeplan --help)")
        return int(error.exit_code)
    except UnicodeEncodeError as error:
        say(f"moeplan: {error.object[:80]!a}: has characters that a file in UTF-8 cannot hold")
        return SpecError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        return CLOSED_PIPE
    except SystemExit as ended:  # typer leaves so when a pipe is closed
        if isinstance(ended.__context__, BrokenPipeError):
            return CLOSED_PIPE
        raise
    except OSError as error:
        say(f"moeplan: output cannot be written: {error.strerror or error}")
        return 3


def _usage(message: str) -> str:
    """What is wrong with an option in one line, and its value, which typer leaves out."""
    where, _, rest = message.partition(":")
    options = re.findall(r"'(-[\w-]+)'", where) if where.startswith("Invalid value") else []
    given = [value for word, value in pairwise(sys.argv[1:]) if word in options]
    given += [word.partition("=")[2] for word in sys.argv[1:] if word.partition("=")[0] in options and "=" in word]
    told = f"{where}, {given[-1]!r}:{rest}" if given and rest else message
    return " ".join(told.split())


def _check_words(words: Sequence[str]) -> None:
    """SpecError for a word of the command line that is empty, as where a variable of the shell is not set."""
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if not word.strip():
            where = before if before.startswith("-") else "an argument"
            raise SpecError(f"{where} {word!r}: is empty; leave it out or say what it is")
        if option.startswith("--") and equals and not value.strip():
            raise SpecError(f"{option} {value!r}: is empty; leave it out or say what it is")


def _reopen() -> tuple[TextIO, TextIO]:
    """stdout and stderr, fit to be written to.

    Those that were closed before we started lose what is written. What an encoding lacks is written by its number.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return sys.stdout, sys.stderr


def _flush(stream: TextIO) -> None:
    """Write what `stream` still holds; it is lost where it cannot be written."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
