"""Options, tables and budgets refuse numbers that cannot be meant."""

from dataclasses import replace

import pytest

from moeplan.errors import SpecError
from moeplan.options import Budgets, NicOption, OptionTable, SideOption

BUDGETS = Budgets(gpus=8, nics=4, hbm_bytes=80e9)
TABLE = OptionTable((), (), (NicOption(1, 3),), volume_bytes=1e9, nic_bytes_per_s=50e9)


def option(gpus, seconds):
    return SideOption(f"{gpus} none", gpus, nics=1, recompute="none", seconds=seconds, hbm_bytes=1e9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: option(0, 1.0), "option 0 none: gpus 0 must be finite and at least 1"),
        (lambda: option(1, -1.0), "seconds -1"),
        (lambda: option(1, float("inf")), "seconds inf"),
        (lambda: option(1, float("nan")), "seconds nan"),
        (lambda: NicOption(0, 3), "NIC pair \\(0, 3\\)"),
        (lambda: replace(TABLE, nic_bytes_per_s=0.0), "nic_bytes_per_s 0 must be"),
        (lambda: replace(TABLE, volume_bytes=-1.0), "volume_bytes -1"),
        (lambda: replace(BUDGETS, nics=-1), "nics -1"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(SpecError, match=message):
        make()
