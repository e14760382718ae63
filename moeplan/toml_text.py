"""Plain tables as TOML, with comments where a value has one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 116
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


@dataclass(frozen=True)
class Noted:
    """A value of a table and the comment beside it."""

    value: Any
    note: str


def toml_text(value: Any) -> str:
    """`value` as TOML: a mapping as tables below one another, anything else as one value.

    Text of several lines stands between triple quotes, long lists are wrapped; tables in lists stand in one line unless
    they hold tables or comments; keys keep their order. What `Noted` says of a value follows it as a comment, or stands
    above one of several lines.
    """
    return "\n".join(_tables(value, ())) + "\n" if isinstance(value, Mapping) else _value(value)


def _tables(tables: Mapping[str, Any], path: tuple[str, ...], *, one_of: bool = False) -> list[str]:
    """The lines of a table at `path`, which is `one_of` several there."""
    lines = []
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping) and not _several(value)}
    if plain or not tables or one_of:
        name = ".".join(map(_key, path))
        lines += ["", f"[[{name}]]" if one_of else f"[{name}]"] if path else []
        for key, value in plain.items():
            lines += _line(key, value)
    for key, value in tables.items():
        if isinstance(value, Mapping):
            lines += _tables(value, (*path, key))
        elif _several(value):
            lines += [line for one in value for line in _tables(one, (*path, key), one_of=True)]
    return lines


def _several(value: Any) -> bool:
    """Whether `value` is a list of tables that do not fit in a line each."""
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        return False
    return any(isinstance(inner, Mapping | Noted) for one in value for inner in one.values())


def _line(key: str, value: Any) -> list[str]:
    if not isinstance(value, Noted):
        return [f"{_key(key)} = {_value(value)}"]
    text, note = _value(value.value), comment(value.note)
    return [note, f"{_key(key)} = {text}"] if "\n" in text else [f"{_key(key)} = {text}  {note}"]


def comment(text: str) -> str:
    """`text` as a comment of one line; characters that a comment may not have become "?"."""
    return f"# {''.join(char if char.isprintable() else '?' for char in ' '.join(text.split()))}"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"""\n{_escaped(value)}"""' if "\n" in value else _quoted(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_value(one)}' for key, one in value.items())}}}"
    if isinstance(value, Sequence):
        return _list([_value(one) for one in value])
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e5 else str(value)


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPED.get(char, _printed(char)) for char in text)}"'


def _escaped(text: str) -> str:
    """`text` between triple quotes."""
    lines = text.replace("\\", "\\\\").replace('"""', '""\\"')
    lines = lines[:-1] + '\\"' if lines.endswith('"') else lines
    return "".join(char if char in "\n\t" else _printed(char) for char in lines)


def _printed(char: str) -> str:
    """Characters that TOML has no place for, by their number; halves of characters (surrogates) as "?"."""
    if 0xD800 <= ord(char) <= 0xDFFF:
        return "?"
    return f"\\u{ord(char):04X}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def _list(items: Sequence[str]) -> str:
    line = f"[{', '.join(items)}]"
    if len(line) <= WIDTH - 10:
        return line
    if any(item.startswith("{") for item in items):
        return "\n".join(["[", *(f"    {item}," for item in items), "]"])
    lines = ["   "]
    for item in items:
        if len(lines[-1]) + len(item) + 2 > WIDTH:
            lines.append("   ")
        lines[-1] += f" {item},"
    return "\n".join(["[", *lines, "]"])
