"""`--set path=value`: any field of a case, by the name it has in files."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from moeplan.errors import SpecError
from moeplan.spec.case import Case, check_case, check_kinds
from moeplan.spec.given import texts
from moeplan.spec.record import Plain, Record, convert, to_plain

_FREE_KEYS = ("cluster.gpu.peak", "cluster.sources")
"""Tables whose keys are the user's own."""
_HOST_LISTS = ("cluster.hosts", "cluster.use", "cluster.exclude")
"""Text even where it looks like a number or a list: without names, nodes are called 0, 1, ..."""


def override(case: Case, settings: Sequence[str]) -> Case:
    """`case` with `settings` such as "model.top_k=4" or "cluster.node.nic=200 Gbit/s" applied in order, checked again.

    A list may be written with commas alone, "execution.hidden=tensor,expert"; none or nothing empties it. SpecError for
    a setting that is not path=value, an unknown path (with the fields there are), a value of the wrong type or unit,
    and numbers that no longer go together.
    """
    settings = texts(settings, "settings", "model.top_k=4")
    plain = to_plain(check_kinds(case))
    for setting in settings:
        path, value = _parse(setting)
        _assign(plain, path, value)
    return check_case(convert(plain, Case, where=("--set " + " ".join(settings)) if settings else "case"))


def split_settings(settings: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Plain]]:
    """Settings of the case as they are, and those of the layout: "layout.tp=2" becomes {"tp": 2}; the last one wins."""
    case = tuple(setting for setting in settings if not setting.lstrip().startswith("layout."))
    layout = dict(_parse(setting) for setting in settings if setting.lstrip().startswith("layout."))
    return case, {path.removeprefix("layout."): value for path, value in layout.items()}


def _parse(setting: str) -> tuple[str, Plain]:
    path, equals, text = setting.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise SpecError(f"--set {setting}: not a setting; right: path=value, such as model.top_k=4")
    path, text = path.strip(), text.strip()
    value = _value(text)
    return path, text if path in _HOST_LISTS and not isinstance(value, str) else value


def _value(text: str) -> Plain:
    """`text` as a TOML value, or as it is where TOML would want quotes."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _assign(plain: dict[str, Plain], path: str, value: Plain) -> None:
    *parents, last = path.split(".")
    table, seen = plain, ""
    for key in parents:
        table = _child(table, key, seen, path)
        seen = f"{seen}.{key}".removeprefix(".")
    if seen not in _FREE_KEYS:
        _child(table, last, seen, path, table_wanted=False)
    several = isinstance(table.get(last), list | tuple) and isinstance(value, str)
    table[last] = _list(value) if several else value


def _list(text: str) -> list[Plain]:
    """What stands between the commas of `text`; nothing in none."""
    return [] if text == "none" else [_value(part.strip()) for part in text.split(",") if part.strip()]


def _child(table: dict[str, Plain], key: str, seen: str, path: str, *, table_wanted: bool = True) -> Plain:
    known = f"fields of {seen or 'a case'}: {', '.join(table)}"
    if key not in table:
        raise SpecError(f"--set {path}: no field {key!r}; {known}")
    if table_wanted and not isinstance(table[key], dict):
        raise SpecError(f"--set {path}: {key!r} has no fields of its own; {known}")
    return table[key]


def settings_text(record: Record, usual: Record) -> str:
    """What `record` says other than `usual`, as settings; "as moeplan run" where there is nothing."""
    names = [name for name in record.__struct_fields__ if getattr(record, name) != getattr(usual, name)]
    values = ((name, getattr(record, name)) for name in names)
    return ", ".join(f"{name}={_spelled(value)}" for name, value in values) or "as moeplan run"


def _spelled(value: object) -> str:
    """`value` as `--set` reads it."""
    if isinstance(value, tuple):
        return ",".join(map(_spelled, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
