"""Quantities: exact reading, exact round trips, refusals that name the units."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.units import Bytes, BytesPerS, FlopPerS, Quantity, Seconds

KINDS = (Bytes, Seconds, BytesPerS, FlopPerS)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Seconds, "5 us", 5e-06),
        (Seconds, "0.3 us", 3e-07),
        (Seconds, "700 ns", 7e-07),
        (Seconds, "1.1 ms", 0.0011),
        (Bytes, "80 GiB", 80 * 2**30),
        (Bytes, "80 GB", 80e9),
        (Bytes, "1.5 PiB", 1.5 * 2**50),
        (Bytes, "1_000 kB", 1e6),
        (BytesPerS, "400 Gbit/s", 50e9),
        (BytesPerS, "3.35 TB/s", 3.35e12),
        (BytesPerS, "256 KiB/s", 2**18),
        (FlopPerS, "989 TFLOP/s", 989e12),
        (FlopPerS, "1.5 PFLOP/s", 1.5e15),
        (Bytes, "  7B ", 7),
    ],
)
def test_reads_the_nearest_float(kind: type[Quantity], text: str, value: float) -> None:
    assert kind.parse(text) == value
    assert type(kind.parse(text)) is kind


@pytest.mark.parametrize("kind", KINDS)
@given(value=st.floats(min_value=0, allow_infinity=False, allow_nan=False))
def test_text_round_trip_is_exact(kind: type[Quantity], value: float) -> None:
    assert kind.parse(str(kind(value))) == value


@pytest.mark.parametrize("kind", KINDS)
@given(digits=st.integers(0, 10**6), places=st.integers(0, 6), data=st.data())
def test_prefixes_scale_exactly(kind: type[Quantity], digits: int, places: int, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(kind.units)))
    top, bottom = kind.units[unit].as_integer_ratio()
    assert kind.parse(f"{digits}e-{places} {unit}") == digits * top / (10**places * bottom)


@pytest.mark.parametrize(
    "text", ["80", "GiB", "80 GB/s", "80 gib", "-1 B", "nan B", "inf B", "1e999 B", "8 0 B", "", "1,5 B"]
)
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"Bytes; units: B, kB|must be finite"):
        Bytes.parse(text)


@pytest.mark.parametrize("text", ["1e99999999999999999999 B", "9" * 10_000 + " B"])
def test_absurd_sizes_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        Bytes.parse(text)


def test_bits_are_an_eighth_of_bytes() -> None:
    assert all(
        math.isclose(BytesPerS.parse(f"1 {p}bit/s") * 8, BytesPerS.parse(f"1 {p}B/s"), rel_tol=1e-15) for p in "kMGT"
    )


@pytest.mark.parametrize("kind", KINDS)
@given(value=st.floats(0, 1e18) | st.integers(0, 2000).map(lambda n: n * 1e9))
def test_the_short_text_is_read_as_the_same_number(kind, value):
    assert kind.parse(kind(value).short()) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (BytesPerS(50e9), "50 GB/s"),
        (BytesPerS(12.8e12), "12.8 TB/s"),
        (BytesPerS(1e11), "100 GB/s"),
        (Bytes(64 * 1024**3), "64 GiB"),
        (Bytes(64e9), "64 GB"),
        (Seconds(3.5e-7), "350 ns"),
        (FlopPerS(1979e12), "1979 TFLOP/s"),
    ],
)
def test_the_short_text_is_one_that_people_write(value, text):
    assert value.short() == text
