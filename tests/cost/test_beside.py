"""Compute and the launches beside it: between the longer of the two and both after each other."""

from math import inf, isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.cost.beside import beside

SECONDS = st.floats(0, 1e300)


@given(SECONDS, SECONDS)
def test_as_long_as_the_longer_and_at_most_a_fifth_more(gpu_s, host_s):
    longer = max(gpu_s, host_s)
    assert isfinite(beside(gpu_s, host_s))
    assert longer * (1 - 1e-12) <= beside(gpu_s, host_s) <= 1.2 * longer


def test_equal_parts_take_the_fourth_root_of_two():
    assert beside(3.0, 3.0) == pytest.approx(3 * 2**0.25)
    assert beside(3.0, 4.0) ** 4 == pytest.approx(3**4 + 4**4)
    assert (beside(0.0, 0.0), beside(inf, 1.0)) == (0.0, inf)
