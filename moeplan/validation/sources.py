"""What the prefix of an id stands for: the public document that its rows were read from."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from moeplan.spec.record import read_bytes
from moeplan.tables import Rows


def source_rows(paths: Iterable[Path]) -> Rows:
    """Prefix of the ids, rows, and the source of the first row that has it, for each of the tables `paths`."""
    found: dict[str, dict[str, str | int]] = {}
    for path in paths:
        for row in csv.DictReader(StringIO(read_bytes(path).decode("utf-8-sig"))):
            known = found.setdefault(row["id"].split("-")[0], {"of": row["id"].split("-")[0], "rows": 0, "source": ""})
            known["rows"] = int(known["rows"]) + 1
            known["source"] = known["source"] or row["source"]
    return list(found.values())
