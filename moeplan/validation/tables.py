"""Tables of measurements: the columns of `moeplan/published/*.csv`, read and checked row by row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import msgspec.structs

from moeplan.errors import SpecError
from moeplan.spec.record import Record, read_bytes

Whole = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
MOST_DIGITS = 50
"""Of any number in a cell; longer ones are no quantity, and words are searched for numbers too."""
TOO_LONG = re.compile(rf"\d{{{MOST_DIGITS + 1}}}")


class Run(Record):
    """One end-to-end training run; None is "not published"."""

    id: Text
    source: str = ""
    model: Text
    hardware: Text
    gpus: Whole
    tp: Whole | None = None
    pp: Whole | None = None
    vpp: Whole | None = None
    ep: Whole | None = None
    etp: Whole | None = None
    dp: Whole | None = None
    cp: Whole | None = None
    micro_batch: Whole | None = None
    global_batch: Whole | None = None
    seq_len: Whole | None = None
    recompute: str = ""
    dtype: str = ""
    dispatcher_or_overlap: str = ""
    measured_step_s: Positive | None = None
    measured_tokens_per_s_per_gpu: Positive | None = None
    measured_tflops_per_gpu: Positive | None = None
    measured_mfu: Positive | None = None
    """Percent."""
    measured_peak_mem_gb: Positive | None = None
    """In the unit that the notes name: see `memory_unit_bytes`."""
    notes: str = ""


class Collective(Record):
    """One size of one collective."""

    id: Text
    source: str = ""
    hardware: Text
    nodes: Whole | None = None
    gpus: Whole | None = None
    collective: Text
    library: str = ""
    message_bytes: Positive | None = None
    definition_of_bytes: str = ""
    bw_GBps: Positive | None = None  # noqa: N815 - a column of the tables
    bw_definition: str = ""
    latency_us: Positive | None = None
    notes: str = ""


class Gemm(Record):
    """One matrix product [m, k] x [k, n], or `groups` of them with m rows each."""

    id: Text
    source: str = ""
    hardware: Text
    kind: Text
    dtype: Text
    groups: Whole | None = None
    m: Whole
    n: Whole
    k: Whole
    latency_us: Positive
    tflops: Positive | None = None
    pct_of_dense_peak: Positive | None = None
    notes: str = ""


class Layer(Record):
    """One layer or kernel; times are text, since some sources print a rate instead."""

    id: Text
    source: str = ""
    hardware: Text
    gpus: Whole
    layer: Text
    config: str = ""
    dtype: str = ""
    dispatcher: str = ""
    forward_ms: str = ""
    backward_ms: str = ""
    mem_gib: Positive | None = None
    notes: str = ""


T = TypeVar("T", bound=Record)


def read_table(path: Path, kind: type[T], *, key: tuple[str, ...] = ("id",)) -> list[T]:
    """The rows of the CSV file `path` as records of `kind`, as `numbered_rows` reads them."""
    return [row for _, row in numbered_rows(path, kind, key=key)]


def numbered_rows(path: Path, kind: type[T], *, key: tuple[str, ...] = ("id",)) -> list[tuple[int, T]]:
    """The rows of the CSV file `path` as records of `kind`, each with the number of its line.

    Columns beside its fields and empty rows are passed over; columns that may be empty may be missing. SpecError with
    the file, the row and the column where a column that is needed is missing or one is there twice, a row is too long
    or too short, a value is not what the column holds, or a second row has the same values in the columns `key`.
    """
    try:
        lines = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""), strict=True)
        header = [name.strip() for name in next(lines, [])]
        _check_header(path, header, kind)
        numbered = [(lines.line_num, cells) for cells in lines if any(map(str.strip, cells))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: not valid CSV: {error}") from None
    rows = [_row(f"{path} line {line}", header, cells, kind) for line, cells in numbered]
    if set(key) <= set(kind.__struct_fields__):
        _check_once(path, [line for line, _ in numbered], rows, key)
    return [(line, row) for (line, _), row in zip(numbered, rows, strict=True)]


def _check_header(path: Path, header: list[str], kind: type[Record]) -> None:
    wanted = ", ".join(kind.__struct_fields__)
    needed = [field.name for field in msgspec.structs.fields(kind) if field.required]
    for name in kind.__struct_fields__:
        if name in needed and name not in header:
            empty = "" if any(header) else "is empty: "
            raise SpecError(
                f"{path}: {empty}no column {name!r}; needed are {', '.join(needed)}; the columns are {wanted}"
            )
        if header.count(name) > 1:
            raise SpecError(f"{path}: two columns {name!r}; the columns are {wanted}")


def _check_once(path: Path, lines: Sequence[int], rows: Sequence[Record], key: tuple[str, ...]) -> None:
    """SpecError where two rows have the same `key`: one would take the place of the other."""
    seen: dict[tuple[object, ...], int] = {}
    for line, row in zip(lines, rows, strict=True):
        values = tuple(getattr(row, name) for name in key)
        if values in seen:
            told = ", ".join(f"{name} {value!r}" for name, value in zip(key, values, strict=True))
            raise SpecError(f"{path} line {line}: {told} is already in line {seen[values]}; each row needs its own")
        seen[values] = line


def _row(place: str, header: list[str], cells: list[str], kind: type[T]) -> T:
    """One row; empty cells are left to the defaults of `kind`."""
    where = f"{place} ({cells[header.index('id')] if 'id' in header[: len(cells)] else cells[0]})"
    if len(cells) != len(header):
        raise SpecError(f"{where}: {len(cells)} cells for {len(header)} columns")
    fields = set(kind.__struct_fields__)
    given = {n: c.strip() for n, c in zip(header, cells, strict=True) if n in fields and c.strip()}
    for column, text in given.items():
        if long := TOO_LONG.search(text):
            raise SpecError(f"{where}: {column}: {long[0][:8]}... has more than {MOST_DIGITS} digits")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        column = str(error).rpartition("`$.")[2].strip("`")
        told = f", not {given[column]!r}" if column in given else ""
        raise SpecError(f"{where}: {error}{told}") from None
