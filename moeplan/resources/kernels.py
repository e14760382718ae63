"""Kernels by shape: FLOP, HBM bytes and launches of matrix products, attention cores and elementwise passes.

A product [m, k] x [k, n] has rows, columns and an inner width; a backward has one for the input's gradient, [m, n] x
[n, k], and one for the weight's, [k, m] x [m, n]. Several products with the same weights' shape are one kernel with
`groups`, whose m is all rows together.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ELEMENT_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}
NARROW_BYTES = {"fp8": 1.0, "fp8_block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
"""Bytes of an element and its share of a scale, by what linear layers multiply in."""
GRADIENT_BYTES = 8
"""Of one element of a weight gradient: the fp32 sum over micro-batches is read and written."""


class Compute(NamedTuple):
    """One kernel's demand."""

    kind: Literal["gemm", "grouped_gemm", "attention", "stream"]
    flop: float
    hbm_bytes: float
    m: float = 0.0
    """Rows of all groups together."""
    n: float = 0.0
    k: float = 0.0
    groups: float = 1.0
    """Sets of weights."""
    tokens: float = 0.0
    """Of one group: rows per expert, in every direction."""
    narrow: bool = False
    """Whether the product may run in the narrow type of linear layers."""
    operand_bytes: float = 2.0
    result_bytes: float = 2.0
    """Bytes of an element that a product reads, and of one that it writes."""
    sequence: float = 0.0
    """Of attention: tokens that one token sees at most."""
    head_dim: float = 128.0
    """Of attention: mean width of the scores' and the values' products."""
    direction: Literal["forward", "backward"] = "forward"
    launches: float = 1.0
    """Kernels that the host starts one by one."""
    backward_bytes: float = 0.0
    """HBM bytes of a pass's backward."""
    backward_launches: float = 1.0
    cast: bool = False
    """Whether a pass only changes the element type."""
    module: str = ""
    """What recomputes it alone (`layout.Module`); empty for most kernels."""


def product(
    rows: float,
    inner: float,
    columns: float,
    size: float,
    *,
    groups: float = 1.0,
    operand: float | None = None,
    grouped: bool = False,
) -> Compute:
    """One product, or with `grouped` one for each of `groups` sets of weights, over which `rows` are spread.

    `size` is bytes of a result's element, `operand` of what is multiplied where that is narrower.
    """
    read = size if operand is None else operand
    moved = (rows * inner + groups * inner * columns) * read + rows * columns * size
    kind: Literal["gemm", "grouped_gemm"] = "grouped_gemm" if grouped else "gemm"
    shape = (rows, columns, inner, groups, rows / max(groups, 1e-9))
    return Compute(kind, 2 * rows * inner * columns, moved, *shape, operand is not None, read, size, launches=groups)


def stream(
    hbm_bytes: float, backward_bytes: float | None = None, launches: float = 1.0, backward_launches: float | None = None
) -> Compute:
    """A pass over HBM; its backward moves twice the bytes with as many launches where nothing else is given."""
    back = 2 * hbm_bytes if backward_bytes is None else backward_bytes
    starts = launches if backward_launches is None else backward_launches
    return Compute("stream", 0.0, hbm_bytes, launches=launches, backward_bytes=back, backward_launches=starts)


def backward(work: list[Compute]) -> list[Compute]:
    """Kernels of the backward pass: two products for each, 2.5 times the attention core, the passes' own bytes.

    The attention factor is FlashAttention's, whose backward recomputes the scores (FlashAttention-2, arXiv 2307.08691).
    """
    return [after for kernel in reversed(work) for after in _backward(kernel)]


def _backward(kernel: Compute) -> list[Compute]:
    if kernel.kind == "stream":
        return [kernel._replace(hbm_bytes=kernel.backward_bytes, launches=kernel.backward_launches)]
    if kernel.kind == "attention":
        flop, moved = 2.5 * kernel.flop, 2.5 * kernel.hbm_bytes
        return [kernel._replace(flop=flop, hbm_bytes=moved, direction="backward")]
    m, n, k, weights = kernel.m, kernel.n, kernel.k, kernel.groups * kernel.n * kernel.k
    operands = (m * n + weights) * kernel.operand_bytes + m * k * kernel.result_bytes
    gradient = (m * n + m * k) * kernel.operand_bytes + weights * GRADIENT_BYTES
    return [
        kernel._replace(m=m, n=k, k=n, hbm_bytes=operands, direction="backward"),
        kernel._replace(m=n, n=k, k=m, hbm_bytes=gradient, direction="backward"),
    ]
