"""Quantities: SI numbers inside, strings with units in files that people write.

A quantity is a float whose class is its dimension, so that `latency = "5 GB/s"` fails where it is read.
"""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal
from typing import ClassVar, Self

_DECIMAL = Context(
    prec=50, traps=[]
)  # decimal, so that "5 us" is the float nearest to 0.000005; overflow becomes infinite
_TEXT = re.compile(r"\s*([+-]?[0-9][0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]+)\s*")


def _scaled(unit: str, prefixes: str, factor: str = "1") -> dict[str, Decimal]:
    powers = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}
    return {f"{p}{unit}": Decimal(factor) * 1000 ** powers[p] for p in prefixes.split(",")}


_BINARY = {f"{p}iB": Decimal(1024**n) for n, p in enumerate("KMGTP", start=1)}


class Quantity(float):
    """A finite SI number of one dimension, zero or more."""

    units: ClassVar[dict[str, Decimal]]
    """How many SI units each spelling stands for."""
    si: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The quantity written as `text`, for instance "80 GiB"; ValueError says which units would be right."""
        match = _TEXT.fullmatch(text)
        if match is None or match[2] not in cls.units:
            raise ValueError(f"{text!r} is not a {cls.__name__}; units: {', '.join(cls.units)}")
        value = float(_DECIMAL.multiply(_DECIMAL.create_decimal(match[1].replace("_", "")), cls.units[match[2]]))
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{text!r} must be finite and not negative")
        return cls(value)

    def short(self) -> str:
        """The shortest text of 1 and more that `parse` reads as this number; of equal ones that of the largest unit."""
        exact = str(self)
        found = [
            f"{float(_DECIMAL.divide(Decimal(self), size)):.12g} {unit}" for unit, size in reversed(self.units.items())
        ]
        read = [text for text in found if type(self).parse(text) == self]
        return min(read, key=lambda text: (text.startswith("0."), len(text)), default=exact)

    def __str__(self) -> str:
        return f"{int(self) if self.is_integer() else float(self)!r} {self.si}"


class Bytes(Quantity):
    """Bytes."""

    si = "B"
    units: ClassVar = _scaled("B", ",k,M,G,T,P") | _BINARY


class Seconds(Quantity):
    """Seconds."""

    si = "s"
    units: ClassVar = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}


class BytesPerS(Quantity):
    """Bytes per second; bits are accepted with their name spelled out."""

    si = "B/s"
    units: ClassVar = (
        _scaled("B/s", ",k,M,G,T") | {f"{k}/s": v for k, v in _BINARY.items()} | _scaled("bit/s", "k,M,G,T", "0.125")
    )


class FlopPerS(Quantity):
    """Floating-point operations per second."""

    si = "FLOP/s"
    units: ClassVar = _scaled("FLOP/s", ",M,G,T,P")
