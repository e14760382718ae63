"""A calibration fitted to logs as TOML: its base's text with other tables for `node` and `network`, notes and all."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from math import floor, log2
from typing import Any

from msgspec import structs

from moeplan.calibrate.fit_logs import Curve, Side, errors, middle_error
from moeplan.spec.calibration import Calibration, Tier, check_calibration
from moeplan.spec.record import convert, to_plain
from moeplan.toml_text import toml_text

_TABLE = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_\"'.\s-]+?)\s*\]\]?\s*(?:#.*)?$")


def size_text(size: float) -> str:
    """Bytes as people say them: 1 GiB, 64 KiB, 12345 B."""
    power = min(3, floor(log2(size) / 10)) if size >= 1 else 0
    value = size / 1024**power
    return f"{value:.6g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def rounded(calibration: Calibration) -> Calibration:
    """`calibration` with numbers of fitted tiers as they stand in a file: four digits, micro- and nanoseconds."""
    tiers = {side: convert(_plain(getattr(calibration, side)), Tier, where=side) for side in fitted_sides(calibration)}
    return structs.replace(calibration, **tiers)


def fitted_sides(calibration: Calibration) -> tuple[Side, ...]:
    """The tiers of `calibration` that logs tell."""
    sides: tuple[Side, ...] = ("node", "network")
    return tuple(side for side in sides if getattr(calibration, side).measured)


def noted(calibration: Calibration, base: Calibration, curves: Sequence[Curve], cluster: str) -> Calibration:
    """`calibration` whose fitted tiers say which logs, rows and sizes stand behind them, and how well they are met."""
    tiers = {}
    for side in ("node", "network"):
        some = [one for one in curves if one.side == side and one.used]
        before: Tier = getattr(base, side)
        if some and getattr(calibration, side) != before:
            note = "\n".join([_head(cluster), *(_line(one, calibration) for one in some), _rest(base, before)])
            flagged = (*before.flagged, *(text for one in some for text in flags(one)))
            tiers[side] = structs.replace(getattr(calibration, side), note=note + "\n", flagged=flagged)
    return structs.replace(calibration, **tiers)


def flags(curve: Curve) -> tuple[str, ...]:
    """The outliers of one log: pattern, size, ranks, busbw as printed, file."""
    return tuple(
        printable(
            f"{curve.pattern} of {size_text(row.bytes)} among {curve.log.ranks} ranks,"
            f" {row.busbw_bytes_per_s / 1e9:.4g} GB/s of busbw ({curve.log.name})"
        )
        for row in curve.flagged
    )


def written(text: str, calibration: Calibration) -> str:
    """`calibration` as TOML: the base's `text` where its own name, node and network stand instead of the base's.

    Where that is not `calibration`, for the text is not of plain tables, it is written anew, without comments.
    """
    sides = fitted_sides(calibration)
    tables = {side: _plain(getattr(calibration, side)) for side in sides}
    line = f"name = {toml_text(calibration.name)}\n"
    kept = re.sub(r"(?m)^\s*name\s*=.*\n", lambda _: line, text, count=1)
    spliced = "".join(_without(kept, sides)).rstrip("\n") + "\n" + toml_text(tables)
    try:
        if convert(tomllib.loads(spliced), Calibration, where="") == calibration:
            return spliced
    except ValueError:  # SpecError and TOML's own
        pass
    plain: Mapping[str, Any] = to_plain(calibration)
    whole = toml_text({**plain, **tables})
    check_calibration(convert(tomllib.loads(whole), Calibration, where=calibration.name))
    return whole


def _without(text: str, names: Sequence[str]) -> list[str]:
    """Lines of TOML without the tables of these names and those below them."""
    kept, skips, quotes = [], False, ""
    for line in text.splitlines(keepends=True):
        table = _TABLE.match(line) if not quotes else None
        if table:
            skips = table[1].split(".")[0].strip(" \"'") in names
        if not skips:
            kept.append(line)
        for mark in re.findall(r'"""|\'\'\'', line):
            quotes = mark if not quotes else "" if mark == quotes else quotes
    return kept


def _plain(tier: Tier) -> dict[str, Any]:
    """A tier's TOML."""
    told = {
        "efficiency": float(f"{tier.efficiency:.4g}"),
        "half_message": f"{tier.half_message_bytes:.4g} B",
        "latency": _us(tier.latency_s),
        "fill": _us(tier.fill_s),
        "kernel": f"{tier.kernel_bytes_per_s / 1e9:.4g} GB/s",
        "contention": float(f"{tier.contention:.4g}"),
        "few_flows": float(f"{tier.few_flows:.4g}"),
        "reduces": tier.reduces,
        "measured": list(tier.measured),
        "others": tier.others,
        "flagged": list(tier.flagged),
        "source": tier.source,
        "note": tier.note,
        "least_messages": {name: f"{value:.4g} B" for name, value in tier.least_bytes.items()},
        "starts": {name: _us(value) for name, value in tier.starts_s.items()},
        "fills": {name: _us(value) for name, value in tier.fills_s.items()},
        "shares": {name: max(1e-4, float(f"{value:.4g}")) for name, value in tier.shares.items()},
    }
    return {key: value for key, value in told.items() if value not in ([], {}, "0 GB/s")}


def _us(value: float) -> str:
    return f"{value * 1e6:.4g} us"


def _head(cluster: str) -> str:
    return f"Fitted to logs of nccl-tests or rccl-tests; shares are of the links of cluster {cluster}."


def _line(curve: Curve, calibration: Calibration) -> str:
    """What one log gave."""
    log, used = curve.log, curve.used
    sizes = f"{size_text(used[0].bytes)} to {size_text(used[-1].bytes)}"
    middle, most = middle_error(curve, calibration), max(errors(curve, calibration))
    met = f"met within {middle:.1%} in the median, {most:.1%} at most"
    told = "" if curve.pattern in getattr(calibration, curve.side).measured else "; its share is decided elsewhere"
    odd = f"; flagged: {', '.join(size_text(row.bytes) for row in curve.flagged)}" if curve.flagged else ""
    where = f"{log.ranks} ranks on {log.nodes} host{'s' * (log.nodes > 1)}"
    notes = f"; {'; '.join(log.notes)}" if log.notes else ""
    return printable(
        f"{curve.pattern} (measured): {log.name}, {where}, {len(used)} rows of {sizes}, {met}{told}{odd}{notes}."
    )


def printable(text: str) -> str:
    """`text` with ? for what a TOML file could not hold or a terminal would obey."""
    return "".join(one if one.isprintable() and one != '"' else "?" for one in text)


def _rest(base: Calibration, before: Tier) -> str:
    return f"Numbers without a log are those of calibration {base.name} ({before.source}): {before.note.strip()}"
