"""Where nothing fits: which budget is short, and by how much."""

from dataclasses import replace

import pytest

from moeplan.errors import InfeasibleError
from moeplan.optimizer.allocation import solve
from moeplan.options import Budgets, NicOption, OptionTable, SideOption

GIB = 2**30
NIC = 50e9


def option(gpus, seconds, *, nics=64, gib=1.0, name=None):
    return SideOption(name or f"{gpus} none", gpus, nics=nics, recompute="none", seconds=seconds, hbm_bytes=gib * GIB)


BUDGETS = Budgets(gpus=8, nics=4, hbm_bytes=80 * GIB)
TABLE = OptionTable(
    attention=(option(2, 3.0, nics=2, gib=60), option(4, 1.5, nics=4, gib=30), option(4, 2.0, gib=15, name="4 full")),
    ffn=(option(2, 4.0, nics=2, gib=110), option(4, 2.0, nics=4, gib=46.5), option(6, 4 / 3, nics=6, gib=45)),
    nics=(NicOption(1, 3), NicOption(2, 2), NicOption(3, 3)),
    volume_bytes=3 * NIC,
    nic_bytes_per_s=NIC,
)


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        (replace(BUDGETS, gpus=5), "GPUs short by 1 (budget 5)"),
        (replace(BUDGETS, nics=2), "NICs short by 2 (budget 2)"),
        (replace(BUDGETS, hbm_bytes=30 * GIB), "FFN HBM short by 16.5 GiB per GPU (budget 30.0 GiB)"),
        (replace(BUDGETS, gpus=0), "GPUs short by 4 (budget 0); FFN HBM short by 30.0 GiB per GPU (budget 80.0 GiB)"),
    ],
    ids=["gpus", "nics", "ffn hbm", "no gpus"],
)
def test_what_is_short_is_named(budgets, message):
    with pytest.raises(InfeasibleError) as error:
        solve(TABLE, budgets)
    assert str(error.value) == f"allocation: {message}"


def test_all_that_is_short_is_named():
    table = replace(TABLE, attention=(option(4, 1.0, gib=92.3),), ffn=(option(6, 1.0, gib=80 + 1e-3),))
    with pytest.raises(InfeasibleError) as error:
        solve(table, BUDGETS)
    assert str(error.value) == (
        "allocation: GPUs short by 2 (budget 8); attention HBM short by 12.3 GiB per GPU (budget 80.0 GiB); "
        "FFN HBM short by 0.1 GiB per GPU (budget 80.0 GiB)"
    )


def test_one_byte_too_much_does_not_fit():
    fits = replace(TABLE, attention=(replace(option(4, 1.0), hbm_bytes=80 * GIB),))
    solve(fits, BUDGETS)
    with pytest.raises(InfeasibleError, match=r"attention HBM short by 0\.1 GiB per GPU"):
        solve(fits, replace(BUDGETS, hbm_bytes=80 * GIB - 1))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (replace(TABLE, attention=()), "no option for attention"),
        (replace(TABLE, ffn=()), "no option for FFN"),
        (replace(TABLE, nics=(NicOption(1, 7),)), "none of 1 NIC pairs is within reach: attention GPUs reach 64 .* 6"),
    ],
)
def test_what_no_budget_helps_is_named(table, message):
    with pytest.raises(InfeasibleError, match=message):
        solve(table, replace(BUDGETS, gpus=99, nics=99))
