"""Plain tables as TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 116


def toml_text(value: Any) -> str:
    """`value` as TOML: a mapping as tables below one another, anything else as one value.

    Text of several lines stands between triple quotes, long lists are wrapped; keys keep their order.
    """
    return "\n".join(_tables(value, ())) + "\n" if isinstance(value, Mapping) else _value(value)


def _tables(tables: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    if plain:
        lines += ["", f"[{'.'.join(path)}]"] if path else []
        lines += [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in tables.items():
        if isinstance(value, Mapping):
            lines += _tables(value, (*path, key))
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\")
        return f'"""\n{escaped}"""' if "\n" in value else '"' + escaped.replace('"', '\\"') + '"'
    if isinstance(value, Sequence):
        return _list([_value(one) for one in value])
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e5 else str(value)


def _list(items: Sequence[str]) -> str:
    line = f"[{', '.join(items)}]"
    if len(line) <= WIDTH - 10:
        return line
    lines = ["   "]
    for item in items:
        if len(lines[-1]) + len(item) + 2 > WIDTH:
            lines.append("   ")
        lines[-1] += f" {item},"
    return "\n".join(["[", *lines, "]"])
