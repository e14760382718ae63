"""Seconds of matrix products beside `gemm.csv`."""

from __future__ import annotations

import re

from msgspec import structs

from moeplan.cost import compute
from moeplan.resources.work import Compute
from moeplan.units import Seconds
from moeplan.validate.names import Names
from moeplan.validate.outcome import Outcome, Skip
from moeplan.validate.tables import Gemm

DTYPES = {"bfloat16": ("bf16", 2), "bf16": ("bf16", 2), "fp8": ("fp8", 1), "fp8_block": ("fp8", 1)}
"""What the first word of a row's dtype means: whose peak, and bytes of an element; scales are left out."""
OUTPUT_BYTES = 2
HELD_OUT = 5
"""Rows whose number is a multiple of it are compared; the others are for calibrations to be made from."""


def held_out(row: Gemm) -> bool:
    """Whether the number at the end of the id is a multiple of five: those rows no calibration may be fitted to."""
    number = re.search(r"(\d+)$", row.id)
    return number is not None and int(number[1]) % HELD_OUT == 0


def predict_gemm(row: Gemm, names: Names) -> Outcome:
    """Seconds of one kernel without its launch, beside the row's; results are written in two bytes.

    Skip for an element type that moeplan knows nothing of, or whose peak the machine does not give.
    """
    cluster = names.cluster(row.hardware)
    dtype, size = DTYPES.get(row.dtype.split()[0].lower(), ("", 0))
    if dtype not in cluster.gpu.peak_flop_per_s:
        raise Skip(f"no peak of {cluster.gpu.name} for {row.dtype}")
    calibration = structs.replace(names.calibration(row.hardware), kernel_s=Seconds(0))
    seconds = compute.seconds([_work(row, size)], cluster.gpu, calibration, dtype).seconds
    return Outcome(row.id, "gemm", seconds, row.latency_us * 1e-6, accelerator=cluster.gpu.name)


def _work(row: Gemm, size: int) -> Compute:
    groups = row.groups or 1
    moved = groups * ((row.m * row.k + row.k * row.n) * size + row.m * row.n * OUTPUT_BYTES)
    kind = "grouped_gemm" if row.kind.startswith("grouped") else "gemm"
    return Compute(kind, 2.0 * groups * row.m * row.n * row.k, moved, row.m)  # type: ignore[arg-type]
