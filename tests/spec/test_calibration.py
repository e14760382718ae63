"""Rates that no machine has are refused where the file is read."""

import pytest

from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration
from moeplan.spec.record import convert, to_plain
from moeplan.spec.shipped import load_calibration


def changed(path, value):
    plain = to_plain(load_calibration("h100"))
    *tables, last = path.split(".")
    table = plain
    for name in tables:
        table = table[name]
    table[last] = value
    return plain


@pytest.mark.parametrize("field", sorted(to_plain(load_calibration("h100"))["constants"]))
@pytest.mark.parametrize("value", [1e-300, 0.009, 101.0])
def test_constants_are_of_a_size_that_can_be(field, value):
    with pytest.raises(SpecError, match=rf"at `\$\.constants\.{field}`"):
        convert(changed(f"constants.{field}", value), Calibration, where="file")


@pytest.mark.parametrize(
    "path", ["hbm", "cold", "attention.forward", "attention.backward", "attention.flash2", "node.efficiency"]
)
@pytest.mark.parametrize("value", [1e-300, 9e-5, 2.1])
def test_shares_are_of_a_size_that_can_be(path, value):
    with pytest.raises(SpecError, match=rf"at `\$\.{path}`"):
        convert(changed(path, value), Calibration, where="file")
