"""Lines of nccl-tests and rccl-tests: what noise surrounds them, and what a row, a header or a device line says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from moeplan.spec.calibration import Pattern

Collective: TypeAlias = Literal[
    "all_to_all",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "point_to_point",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "hypercube",
]
"""What nccl-tests measure, under the names of patterns; sendrecv_perf is point_to_point."""
PRICED: tuple[Pattern, ...] = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "point_to_point")
"""Those that a cost model prices."""
NAMES: tuple[tuple[str, Collective], ...] = (
    ("all_?reduce", "all_reduce"),
    ("all_?gather", "all_gather"),
    ("reduce_?scatter", "reduce_scatter"),
    ("all_?to_?all", "all_to_all"),
    ("send_?recv", "point_to_point"),
    ("broadcast", "broadcast"),
    ("hyper_?cube", "hypercube"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)
"""How files and commands spell them; the first that fits."""
WORD_BYTES = {"int8": 1, "uint8": 1, "char": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "int": 4}
WORD_BYTES |= {"half": 2, "float": 4, "double": 8, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
WORD_BYTES |= dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "float8_e4m3", "float8_e5m2"), 1)
REDUCTIONS = ("sum", "prod", "min", "max", "avg", "mulsum", "none")
MOST_DIGITS = 18
"""Of bytes, counts and values in a row: more are no number that a test prints."""
ROUNDED, ROUNDED_GBPS = 0.01, 0.011
"""By how much bytes over time may differ from the printed algbw, in parts of it and in GB/s."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\r|\x00|\x08")
_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<std\w+>:|\d+:(?=\s))")
_DEVICE = re.compile(
    r"#\s*rank\s+(\d+)\s+(?:group\s+\d+\s+)?pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s*(?:\[[^\]]*\]?)?\s*(.*)", re.I
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?")
_PERF = re.compile(r"(\w+?)_perf(?:_mpi)?\b|collective test starting:\s*(\w+)", re.I)


class Device(NamedTuple):
    """One line of the list of devices."""

    rank: int
    host: str
    device: int
    gpu: str
    """The name that the driver gives it."""


class Columns(NamedTuple):
    """What a table's header says of its columns."""

    root: bool = True
    wrong: bool = True
    """Whether a column of errors follows each busbw."""


class Printed(NamedTuple):
    """One row as printed, both columns where both are there."""

    bytes: float
    elements: float
    """Printed as `count`."""
    word: str
    out: tuple[float, float, float]
    """Microseconds, algbw, busbw; out of place."""
    inside: tuple[float, float, float] | None
    """In place."""
    wrong: int
    """Wrong values found."""
    cut: bool
    """Whether the row ends early."""


def cleaned(text: str) -> list[str]:
    """The lines of `text` without terminal escapes and without the ranks that mpirun and srun put before them."""
    return [_PREFIX.sub("", line).rstrip() for line in _ESCAPES.sub("", text).split("\n")]


def search(pattern: str, lines: Sequence[str]) -> re.Match[str] | None:
    """The first place where `pattern` stands in `lines`, whatever the case."""
    return next((found for found in (re.search(pattern, line, re.I) for line in lines) if found), None)


def named(text: str) -> Collective | None:
    """The collective that `text`, a file's or a program's name, spells; None where it spells none."""
    return next((name for form, name in NAMES if re.search(form, text, re.I)), None)


def named_by(line: str) -> Collective | None:
    """The collective whose program `line` names: `alltoall_perf`, or "Collective test starting: alltoall"."""
    found = [named(one[1] or one[2]) for one in _PERF.finditer(line)]
    return next((name for name in reversed(found) if name), None)


def device(line: str) -> Device | None:
    """What a line of the list of devices says; None for other lines."""
    found = _DEVICE.search(line)
    return Device(int(found[1]), found[2], int(found[3]), found[4].strip()) if found else None


def nics(line: str) -> int:
    """How many NICs NCCL says that it uses on the host of this line (NCCL_DEBUG=INFO); 0 for other lines.

    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB", "NET/OFI Selected provider is efa (found 4 nics)".
    """
    if found := re.search(r"NET/IB\s*:\s*Using\s(.*)", line):
        return len(re.findall(r"\[\d+\]\w+:", found[1]))
    counted = re.search(r"NET/OFI .*found (\d{1,3}) nics", line, re.I)
    return int(counted[1]) if counted else 0


def columns(line: str) -> Columns | None:
    """What the header of a table says, also where `busbw#wrong` is glued; None for other lines."""
    words = line.replace("#", " #").replace("# ", "#").lower().split()
    plain = [word.lstrip("#") for word in words]
    if not {"size", "count", "type"} <= set(plain):
        return None
    return Columns("root" in plain, any(word in ("wrong", "error") for word in plain))


def is_row(line: str) -> bool:
    """Whether `line` begins as a row of a table: bytes, count, element type."""
    words = line.split()
    counts = all(len(word) < MOST_DIGITS and word.isascii() and word.isdigit() for word in words[:2])
    return len(words) >= 3 and counts and words[2] in WORD_BYTES


def row(line: str, form: Columns) -> Printed | str:
    """What a row says, or why it is not to be used: cut before its busbw, no number, or against its own algbw."""
    size, count, word, *rest = line.split()
    rest = rest[1:] if rest and rest[0] in REDUCTIONS else rest
    rest = rest[1:] if form.root else rest
    step = 4 if form.wrong else 3
    out, inside = _triple(rest[:3]), _triple(rest[step : step + 3])
    if isinstance(out, str):
        return out
    wrong = [text for text in (rest[3:4] + rest[7:8] if form.wrong else []) if text.isdecimal()]
    whole = len(rest) >= step + 3
    second = None if isinstance(inside, str) or (float(size) and not _fits(float(size), inside)) else inside
    if float(size) and not _fits(float(size), out):
        return f"{out[0]:g} us for {size} B is {float(size) / out[0] / 1e3:.4g} GB/s, not the algbw {out[1]:g}"
    return Printed(float(size), float(count), word, out, second, sum(map(int, wrong)), not whole)


def _triple(words: Sequence[str]) -> tuple[float, float, float] | str:
    if len(words) < 3:
        return f"ends after {len(words)} of time, algbw and busbw"
    if odd := next((word for word in words if len(word) > MOST_DIGITS or not _NUMBER.fullmatch(word)), ""):
        return f"{odd!r} is not a number"
    time, algbw, busbw = map(float, words)
    return (time, algbw, busbw) if time > 0 else f"time {time:g} us is not more than 0"


def _fits(size: float, one: tuple[float, float, float]) -> bool:
    """Whether bytes over time are the printed algbw, within what both are rounded to."""
    reached = size / one[0] / 1e3
    return abs(reached - one[1]) <= ROUNDED * reached + ROUNDED_GBPS
