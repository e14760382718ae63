"""Text out of a file as people paste it: terminal escapes, carriage returns and byte order marks go."""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE

from moeplan.errors import SpecError

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC: titles, hyperlinks
    r"|\x1b[PX^_].*?\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]",  # two characters
    re.DOTALL,
)
"""Control sequences of ECMA-48, section 5."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def text_of(content: bytes, where: str) -> str:
    """`content` as text: UTF-8, or UTF-16 that begins with its mark; SpecError where it is neither."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return _decoded(content, "utf-16", where)
    if b"\0" in content:
        at = content.index(b"\0")
        raise SpecError(f"{where}: is a binary file (byte {at} is 0); a text file is read")
    return _decoded(content.removeprefix(BOM_UTF8), "utf-8", where)


def _decoded(content: bytes, encoding: str, where: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise SpecError(f"{where}: is not {encoding.upper()} text: {error.reason} at byte {error.start}") from None


def cleaned(text: str) -> str:
    """`text` with "\\n" between lines, a space for each no-break space, and nothing that only a terminal shows."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    return _CONTROL.sub("", text.removeprefix("\ufeff"))
