"""Rows of the measurements that ship, as text."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib import resources
from pathlib import Path

from moeplan.spec.record import read_bytes

FOLDER = Path(str(resources.files("moeplan.spec"))).parent / "published"


@cache
def rows_of(name: str) -> tuple[dict[str, str], ...]:
    """Rows of the table `name` (runs, collectives, gemm or layers) by column."""
    text = read_bytes(FOLDER / f"{name}.csv").decode("utf-8-sig")
    return tuple(csv.DictReader(io.StringIO(text, newline="")))
