"""Seconds of matrix products beside `gemm.csv`."""

from __future__ import annotations

from msgspec import structs

from moeplan.calibrate import kernels as fitted
from moeplan.cost import compute
from moeplan.resources.kernels import Compute, product
from moeplan.spec.calibration import Calibration
from moeplan.spec.execution import Execution, Linear
from moeplan.validation.names import Names
from moeplan.validation.outcome import Outcome, Skip, skipping
from moeplan.validation.tables import Gemm

TYPES: dict[str, Linear] = {"bfloat16": "same", "bf16": "same", "fp8": "fp8", "fp8_block": "fp8_block"}
"""What the first word of a row's dtype means: what linear layers multiply in, in a workload in bf16."""
KINDS = ("gemm", "grouped_gemm")
RESULT_BYTES = 2
NARROW_BYTES = 1
"""Of an element in 8 bits; scales are left out."""


def held_out(row: Gemm) -> bool:
    """Whether no calibration may be fitted to `row` (`calibrate.kernels.held_out`): those rows are compared."""
    return fitted.held_out(row.id)


def predict_gemm(row: Gemm, names: Names) -> Outcome:
    """Seconds of one kernel without its launch, its operands as warm as the table's, beside the row's.

    Results are written in two bytes. Skip for another kind of kernel, and for an element type that moeplan knows
    nothing of, or whose peak the machine does not give.
    """
    cluster = names.cluster(row.hardware)
    kind = row.kind.partition(" (")[0]
    if kind not in KINDS:
        raise Skip(f"{kind} is no matrix product")
    word = row.dtype.split()[0].lower()
    linear = TYPES.get(word)
    peak = "bf16" if linear == "same" else "fp8"
    if linear is None or peak not in cluster.gpu.peak_flop_per_s:
        raise Skip(f"no peak of {cluster.gpu.name} for {row.dtype}")
    calibration = as_measured(names.calibration(row.hardware))
    with skipping():
        parts, _ = compute.parts([_kernel(row, linear)], cluster.gpu, calibration, Execution(linear=linear), "bf16")
    seconds = parts.gemm + parts.narrow_gemm
    return Outcome(row.id, "gemm", seconds, row.latency_us * 1e-6, accelerator=cluster.gpu.name)


def as_measured(calibration: Calibration) -> Calibration:
    """`calibration` of kernels measured alone: caches as the table's, every type by its own surface."""
    return structs.replace(calibration, cold=1.0, linear={})


def _kernel(row: Gemm, linear: Linear) -> Compute:
    """The row's product; a grouped row's m is the rows of one group."""
    groups = row.groups or 1
    narrow = None if linear == "same" else NARROW_BYTES
    grouped = row.kind.startswith("grouped")
    return product(row.m * groups, row.k, row.n, RESULT_BYTES, groups=groups, operand=narrow, grouped=grouped)
