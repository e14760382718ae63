"""Tiers fitted to logs of one's own machine.

    minimise  sum_i w_i rho(log(predicted_i / measured_i)) + pull sum_j log(number_j / base_j)^2,  w = 1 from 1 MiB

through the costs that plans are made with (`cost.communication`). Each collective has its own share, start and fill; a
tier's kernel, and its half message where logs of several numbers of ranks tell it, are theirs together. Logs inside one
node fit `node`, then those over several fit `network`. Outliers (`calibrate.monotone`) are flagged, not fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import exp, log, sqrt
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs

from moeplan.calibrate.busbw import busbw_limit
from moeplan.calibrate.collectives import LEAST_BYTES, SMALL_WEIGHT, WHOLE_BYTES
from moeplan.calibrate.logs import Log, Row
from moeplan.calibrate.monotone import outliers
from moeplan.calibrate.placed import domains, price
from moeplan.calibrate.robust import settled
from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration, Pattern, Source, Tier
from moeplan.spec.cluster import ClusterSpec, Node
from moeplan.topology.inside import Floats
from moeplan.units import Bytes, BytesPerS, Seconds

Side: TypeAlias = Literal["node", "network"]
Name: TypeAlias = tuple[str, str]
"""A number and its pattern; kernel and half have none."""
Numbers: TypeAlias = dict[Name, float]
FLOORS = {"start": 1e-7, "fill": 1e-8, "half": 64.0}
"""Where the search starts from a base of less: seconds and bytes."""
UNITS = {"fill": 2.0, "half": 2.0}
"""How much surer a base's shares and starts are than these, which differ more from machine to machine (assumed)."""
TELLS = 0.05
"""A share is measured where seconds follow it at least by this exponent."""
ELSEWHERE: dict[Source, Source] = {"measured": "interpolated"}
"""What a source is to another machine than its own."""
LEAST, MOST = 1e-4, 2.0
"""Shares of the links' bandwidth below and above which cluster and log cannot belong together."""


class Curve(NamedTuple):
    """One log on the cluster."""

    log: Log
    pattern: Pattern
    side: Side
    price: Callable[[Calibration, float], float]
    used: tuple[Row, ...]
    flagged: tuple[Row, ...]
    over: str
    """Why it is faster than the cluster's NICs; empty where it is not."""


def fitted(logs: Sequence[Log], cluster: ClusterSpec, base: Calibration) -> tuple[Calibration, tuple[Curve, ...]]:
    """`base` with the tiers that `logs` tell, and what was fitted; logs that are `unused` are passed over.

    SpecError where no log can be used, where one has more ranks on a host than the cluster's nodes have GPUs, or is so
    fast that it cannot be of this cluster.
    """
    curves = tuple(curve(one, cluster) for one in logs if not one.unused)
    if not any(one.used for one in curves):
        why = "; ".join(f"{one.name}: {one.unused or f'no row of {LEAST_BYTES / 1024:g} KiB or more'}" for one in logs)
        raise SpecError(f"nothing to fit: {why}")
    for side in ("node", "network"):
        some = [one for one in curves if one.side == side and one.used]
        if some:
            base = structs.replace(base, **{side: _tier(base, side, some, cluster)})
    return base, curves


def curve(one: Log, cluster: ClusterSpec) -> Curve:
    """`one` on the GPUs of `cluster`, rows below 64 KiB and outliers left out."""
    homes = domains(cluster, one)
    rows = [row for row in one.rows if row.bytes >= LEAST_BYTES]
    odd = outliers([row.bytes for row in rows], [row.out_s for row in rows])
    used = tuple(row for i, row in enumerate(rows) if i not in odd)
    limit = busbw_limit(one.collective, homes, _nic_bytes_per_s(cluster.node, max(Counter(homes).values())))
    fastest = max((row.busbw_bytes_per_s for row in used), default=0.0)
    over = f"busbw {fastest / 1e9:.4g} GB/s is more than the {limit / 1e9:.4g} GB/s of its NICs"
    side: Side = "network" if len(set(homes)) > 1 else "node"
    pattern: Pattern = one.collective  # type: ignore[assignment]
    flagged = tuple(rows[i] for i in odd)
    return Curve(one, pattern, side, price(cluster, one), used, flagged, over if fastest > limit else "")


def _nic_bytes_per_s(node: Node, ranks: int) -> float:
    """The most that one of `ranks` on a node may have of its NICs."""
    return node.nic_bytes_per_s * min(node.nics, max(ranks, ranks * node.nics / node.gpus)) / ranks


def errors(curves: Curve, calibration: Calibration) -> list[float]:
    """By which factor, less one, seconds of `calibration` are off from each row used, up or down."""
    off = [abs(log(curves.price(calibration, row.bytes) / row.out_s)) for row in curves.used]
    return [exp(one) - 1 for one in off]


