"""What a field of a record may be, told where a value is none of it."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect


def choices(kind: type, path: str) -> tuple[str, ...]:
    """The words that the field at `path` of a record of type `kind` may be; none where it is no choice of words.

    `path` as in messages of msgspec: `$.execution.hidden[1]`.
    """
    found: Any = [inspect.type_info(kind)]
    for name in re.findall(r"\.(\w+)|\[", path):
        found = [below for one in found for below in _below(one, name)]
    return tuple(str(value) for one in found if isinstance(one, inspect.LiteralType) for value in one.values)


def _below(kind: Any, name: str) -> list[Any]:
    """Types of the field `name` of `kind`, or of its items where `name` is empty."""
    if isinstance(kind, inspect.UnionType):
        return [below for one in kind.types for below in _below(one, name)]
    if isinstance(kind, inspect.StructType):
        return [_plain(field.type) for field in kind.fields if name and field.encode_name == name]
    item = getattr(kind, "item_type", None)
    return [_plain(item)] if item is not None and not name else []


def _plain(kind: Any) -> Any:
    """`kind` without what describes it."""
    return _plain(kind.type) if isinstance(kind, inspect.Metadata) else kind
