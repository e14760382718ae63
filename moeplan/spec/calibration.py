"""How much of a roofline real kernels and links reach. Every number carries its source."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.record import Record
from moeplan.units import Bytes, BytesPerS, Seconds

Efficiency = Annotated[float, msgspec.Meta(ge=1e-4, le=2)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
Factor = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
Share = Annotated[float, msgspec.Meta(ge=1e-4, le=1)]
Sizes = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)]
Source = Literal["measured", "interpolated", "roofline", "assumed"]


class Surface(Record):
    """Share of a GPU's peak that matrix products [m, k] x [k, n] reach: linear between points in log2 of each axis.

    Where an axis has one point, the share does not depend on it.
    """

    m: Sizes
    n: Sizes = (1.0,)
    k: Sizes = (1.0,)
    share: Annotated[tuple[Efficiency, ...], msgspec.Meta(min_length=1)]
    """At every point, in the order m, n, k: the last moves first."""
    source: Source
    note: str
    """Where the numbers came from."""


class Like(Record):
    """An element type of linear layers that is priced by the best of others' surfaces."""

    of: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    times: Annotated[float, msgspec.Meta(ge=0.01, le=16)] = 1.0
    """Rate over that of those."""
    source: Source
    note: str


class Grouped(Record):
    """Products of several experts in one kernel: the share at all their rows, times rows / (rows + half_rows)."""

    half_rows: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    """Rows per expert at which half of that is reached."""
    source: Source
    note: str


class Attention(Record):
    """Share of peak of causal attention over s tokens: most s / (s + half_sequence), forward and backward."""

    forward: Efficiency
    backward: Efficiency
    half_sequence: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    flash2: Share = 1.0
    """What FlashAttention-2 reaches of it."""
    head_64: Share = 0.6
    """What heads 64 wide reach of what those of 128 and more do: exponentials take as long for half the FLOP."""
    source: Source
    note: str


class Constants(Record):
    """What a training step reaches of what kernels and collectives reach alone; 1: as measured alone."""

    gemm: Factor = 1.0
    """Rate of products in the workload's type: cold caches and clocks under load; 0.65 to 1 is plausible."""
    narrow_gemm: Factor = 1.0
    """The same of products in 8 and 4 bits, whose tables hold slower kernels than training runs; 0.7 to 1.3."""
    attention: Factor = 1.0
    """Rate of the attention core; 0.6 to 1.2."""
    hbm: Factor = 1.0
    """Bytes of passes counted over bytes moved: casts, copies and transposes that nobody counts; 0.3 to 1."""
    expert_bandwidth: Factor = 1.0
    """Rate of dispatch and combine beside other traffic and uneven routing; 0.5 to 1."""
    host: Factor = 1.0
    """Seconds of a launch over `kernel_launch`: the framework's work around it; 0.8 to 3."""


Pattern = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "point_to_point", "deepep", "hybridep"]


class Tier(Record):
    """Communication inside a node or between nodes.

    seconds = latency + moving + 2 sqrt(fill * moving), with moving = bytes / (bandwidth * efficiency * share): the last
    term is what a transfer cut into the best number of chunks loses while its pipeline fills and drains.
    """

    efficiency: Efficiency
    """Share of the bandwidth that large transfers reach, by the pattern that reaches most."""
    half_message_bytes: Bytes = msgspec.field(name="half_message")
    """Bytes that every message costs more; the message size that reaches half of the bandwidth."""
    least_bytes: dict[Pattern, Bytes] = msgspec.field(name="least_messages", default_factory=dict)
    """Bytes that a message of a pattern takes a NIC the time of, however small it is: NICs and threads need it.
    Links between switches carry it as any other."""
    latency_s: Seconds = msgspec.field(name="latency")
    """Start of one collective or transfer, on top of the links' own latencies."""
    starts_s: dict[Pattern, Seconds] = msgspec.field(name="starts", default_factory=dict)
    """The same of a pattern or a library that starts faster or slower than `latency`."""
    fill_s: Seconds = msgspec.field(name="fill", default=Seconds(0.0))
    """Start of one chunk of a transfer."""
    fills_s: dict[Pattern, Seconds] = msgspec.field(name="fills", default_factory=dict)
    """The same of a pattern or a library whose chunks start faster or slower than `fill`."""
    shares: dict[Pattern, Share] = msgspec.field(default_factory=dict)
    """Of `efficiency`, what a pattern or a library reaches; 1 where it is not named."""
    kernel_bytes_per_s: BytesPerS = msgspec.field(name="kernel", default=BytesPerS(0.0))
    """Bytes that one rank's kernel copies per second, its own share included; 0: more than the links carry."""
    contention: Annotated[float, msgspec.Meta(ge=1, le=16)] = 1.0
    """Seconds of a NIC with very many messages under way at once, over those with `few_flows`: 1 is none (measured
    collectives hold theirs already); whatever the pattern is."""
    few_flows: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 32.0
    """Messages that a NIC sends at once without that (assumed)."""
    reduces: bool = False
    """Whether the switch adds up what the ranks of a node send it, so that each sends its buffer once."""
    measured: tuple[Pattern, ...] = ()
    """Patterns fitted to logs of one's own machine; where there are some, all others are uncalibrated."""
    others: Source = "assumed"
    """Where those others' numbers are from."""
    flagged: tuple[str, ...] = ()
    """Points of those logs that were left out as outliers: pattern, size, ranks, bandwidth, file."""
    source: Source
    note: str


def source_of(tier: Tier, pattern: Pattern) -> Source:
    """Where the seconds of `pattern` on `tier` are from: in a tier fitted to logs, others than these do not count."""
    return tier.others if tier.measured and pattern not in tier.measured else tier.source


class Calibration(Record):
    """Efficiencies of one kind of cluster."""

    name: str
    gemm: dict[str, Surface]
    """By element type as kernels know it; types that are not there take bf16's shares, as assumed."""
    linear: dict[str, Like] = msgspec.field(default_factory=dict)
    """By `Execution.linear`, those that are no element type of `gemm`, or not only one."""
    cold: Efficiency = 1.0
    """Rate of a product in a step over that of `gemm`, whose operands may have lain in caches."""
    grouped: Grouped
    attention: Attention
    hbm: Efficiency
    """Share of HBM bandwidth that streaming kernels reach."""
    node: Tier
    network: Tier
    kernel_s: Seconds = msgspec.field(name="kernel_launch")
    """Seconds that the host needs to start one kernel."""
    constants: Constants = Constants()


def check_calibration(calibration: Calibration) -> Calibration:
    """`calibration`, or SpecError with the surface whose sizes do not rise or whose shares are too few or many."""
    where = f"calibration {calibration.name}"
    if "bf16" not in calibration.gemm:
        known = ", ".join(calibration.gemm) or "none"
        raise SpecError(f"{where}: gemm has {known}; bf16 is needed, which stands in for all others")
    for name, surface in calibration.gemm.items():
        for axis in ("m", "n", "k"):
            sizes = list(getattr(surface, axis))
            if sizes != sorted(set(sizes)):
                raise SpecError(f"{where}: gemm.{name}.{axis} has sizes {sizes}; they must rise")
        points = len(surface.m) * len(surface.n) * len(surface.k)
        if len(surface.share) != points:
            raise SpecError(f"{where}: gemm.{name}.share has {len(surface.share)} numbers for {points} points")
    return calibration
