"""Tables of measurements: the columns of `moeplan/published/*.csv`, read and checked row by row."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.record import Record, read_bytes

Whole = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


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


def read_table(path: Path, kind: type[T], *, optional: tuple[str, ...] = ()) -> list[T]:
    """The rows of the CSV file `path` as records of `kind`; columns beside its fields are passed over.

    Columns named in `optional` may be missing. SpecError with the file, the row and the column where a column is
    missing, a row is too long or too short, or a value is not what the column holds.
    """
    try:
        lines = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""), strict=True)
        header = next(lines, [])
        missing = [name for name in kind.__struct_fields__ if name not in (*header, *optional)]
        if missing:
            wanted = ", ".join(kind.__struct_fields__)
            raise SpecError(f"{path}: no column {missing[0]!r}; the columns are {wanted}")
        return [_row(path, lines.line_num, header, cells, kind) for cells in lines if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: not valid CSV: {error}") from None


def _row(path: Path, line: int, header: list[str], cells: list[str], kind: type[T]) -> T:
    """One row; empty cells are left to the defaults of `kind`."""
    where = f"{path} line {line} ({cells[0]})"
    if len(cells) != len(header):
        raise SpecError(f"{where}: {len(cells)} cells for {len(header)} columns")
    fields = set(kind.__struct_fields__)
    given = {n: c.strip() for n, c in zip(header, cells, strict=True) if n in fields and c.strip()}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        column = str(error).rpartition("`$.")[2].strip("`")
        told = f", not {given[column]!r}" if column in given else ""
        raise SpecError(f"{where}: {error}{told}") from None
