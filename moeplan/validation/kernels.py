"""Seconds of matrix products beside `gemm.csv`."""

from __future__ import annotations

import re

from msgspec import structs

from moeplan.calibrate import kernels as fitted
from moeplan.cost import compute
from moeplan.cost.compute import peak_flop_per_s
from moeplan.resources.kernels import Compute, product
from moeplan.spec.calibration import Calibration
from moeplan.spec.execution import Execution, Linear
from moeplan.validation.names import Names
from moeplan.validation.outcome import Outcome, Skip, skipping
from moeplan.validation.tables import Gemm

TYPES: dict[str, Linear] = {
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16", "half"), "same"),
    **dict.fromkeys(("fp8", "float8", "fp8_e4m3", "float8_e4m3fn", "fp8_tensorwise"), "fp8"),
    **dict.fromkeys(("fp8_block", "fp8_blockwise"), "fp8_block"),
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
"""What the first word of a row's dtype means: what linear layers multiply in, in a workload in 16 bits."""
KINDS = {"gemm": "gemm", "matmul": "gemm", "mm": "gemm", "grouped_gemm": "grouped_gemm"}
RESULT_BYTES = 2
NARROW_BYTES: dict[Linear, float] = {"same": 2, "fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 0.5}
"""Of an element of an operand; scales are left out."""


def held_out(row: Gemm) -> bool:
    """Whether no calibration may be fitted to `row` (`calibrate.kernels.held_out`): those rows are compared."""
    return fitted.held_out(row.id)


def predict_gemm(row: Gemm, names: Names) -> Outcome:
    """Seconds of one kernel without its launch, its operands as warm as the table's, beside the row's.

    Results are written in two bytes. Skip for another kind of kernel, and for an element type that moeplan knows
    nothing of, or whose peak the machine does not give.
    """
    cluster = names.cluster(row.hardware)
    told = row.kind.partition(" (")[0]
    kind = KINDS.get(spelled(told))
    if kind is None:
        raise Skip(f"{told} is no matrix product", f"kind: {told} is no matrix product; right is gemm or grouped_gemm")
    linear = _linear(row.dtype)
    with skipping():
        peak_flop_per_s(cluster.gpu, "bf16" if linear == "same" else linear)
    calibration = as_measured(names.calibration(row.hardware))
    with skipping():
        parts, _ = compute.parts(
            [_kernel(row, linear, grouped=kind == "grouped_gemm")],
            cluster.gpu,
            calibration,
            Execution(linear=linear),
            "bf16",
        )
    seconds = parts.gemm + parts.narrow_gemm
    return Outcome(row.id, "gemm", seconds, row.latency_us * 1e-6, accelerator=cluster.gpu.name)


def spelled(name: str) -> str:
    """`name` in small letters, its parts joined by _."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _linear(dtype: str) -> Linear:
    """What the row multiplies in; Skip for an element type that moeplan knows nothing of."""
    found = TYPES.get(dtype.lower()) or TYPES.get(dtype.split()[0].lower().replace("-", "_"))
    if found is None:
        alike = f"dtype: {dtype} is no known element type"
        raise Skip(alike, f"{alike}; right is bf16, fp16, fp8, fp8_block, mxfp8, nvfp4")
    return found


def as_measured(calibration: Calibration) -> Calibration:
    """`calibration` of kernels measured alone: caches as the table's, every type by its own surface if it has one."""
    alike = {name: like for name, like in calibration.linear.items() if name not in calibration.gemm}
    return structs.replace(calibration, cold=1.0, linear=alike)


def _kernel(row: Gemm, linear: Linear, *, grouped: bool) -> Compute:
    """The row's product; a grouped row's m is the rows of one group."""
    groups = row.groups or 1
    narrow = None if linear == "same" else NARROW_BYTES[linear]
    return product(row.m * groups, row.k, row.n, RESULT_BYTES, groups=groups, operand=narrow, grouped=grouped)
