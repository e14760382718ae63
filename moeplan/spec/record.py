"""Records that come from and go to files: frozen, keyword-only, strict about names, types and units."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import tomllib
from codecs import BOM_UTF8
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar, dataclass_transform

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.allowed import choices
from moeplan.units import Quantity

T = TypeVar("T")
Plain: TypeAlias = Any
"""Plain dicts, lists, numbers and text, as TOML and JSON hold them."""
MAX_FILE_BYTES = 512 * 1024 * 1024


class _RecordMeta(msgspec.StructMeta):
    """Gives every subclass the strict options, also those that msgspec does not inherit (kw_only)."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Plain], **options: Plain) -> type:
        strict: dict[str, Plain] = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True}
        return super().__new__(mcs, name, bases, namespace, **strict | options)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, metaclass=_RecordMeta, frozen=True):
    """Base of every record in a file: frozen, keyword-only, unknown fields refused.

    Derived values are functions elsewhere.
    """


def _decode_quantity(kind: type, value: object) -> Plain:
    if issubclass(kind, Quantity):
        if isinstance(value, str):
            return kind.parse(value)
        raise ValueError(f"{value!r} needs a unit, written as text; units: {', '.join(kind.units)}")
    raise NotImplementedError(kind)


def _encode_quantity(value: object) -> Plain:
    if isinstance(value, Quantity):
        return str(value)
    raise NotImplementedError(type(value))


def convert(raw: Plain, kind: type[T], *, where: str) -> T:
    """`raw` (plain dicts, lists, numbers, text) as a record of type `kind`; SpecError names `where` and the field.

    Where a word is none of those that a field may be, they are listed.
    """
    try:
        return msgspec.convert(raw, kind, dec_hook=_decode_quantity)
    except (msgspec.ValidationError, ValueError) as error:
        raise SpecError(f"{where}: {error}{_choices(kind, str(error))}") from None


def _choices(kind: type, message: str) -> str:
    """The end of a message: what would be right, where that is one of a few words."""
    _, invalid, rest = message.partition("Invalid enum value")
    words = choices(kind, rest.partition(" - at ")[2]) if invalid else ()
    return f"; right is {', '.join(words)}" if words else ""


def validated(record: T, where: str) -> T:
    """`record`, made in Python, under the rules of a file: types, limits, units; SpecError as `convert`."""
    try:
        plain = to_plain(record)
    except (TypeError, NotImplementedError, ValueError) as error:
        raise SpecError(f"{where}: {error}") from None
    return convert(plain, type(record), where=where)


def to_plain(record: object) -> Plain:
    """`record` as plain dicts, lists, numbers and text; quantities become text with their SI unit."""
    return msgspec.to_builtins(record, enc_hook=_encode_quantity, builtin_types=())


def to_json(record: object) -> bytes:
    """`record` as indented JSON with a stable key order."""
    return msgspec.json.format(msgspec.json.encode(to_plain(record)), indent=1) + b"\n"


STANDARD = Path("-")
"""Standard input where a file is read, standard output where one is written."""


def read_bytes(path: Path) -> bytes:
    """The content of a file that a user named; SpecError where it is missing, a folder, unreadable or too large."""
    if path == STANDARD:
        return _standard_input(sys.stdin)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SpecError(f"{path}: {'is a folder' if path.is_dir() else 'is not a regular file'}")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SpecError(f"{path}: {path.stat().st_size} bytes; a file of at most {MAX_FILE_BYTES} bytes is read")
        return path.read_bytes()
    except SpecError:
        raise
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


@lru_cache(maxsize=1)
def _standard_input(stream: TextIO | None) -> bytes:
    """All that comes from `stream`, the same each time it is asked for."""
    try:
        content = stream.buffer.read(MAX_FILE_BYTES + 1) if stream is not None else b""
    except OSError as error:
        raise SpecError(f"-: standard input cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise SpecError(f"-: more than {MAX_FILE_BYTES} bytes of standard input; at most as many are read")
    return content


def _filled(path: Path) -> bytes:
    """The content of a document without its byte order mark; SpecError where it is empty."""
    if not (content := read_bytes(path).removeprefix(BOM_UTF8)).strip():
        raise SpecError(f"{path}: is empty")
    return content


def read_json(path: Path) -> Plain:
    """The JSON document in `path`, a byte order mark before it passed over."""
    try:
        return msgspec.json.decode(_filled(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{path}: not valid JSON: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML document in `path`, a byte order mark before it passed over."""
    content = _filled(path)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of numbers with too many digits
        raise SpecError(f"{path}: not valid TOML: {error}") from None


def check_writable(path: Path) -> None:
    """SpecError where a file at `path` could not be written, or something that is no file would be replaced."""
    if path == STANDARD:
        return
    try:
        if path.exists() and not path.is_file():
            raise SpecError(f"{path}: is not a regular file; a file is written")
        folder = path.resolve().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise SpecError(f"{path}: {path.parent} is not a folder that can be written to")
    except SpecError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise SpecError(f"{str(path)!r}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds all of it or stays as it was; a link is followed."""
    if path == STANDARD:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)  # whatever the encoding of what people read
        sys.stdout.flush()
        return
    check_writable(path)
    path = path.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
