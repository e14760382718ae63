"""How much of a roofline real kernels and links reach. Every number carries its source."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.record import Record
from moeplan.units import Bytes, Seconds

Efficiency = Annotated[float, msgspec.Meta(gt=0, le=2)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
Source = Literal["measured", "interpolated", "roofline", "assumed"]


class Curve(Record):
    """Efficiency over size; linear between points in log(size), constant outside them."""

    points: Annotated[tuple[tuple[Positive, Efficiency], ...], msgspec.Meta(min_length=1)]
    """(size, efficiency), sizes ascending."""
    source: Source
    note: str
    """Where the numbers came from."""


class Tier(Record):
    """Communication inside a node or between nodes: seconds = latency + bytes / (bandwidth * efficiency(message))."""

    efficiency: Efficiency
    half_message_bytes: Bytes = msgspec.field(name="half_message")
    """Message size that reaches half of the bandwidth."""
    latency_s: Seconds = msgspec.field(name="latency")
    """Start of one collective or transfer, on top of the links' own latencies."""
    source: Source
    note: str


class Calibration(Record):
    """Efficiencies of one kind of cluster."""

    name: str
    gemm: Curve
    """Dense GEMM, over rows (tokens)."""
    grouped_gemm: Curve
    """Expert GEMM, over tokens per expert."""
    attention: Curve
    """Attention core, over sequence length."""
    hbm: Efficiency
    """Share of HBM bandwidth that streaming kernels reach."""
    node: Tier
    network: Tier
    kernel_s: Seconds = msgspec.field(name="kernel_launch")
    """Least seconds of one piece's kernels."""


def check_calibration(calibration: Calibration) -> Calibration:
    """`calibration`, or SpecError with the curve whose sizes do not rise."""
    for name in ("gemm", "grouped_gemm", "attention"):
        sizes = [size for size, _ in getattr(calibration, name).points]
        if sizes != sorted(set(sizes)):
            raise SpecError(f"calibration {calibration.name}: {name}.points has sizes {sizes}; they must rise")
    return calibration
