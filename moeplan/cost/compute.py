"""Seconds of compute: each kernel at the slower of its FLOP and its HBM bytes, at the rate of its shape."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import log, log2

from moeplan.cost import Cost, Parts
from moeplan.cost.beside import together
from moeplan.errors import SpecError
from moeplan.resources.work import Compute
from moeplan.spec.calibration import Attention, Calibration, Constants, Like, Sizes, Surface
from moeplan.spec.cluster import Gpu
from moeplan.spec.execution import PEAKS, Execution

_TRUST = ("measured", "interpolated", "roofline", "assumed")
BELOW = {"m": 0.6, "n": 0.4, "k": 0.4}
"""Exponents of size over the first point, below it: few rows, columns or a short inner width keep fewer units busy
(assumed; they agree with published training runs)."""


def peak_flop_per_s(gpu: Gpu, dtype: str) -> float:
    """The dense peak of `gpu` for `dtype`; SpecError where the cluster file does not give it."""
    name = PEAKS.get(dtype, dtype)
    if name not in gpu.peak_flop_per_s:
        known = ", ".join(gpu.peak_flop_per_s) or "none"
        raise SpecError(f"gpu {gpu.name!r}: no peak for {name}; the cluster file gives {known}")
    return float(gpu.peak_flop_per_s[name])


def share(surface: Surface, m: float, n: float, k: float) -> float:
    """Share of peak at [m, k] x [k, n]: multilinear in log2 between points, constant above the last.

    Below the first point of an axis with several it falls by the powers of `BELOW`.
    """
    (i, u), (j, v), (l, w) = _place(surface.m, m), _place(surface.n, n), _place(surface.k, k)  # noqa: E741
    columns, inner, points = len(surface.n), len(surface.k), surface.share
    found = 0.0
    for a, x in ((i, 1 - u), (i + 1, u)):
        for b, y in ((j, 1 - v), (j + 1, v)):
            if x * y:
                at = (a * columns + b) * inner + l
                found += x * y * ((1 - w) * points[at] + (w * points[at + 1] if w else 0.0))
    for axis, nodes, size in (("m", surface.m, m), ("n", surface.n, n), ("k", surface.k, k)):
        if size < nodes[0] and len(nodes) > 1:
            found *= (size / nodes[0]) ** BELOW[axis]
    return found


def _place(nodes: Sizes, size: float) -> tuple[int, float]:
    """The point at or below `size` and how far it is from there to the next, in log2: 0 to 1."""
    i = bisect_right(nodes, size)
    if i == 0 or i == len(nodes):
        return max(i - 1, 0), 0.0
    return i - 1, log(size / nodes[i - 1]) / log(nodes[i] / nodes[i - 1])


def attention_share(attention: Attention, kernel: Compute, *, flash2: bool = False) -> float:
    """Share of peak of one attention core: most s / (s + half_sequence), less for heads narrower than 128.

    From 128 to 64 the factor falls linearly in log2 to `head_64`, below that in proportion to the width.
    """
    most = attention.forward if kernel.direction == "forward" else attention.backward
    width = kernel.head_dim
    narrow = attention.head_64
    factor = narrow * width / 64 if width < 64 else min(1.0, narrow + (1 - narrow) * log2(width / 64))
    factor *= attention.flash2 if flash2 else 1.0
    return most * factor * kernel.sequence / (kernel.sequence + attention.half_sequence)


def like_of(calibration: Calibration, element: str) -> Like:
    """Whose shares price products in `element`: those that `calibration` names, or its own."""
    return calibration.linear.get(element) or Like(of=(element,), source="measured", note="")


def rate(kernel: Compute, gpu: Gpu, calibration: Calibration, element: str) -> tuple[float, str]:
    """FLOP/s of a product in `element`, and where that number came from."""
    like = like_of(calibration, element)
    best, sources = 0.0, []
    for name in like.of:
        surface = calibration.gemm.get(name)
        sources.append("assumed" if surface is None else surface.source)
        reached = share(surface or calibration.gemm["bf16"], kernel.m, kernel.n, kernel.k)
        best = max(best, reached * peak_flop_per_s(gpu, name))
    best *= like.times * calibration.cold
    if kernel.groups > 1:
        best *= kernel.tokens / (kernel.tokens + calibration.grouped.half_rows)
        sources.append(calibration.grouped.source)
    return best, weakest((like.source, *sources))


def parts(
    work: Iterable[Compute], gpu: Gpu, calibration: Calibration, execution: Execution, dtype: str
) -> tuple[Parts, dict[str, str]]:
    """Seconds of kernels by what bounds them, and the weakest source of the rates of each part that has some.

    A product or an attention core takes max(flop / rate, bytes / HBM), a pass bytes / HBM, the host its launches.
    `Calibration.constants` are not in it (`in_step`). Left out: kernels that overlap.
    """
    spent = dict.fromkeys(Parts._fields, 0.0)
    sources: dict[str, str] = {}
    for kernel in work:
        moving = kernel.hbm_bytes / (gpu.hbm_bytes_per_s * calibration.hbm)
        if not kernel.flop and not moving:
            continue
        spent["host"] += kernel.launches * calibration.kernel_s
        if not kernel.flop:
            spent["cast" if kernel.cast else "stream"] += moving
            continue
        if kernel.kind == "attention":
            reached = peak_flop_per_s(gpu, dtype) * attention_share(
                calibration.attention, kernel, flash2=execution.attention_kernel == "flash2"
            )
            name, source = "attention", str(calibration.attention.source)
        else:
            element = execution.linear if kernel.narrow and execution.linear != "same" else dtype
            name = "gemm" if element == dtype else "narrow_gemm"
            reached, source = rate(kernel, gpu, calibration, element)
        spent[name] += max(kernel.flop / reached, moving)
        sources[name] = weakest((source, sources.get(name, source)))
    return Parts(**spent), sources


def in_step(spent: Parts, constants: Constants) -> Parts:
    """Seconds in a step: each part over its factor, the host's times its factor."""
    return Parts(
        spent.gemm / constants.gemm,
        spent.narrow_gemm / constants.narrow_gemm,
        spent.attention / constants.attention,
        spent.stream / constants.hbm,
        spent.cast,
        spent.host * constants.host,
    )


def seconds(
    work: Iterable[Compute], gpu: Gpu, calibration: Calibration, dtype: str, execution: Execution | None = None
) -> Cost:
    """Seconds of kernels one after another with the launches beside them (`cost.beside`), constants included.

    `execution` is what `work` was made with; its default is what moeplan's own executor does.
    """
    spent, sources = parts(work, gpu, calibration, execution or Execution(), dtype)
    return Cost(together(in_step(spent, calibration.constants)), weakest(sources.values()))


def weakest(sources: Iterable[str]) -> str:
    """The least trustworthy of several sources; roofline where there is none."""
    return max(sources, key=_TRUST.index, default="roofline")
