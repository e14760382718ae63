"""The part of YAML that configuration files use: block mappings and sequences, one-line lists, plain and quoted text.

Anchors, tags, text over several lines, `{...}` and several documents are refused by name; every scalar stays text.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from moeplan.errors import SpecError

Yaml: TypeAlias = "dict[str, Yaml] | list[Yaml] | str | None"
_KEY = re.compile(r"([A-Za-z_][\w.-]*|\"[^\"]*\"|'[^']*')\s*:(?:\s+(.*))?$")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_DEEPEST = 50


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def load(text: str, where: str) -> Yaml:
    """The document in `text`; SpecError names the line that is no such YAML. Keys keep their case."""
    lines = _lines(text, where)
    if not lines:
        return None
    found, rest = _node(lines, 0, lines[0].indent, where, 0)
    if rest < len(lines):
        raise _wrong(lines[rest], "indented less than what it belongs to", where)
    return found


def _lines(text: str, where: str) -> list[_Line]:
    found: list[_Line] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = _COMMENT.sub("", raw).rstrip()
        content = line.lstrip(" ")
        if not content or (content in ("---", "...") and not found) or content.startswith("%"):
            continue
        if content == "...":
            break
        if content.startswith(("\t", "---")):
            what = "indented with a tab" if content[0] == "\t" else "a second document"
            raise _wrong(_Line(number, 0, content), what, where)
        found.append(_Line(number, len(line) - len(content), content))
    return found


def _node(lines: list[_Line], at: int, indent: int, where: str, depth: int) -> tuple[Yaml, int]:
    """What begins at line `at` with `indent` spaces before it, and the line after it."""
    if depth > _DEEPEST:
        raise _wrong(lines[at], f"deeper than {_DEEPEST} levels", where)
    if _is_item(lines[at].text):
        return _sequence(lines, at, indent, where, depth)
    return _mapping(lines, at, indent, where, depth)


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _sequence(lines: list[_Line], at: int, indent: int, where: str, depth: int) -> tuple[list[Yaml], int]:
    items: list[Yaml] = []
    while at < len(lines) and lines[at].indent == indent and _is_item(lines[at].text):
        inside = lines[at].text[1:].lstrip()
        if not inside:
            item, at = _below(lines, at, indent + 1, where, depth)
        elif _is_item(inside) or _KEY.match(inside):
            inner = indent + len(lines[at].text) - len(inside)
            lines[at] = lines[at]._replace(indent=inner, text=inside)
            item, at = _node(lines, at, inner, where, depth + 1)
        else:
            item, at = _scalar(inside, lines[at], where), at + 1
        items.append(item)
    return items, _after(lines, at, indent, where)


def _mapping(lines: list[_Line], at: int, indent: int, where: str, depth: int) -> tuple[dict[str, Yaml], int]:
    found: dict[str, Yaml] = {}
    while at < len(lines) and lines[at].indent == indent and not _is_item(lines[at].text):
        line = lines[at]
        match = _KEY.match(line.text)
        if match is None:
            raise _wrong(line, "not `key: value`", where)
        key = match[1].strip("\"'")
        if key in found:
            raise _wrong(line, f"the key {key!r} for the second time", where)
        if match[2]:
            found[key], at = _scalar(match[2], line, where), at + 1
        else:
            found[key], at = _below(lines, at, indent, where, depth)
    return found, _after(lines, at, indent, where)


def _below(lines: list[_Line], at: int, indent: int, where: str, depth: int) -> tuple[Yaml, int]:
    """What stands under line `at`: deeper than `indent`, or as deep where it is a sequence; None where nothing does."""
    after = at + 1
    if after < len(lines):
        deeper, item = lines[after].indent - indent, _is_item(lines[after].text)
        if deeper > 0 or (deeper == 0 and item):
            return _node(lines, after, lines[after].indent, where, depth + 1)
    return None, after


def _after(lines: list[_Line], at: int, indent: int, where: str) -> int:
    """`at`, or SpecError where the line there is deeper than the node that has ended."""
    if at < len(lines) and lines[at].indent > indent:
        raise _wrong(lines[at], "indented more than the lines before", where)
    return at


def _scalar(text: str, line: _Line, where: str) -> Yaml:
    if text[0] in "&*!|>{@`%":
        raise _wrong(line, f"a value that begins with {text[0]!r}", where)
    if text[0] in "\"'":
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1]:
            raise _wrong(line, "a quote that is not closed", where)
        return text[1:-1]
    if text[0] != "[":
        return None if text in ("~", "null") else text
    if text[-1] != "]":
        raise _wrong(line, "a '[' that is not closed", where)
    return [_scalar(part.strip(), line, where) for part in text[1:-1].split(",") if part.strip()]


def _wrong(line: _Line, what: str, where: str) -> SpecError:
    right = "block mappings and sequences of one-line values are read"
    return SpecError(f"{where}: line {line.number}: {line.text[:60]!r} is {what}; {right}; the file may be cut")