def _tier(base: Calibration, side: Side, curves: Sequence[Curve], cluster: ClusterSpec) -> Tier:
    """The tier of `side` that `curves` tell."""
    before: Tier = getattr(base, side)
    start = _start(before, side, curves)
    names, units = list(start), np.array([UNITS.get(what, 1.0) for what, _ in start])
    first = np.log(np.array(list(start.values()))) / units
    rates = [number for number, (what, _) in enumerate(names) if what == "rate"]

    def calibration(x: Floats) -> Calibration:
        numbers = dict(zip(names, np.exp(units * x).tolist(), strict=True))
        return structs.replace(base, **{side: _with(before, numbers)})

    def residuals(x: Floats) -> Floats:
        priced = calibration(x)
        off = [_weight(row.bytes) * log(c.price(priced, row.bytes) / row.out_s) for c in curves for row in c.used]
        return np.array(off)

    found = dict(zip(names, np.exp(units * settled(residuals, first, rates)).tolist(), strict=True))
    for (what, pattern), value in found.items():
        if what == "rate" and not LEAST <= value <= MOST:
            where = next(c.log for c in curves if c.pattern == pattern)
            raise SpecError(
                f"{where.name}: line {where.line}: {pattern} reaches {value:.3g} of the {side}'s bandwidth in cluster"
                f" {cluster.name}; {LEAST:g} to {MOST:g} can be: name the cluster that it is of"
            )
    told = [name for name in dict.fromkeys(c.pattern for c in curves) if _tells(base, side, found, curves, name)]
    if not told:
        return before
    others = before.others if before.measured else ELSEWHERE.get(before.source, before.source)
    measured = tuple(sorted({*before.measured, *told}))
    return structs.replace(_with(before, found), measured=measured, others=others, source="measured")


def _start(tier: Tier, side: Side, curves: Sequence[Curve]) -> Numbers:
    """The numbers that are searched, as in the base."""
    numbers: Numbers = {}
    for name in dict.fromkeys(one.pattern for one in curves):
        numbers["rate", name] = tier.efficiency * tier.shares.get(name, 1.0)
        numbers["start", name] = max(tier.starts_s.get(name, tier.latency_s), FLOORS["start"])
        numbers["fill", name] = max(tier.fills_s.get(name, tier.fill_s), FLOORS["fill"])
    if len({one.log.ranks for one in curves}) > 1:
        numbers["half", ""] = max(tier.half_message_bytes, FLOORS["half"])
    if side == "node" and tier.kernel_bytes_per_s:
        numbers["kernel", ""] = float(tier.kernel_bytes_per_s)
    return numbers


def _with(tier: Tier, numbers: Numbers) -> Tier:
    """`tier` with `numbers`. Its efficiency is such that no share of a fitted pattern grows; others' shares stay."""
    rates = {name: value for (what, name), value in numbers.items() if what == "rate"}
    known: Mapping[str, float] = {str(name): share for name, share in tier.shares.items()}
    efficiency = max(max(rates.values()), min(MOST, max(value / known.get(name, 1.0) for name, value in rates.items())))
    changes = {"shares": {name: value / efficiency for name, value in rates.items()}}
    for field in ("start", "fill"):
        changes[f"{field}s_s"] = {name: Seconds(value) for (what, name), value in numbers.items() if what == field}
    merged = {field: getattr(tier, field) | values for field, values in changes.items()}
    half = Bytes(numbers.get(("half", ""), tier.half_message_bytes))
    kernel = BytesPerS(numbers.get(("kernel", ""), tier.kernel_bytes_per_s))
    return structs.replace(tier, efficiency=efficiency, half_message_bytes=half, kernel_bytes_per_s=kernel, **merged)


def _tells(base: Calibration, side: Side, numbers: Numbers, curves: Sequence[Curve], name: str) -> bool:
    """Whether the seconds of the largest messages of `name` follow its share, or the kernel, as fitted."""
    before: Tier = getattr(base, side)
    more = 1.05
    faster = {key: value * more if key in (("rate", name), ("kernel", "")) else value for key, value in numbers.items()}
    now, then = (structs.replace(base, **{side: _with(before, some)}) for some in (numbers, faster))
    some = [(one.price, one.used[-1].bytes) for one in curves if one.pattern == name]
    return any(log(f(now, size) / f(then, size)) / log(more) > TELLS for f, size in some)


def _weight(size: float) -> float:
    return 1.0 if size >= WHOLE_BYTES else sqrt(SMALL_WEIGHT)


def middle_error(curves: Curve, calibration: Calibration) -> float:
    """The median of `errors`."""
    return median(errors(curves, calibration))
