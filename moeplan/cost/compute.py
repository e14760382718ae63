"""Seconds of compute: each kernel at the slower of its FLOP and its HBM bytes, at the efficiency of its size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import log

from moeplan.cost import Cost, Parts
from moeplan.errors import SpecError
from moeplan.resources.work import Compute
from moeplan.spec.calibration import Calibration, Curve
from moeplan.spec.cluster import Gpu
from moeplan.spec.execution import Execution

_TRUST = ("measured", "interpolated", "roofline", "assumed")


def peak_flop_per_s(gpu: Gpu, dtype: str) -> float:
    """The dense peak of `gpu` for `dtype`; SpecError where the cluster file does not give it."""
    if dtype not in gpu.peak_flop_per_s:
        known = ", ".join(gpu.peak_flop_per_s) or "none"
        raise SpecError(f"gpu {gpu.name!r}: no peak for {dtype}; the cluster file gives {known}")
    return float(gpu.peak_flop_per_s[dtype])


def efficiency(curve: Curve, size: float) -> float:
    """The curve at `size`: linear in log(size) between its points, constant outside them."""
    sizes = [s for s, _ in curve.points]
    i = bisect_right(sizes, size)
    if i == 0 or i == len(sizes):
        return curve.points[min(i, len(sizes) - 1)][1]
    (s0, e0), (s1, e1) = curve.points[i - 1], curve.points[i]
    return e0 + (e1 - e0) * (log(size) - log(s0)) / (log(s1) - log(s0))


def seconds(work: Iterable[Compute], gpu: Gpu, calibration: Calibration, dtype: str) -> Cost:
    """Seconds of kernels one after another: sum of max(flop / (peak e), bytes / (HBM e)), and the launch.

    Left out: kernels that overlap, caches, clocks under load beyond what the curves hold.
    """
    peak = peak_flop_per_s(gpu, dtype)
    total, sources = 0.0, set()
    for kernel in work:
        moving = kernel.hbm_bytes / (gpu.hbm_bytes_per_s * calibration.hbm)
        if kernel.kind == "stream":
            total += moving
            continue
        if kernel.flop:
            curve = {
                "gemm": calibration.gemm,
                "grouped_gemm": calibration.grouped_gemm,
                "attention": calibration.attention,
            }[kernel.kind]
            total += max(kernel.flop / (peak * efficiency(curve, kernel.size)), moving)
            sources.add(curve.source)
    return Cost(total + calibration.kernel_s, weakest(sources)) if total else Cost(0.0, "roofline")


def parts(
    work: Iterable[Compute], gpu: Gpu, calibration: Calibration, execution: Execution, dtype: str
) -> tuple[Parts, str]:
    """Seconds of kernels by what bounds them, and the weakest source among them."""
    spent = {"gemm": 0.0, "attention": 0.0, "stream": 0.0}
    peak, sources = peak_flop_per_s(gpu, dtype), set()
    for kernel in work:
        moving = kernel.hbm_bytes / (gpu.hbm_bytes_per_s * calibration.hbm)
        if kernel.kind == "stream" or not kernel.flop:
            spent["stream"] += moving
            continue
        curve: Curve = getattr(calibration, kernel.kind)
        name = "attention" if kernel.kind == "attention" else "gemm"
        spent[name] += max(kernel.flop / (peak * efficiency(curve, kernel.size)), moving)
        sources.add(curve.source)
    return Parts(**spent, host=calibration.kernel_s if any(spent.values()) else 0.0), weakest(sources)


def weakest(sources: Iterable[str]) -> str:
    """The least trustworthy of several sources; roofline where there is none."""
    return max(sources, key=_TRUST.index, default="roofline")
