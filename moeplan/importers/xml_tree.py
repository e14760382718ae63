"""XML of one node: a tree of devices, where near means far down a common path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, ParseError, XMLParser

from moeplan.errors import SpecError

Path = tuple[Element, ...]
"""From the root to an element."""
_DEEPEST = 1000


def parse(text: str, where: str) -> Element:
    """The root of the document; SpecError where it is not closed or not XML, or defines entities."""
    if "<!ENTITY" in text:
        raise SpecError(f"{where}: defines XML entities; a topology has none")
    parser = XMLParser()
    try:
        parser.feed(re.sub(r"\A\s*<\?xml.*?\?>", "", text, flags=re.DOTALL))
        root: Element = parser.close()
    except ParseError as error:
        line, column = error.position
        what = str(error).partition(": line")[0]
        raise SpecError(f"{where}: line {line}, column {column + 1}: {what}; a whole XML file is right") from None
    return root


def paths(root: Element, where: str) -> list[Path]:
    """The path to every element, in the order of the document; SpecError where it is deeper than any machine."""
    found: list[Path] = []
    open_paths: list[Path] = [(root,)]
    while open_paths:
        path = open_paths.pop()
        if len(path) > _DEEPEST:
            raise SpecError(f"{where}: elements lie deeper than {_DEEPEST}")
        found.append(path)
        open_paths += ((*path, child) for child in reversed(path[-1]))
    return found


def nearest(path: Path, others: Sequence[Path]) -> tuple[int, ...]:
    """Indices of those of `others` that have the longest common way with `path` from the root."""
    lengths = [_common(path, other) for other in others]
    return tuple(i for i, length in enumerate(lengths) if length == max(lengths))


def _common(path: Path, other: Path) -> int:
    length = 0
    for a, b in zip(path, other, strict=False):
        if a is not b:
            break
        length += 1
    return length


def bus_key(bus_id: str, where: str) -> tuple[int, ...]:
    """A PCI address such as 0000:c1:00.0 as numbers, to sort by; SpecError where it is none."""
    if not re.fullmatch(r"(?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-9a-fA-F]", bus_id):
        raise SpecError(f"{where}: {bus_id!r} is no PCI address; one such as 0000:c1:00.0 is right")
    numbers = [int(part, 16) for part in re.split(r"[:.]", bus_id)]
    return tuple(numbers if len(numbers) == 4 else [0, *numbers])


def cpus_in(mask: str, where: str) -> str:
    """A mask of CPUs, as "00000000,0000ffff" or "0x00000003,,0x1", as "0-15"; words of 32 bits, the highest first."""
    words = [word.strip().removeprefix("0x") for word in mask.split(",")] if mask.strip() else []
    if not all(re.fullmatch(r"[0-9a-fA-F]{0,16}", word) for word in words):
        raise SpecError(f"{where}: {mask[:60]!r} is no mask of CPUs; hexadecimal words are right")
    bits = 0
    for word in words:
        bits = (bits << 32) | int(word or "0", 16)
    cpus = [cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1]
    return ranges(cpus)


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as "0-3,8"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
