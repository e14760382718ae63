"""From log files to a calibration's text: read, fit, note, write; and what to tell the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from moeplan.calibrate.fit_logs import Curve, errors, fitted, middle_error
from moeplan.calibrate.fit_text import flags, noted, printable, rounded, size_text, written
from moeplan.calibrate.logs import Log, read_logs
from moeplan.calibrate.placed import clusters_of
from moeplan.calibrate.whose import differences
from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration
from moeplan.spec.shipped import calibration_file, load_calibration, load_cluster, shipped

POOR = 0.15
"""Error in the median above which a fit is told to be poor."""


class Calibrated(NamedTuple):
    """A calibration fitted to logs."""

    calibration: Calibration
    text: str
    """As TOML."""
    curves: tuple[Curve, ...]
    rows: list[dict[str, Any]]
    """One per log, for a table."""
    title: str
    warnings: tuple[str, ...]


def calibrated(files: Sequence[Path], name: str, cluster: str | None = None, like: str | None = None) -> Calibrated:
    """The calibration `name` of the machine `cluster` whose logs are `files`; what they do not tell is as in `like`.

    The cluster is by default the shipped one whose GPU the logs name, `like` the cluster's calibration. SpecError where
    a file is no log, the cluster is not told, or nothing can be fitted (`logs.parse_logs`, `fit_logs.fitted`).
    """
    logs = [log for path in files for log in read_logs(path)]
    machine = load_cluster(cluster or _cluster(logs))
    base_name = like or machine.calibration
    base = load_calibration(base_name)
    found, curves = fitted(logs, machine, base)
    whole = structs.replace(noted(rounded(found), base, curves, machine.name), name=name)
    text = written(calibration_file(base_name).read_text(), whole)
    rows = [_row(one, whole) for one in curves]
    title = f"calibration {name}: cluster {machine.name}, the rest as {base.name}"
    warnings = [*differences(logs, machine), *_warnings(logs, curves, whole)]
    return Calibrated(whole, text, curves, rows, title, tuple(map(printable, warnings)))


def _cluster(logs: Sequence[Log]) -> str:
    """The shipped cluster with the GPU that the logs name; SpecError where none or several have it."""
    gpus = list(dict.fromkeys(log.gpu for log in logs if log.gpu))
    known = list(dict.fromkeys(name for gpu in gpus for name in clusters_of(gpu)))
    if len(known) != 1:
        said = f"the logs name {', '.join(gpus)}" if gpus else "the logs name no GPU"
        raise SpecError(f"{said}: give --cluster; shipped: {', '.join(known or shipped('cluster'))}")
    return known[0]


def _row(curve: Curve, calibration: Calibration) -> dict[str, Any]:
    log, used = curve.log, curve.used
    return {
        "log": printable(log.name),
        "collective": curve.pattern,
        "ranks": log.ranks,
        "hosts": log.nodes,
        "tier": curve.side,
        "rows": len(used),
        "sizes": f"{size_text(used[0].bytes)} to {size_text(used[-1].bytes)}" if used else "",
        "median error": f"{middle_error(curve, calibration):.1%}" if used else "",
        "largest": f"{max(errors(curve, calibration)):.1%}" if used else "",
    }


def _warnings(logs: Sequence[Log], curves: Sequence[Curve], calibration: Calibration) -> list[str]:
    """What the logs leave open, log by log."""
    told = [f"{log.name}: line {log.line}: {log.unused}; not used" for log in logs if log.unused]
    for curve in curves:
        log, tier = curve.log, getattr(calibration, curve.side)
        where = f"{log.name}: line {log.line}"
        told += [f"{where}: {note}" for note in log.notes]
        told += [f"outlier, left out: {text}" for text in flags(curve)]
        if not curve.used:
            told.append(f"{where}: no row of 64 KiB or more; not used")
            continue
        if curve.over:
            told.append(f"{where}: {curve.over}; is the cluster's node.nic right?")
        if curve.pattern not in tier.measured:
            told.append(
                f"{where}: {curve.pattern} over hosts is bound inside the node; a log of one node would tell its share"
            )
        if middle_error(curve, calibration) > POOR:
            told.append(f"{where}: met within {middle_error(curve, calibration):.0%} in the median only")
    return told
