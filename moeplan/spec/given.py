"""What Python callers hand over, held to its type: other types are told in one line instead of failing later."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from moeplan.errors import SpecError

T = TypeVar("T")


def of_type(value: object, kind: type[T], where: str, *, right: str = "") -> T:
    """`value`, or SpecError where it is no `kind`; `right` says how one is made. true and false are no numbers."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise wrong_type(value, where, right or f"a {kind.__name__}")


def wrong_type(value: Any, where: str, right: str) -> SpecError:
    """The error of a value of another type than `right` names; a long value is cut."""
    told = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return SpecError(f"{where}: {told} is a {type(value).__name__}; right is {right}")


def texts(values: object, where: str, example: str) -> tuple[str, ...]:
    """`values` as several texts: one alone is one of them. SpecError where they, or one of them, are something else."""
    several = [values] if isinstance(values, str) else list(values) if isinstance(values, Iterable) else [values]
    if not all(isinstance(one, str) for one in several):
        raise wrong_type(values, where, f"text, or a list of texts, such as {example!r}")
    return tuple(several)


def path_of(value: object, where: str) -> Path:
    """The file that `value` names, text or a path; SpecError for anything else."""
    if isinstance(value, str | os.PathLike) and isinstance(text := os.fspath(value), str):
        return Path(text)
    raise wrong_type(value, where, "a file name, as text or a Path")
