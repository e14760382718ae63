"""Plan files: written whole, read under all rules, and kept readable from one version to the next.

`schema_version` is MAJOR.MINOR: whatever changes raises the minor, and plans of earlier minors are read; what can no
longer be read raises the major. Equal inputs give equal bytes outside `provenance`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from moeplan.errors import PlanVersionError, ScheduleError, SpecError
from moeplan.plan import SCHEMA, SCHEMA_VERSION, Plan, digest_of
from moeplan.plan_rules import EDITED, check
from moeplan.spec.given import of_type, path_of
from moeplan.spec.record import convert, read_json, to_json, write_whole


def write_plan(plan: Plan, path: Path | str) -> None:
    """Write `plan` to `path`, whole or not at all."""
    of_type(plan, Plan, "plan", right="a Plan, such as optimize(...).best")
    write_whole(path_of(path, "path"), to_json(plan))


def read_plan(path: Path | str) -> Plan:
    """The plan in `path`, checked; SpecError, PlanVersionError or ScheduleError say what is wrong and where."""
    path = path_of(path, "path")
    raw = read_json(path)
    _check_version(raw, path)
    plan = convert(_upgraded(raw, path), Plan, where=str(path))
    try:
        check(plan)
    except (SpecError, ScheduleError) as error:
        raise type(error)(f"{path}: {error}") from None
    return plan


def _upgraded(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """`raw` as this version writes it; the digest of an older plan is compared with its own fields, and dropped.

    1.0: Piper's layout had the degrees of a colocated mesh. 1.1 had no `execution`, which is the default one.
    """
    if raw["schema_version"] == SCHEMA_VERSION:
        return raw
    try:
        told = raw["predictions"]
        if told["of_inputs"] not in ("", digest_of(raw)):
            raise SpecError(f"{path}: {EDITED}")
        new = raw | {"schema_version": SCHEMA_VERSION, "predictions": told | {"of_inputs": ""}}
        if raw["layout"]["family"] == "piper":
            layout = dict(raw["layout"])
            others = [layout.pop(name) for name in ("tp", "cp", "etp")]
            if others != [1, 1, 1] or layout["dp"] % layout["ep"]:
                raise SpecError(f"{path}: layout: piper has tp, cp and etp 1, not {others}, and a dp that ep divides")
            new["layout"] = layout | {"dp": layout["dp"] // layout["ep"]}
    except KeyError:
        return raw  # what is missing is told by the record
    except (TypeError, AttributeError, ZeroDivisionError):
        raise SpecError(f"{path}: predictions and layout are not those of a plan; whole numbers are due") from None
    return new


def _check_version(raw: Any, path: Path) -> None:
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise SpecError(f"{path}: not a plan: schema is not {SCHEMA!r}")
    version = raw.get("schema_version")
    number = "(0|[1-9][0-9]{0,5})"
    match = re.fullmatch(rf"{number}\.{number}", version) if isinstance(version, str) else None
    if match is None:
        raise PlanVersionError(f"{path}: schema_version {version!r} is not MAJOR.MINOR such as {SCHEMA_VERSION}")
    major, minor = (int(n) for n in SCHEMA_VERSION.split("."))
    if (int(match[1]), int(match[2])) > (major, minor):
        raise PlanVersionError(f"{path}: plan version {version} is newer than {SCHEMA_VERSION}; upgrade moeplan")
    if int(match[1]) < major:
        raise PlanVersionError(f"{path}: plan version {version} is older than {major}.0 and cannot be read")
