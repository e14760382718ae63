"""The continuous allocation: its closed form, its prices, and the choice rounded from it."""

import random
from dataclasses import replace

import pytest

from moeplan.errors import InfeasibleError
from moeplan.optimizer.relaxation import relax, rounded
from moeplan.options import Budgets, NicOption, OptionTable, SideOption


def closed_form(attention, ffn, volume, nic, budgets):
    """max((C_a + C_f) / (W P), 2 V / (M_tot B)) (own algebra)."""
    return max((attention + ffn) / budgets.gpus, 2 * volume / (budgets.nics * nic) if budgets.nics else 0.0)


def case(seed):
    """Sizes from a laptop's to a large cluster's, either side and either resource far ahead of the other."""
    draw = random.Random(seed)
    sizes = [10 ** draw.uniform(*span) for span in ((-3, 5), (-3, 5), (3, 14), (8, 11))]
    return *sizes, Budgets(gpus=draw.randint(2, 4096), nics=draw.randint(0, 4096), hbm_bytes=80e9)


COMPUTE_BOUND = (800.0, 1000.0, 1e12, 50e9, Budgets(gpus=128, nics=96, hbm_bytes=80e9))
NETWORK_BOUND = (800.0, 1000.0, 80e12, 50e9, Budgets(gpus=128, nics=96, hbm_bytes=80e9))


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_the_closed_form(seed):
    relaxed = relax(*case(seed))
    assert relaxed.seconds == pytest.approx(closed_form(*case(seed)), rel=1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_gpus_and_nics_reach_the_optimum_within_the_budgets(seed):
    attention, ffn, volume, nic, budgets = case(seed)
    relaxed = relax(*case(seed))
    assert relaxed.attention_gpus + relaxed.ffn_gpus <= budgets.gpus * (1 + 1e-7)
    assert relaxed.attention_nics + relaxed.ffn_nics <= budgets.nics * (1 + 1e-7)
    assert attention / relaxed.attention_gpus == pytest.approx(relaxed.seconds)
    assert ffn / relaxed.ffn_gpus == pytest.approx(relaxed.seconds)
    if budgets.nics:
        assert volume / (nic * relaxed.ffn_nics) == pytest.approx(relaxed.seconds)


def test_gpus_are_split_as_the_work_where_compute_binds():
    relaxed = relax(*COMPUTE_BOUND)
    assert relaxed.attention_gpus / 128 == pytest.approx(800 / 1800)


@pytest.mark.parametrize("resource", ["gpus", "nics"])
@pytest.mark.parametrize("bound", [COMPUTE_BOUND, NETWORK_BOUND], ids=["compute", "network"])
def test_prices_are_finite_differences(bound, resource):
    *sizes, budgets = bound

    def seconds(more):
        return relax(*sizes, replace(budgets, **{resource: getattr(budgets, resource) + more})).seconds

    relaxed = relax(*bound)
    price = relaxed.gpu_price_s if resource == "gpus" else relaxed.nic_price_s
    assert price == pytest.approx((seconds(-1) - seconds(1)) / 2, rel=2e-4, abs=1e-9)


def test_only_what_binds_has_a_price():
    compute, network = relax(*COMPUTE_BOUND), relax(*NETWORK_BOUND)
    assert compute.gpu_price_s > 0
    assert compute.nic_price_s == 0
    assert network.gpu_price_s == 0
    assert network.nic_price_s > 0


@pytest.mark.parametrize(("volume", "nics"), [(0.0, 8), (1e12, 0)])
def test_without_volume_or_nics_the_network_is_left_out(volume, nics):
    relaxed = relax(3.0, 1.0, volume, 50e9, Budgets(gpus=8, nics=nics, hbm_bytes=80e9))
    assert relaxed.seconds == pytest.approx(0.5)
    assert relaxed.attention_nics == relaxed.ffn_nics == relaxed.nic_price_s == 0


def test_without_work_a_step_takes_no_time():
    relaxed = relax(0.0, 0.0, 0.0, 50e9, Budgets(gpus=8, nics=8, hbm_bytes=80e9))
    assert relaxed.seconds == relaxed.attention_gpus == relaxed.gpu_price_s == 0


def test_without_gpus_nothing_runs():
    with pytest.raises(InfeasibleError, match="GPUs short by 2"):
        relax(1.0, 1.0, 0.0, 50e9, Budgets(gpus=0, nics=0, hbm_bytes=80e9))


def side(gpus, hbm_bytes=1e9, nics=8, seconds=1.0):
    return SideOption(f"{gpus}", gpus=gpus, nics=nics, recompute="none", seconds=seconds, hbm_bytes=hbm_bytes)


def test_rounded_takes_what_fits_below_the_optimum():
    budgets = Budgets(gpus=8, nics=8, hbm_bytes=80e9)
    relaxed = relax(3.5, 4.5, 1e9, 50e9, budgets)
    attention, ffn = (side(2), side(3), side(3, seconds=0.5), side(4)), (side(4), side(5, hbm_bytes=81e9), side(6))
    table = OptionTable(attention, ffn, (NicOption(2, 6), NicOption(4, 4), NicOption(5, 5)), 1e9, 50e9)
    assert rounded(relaxed, table, budgets) == (attention[2], ffn[0], NicOption(4, 4))
    assert rounded(relaxed, replace(table, nics=()), budgets) == (attention[2], ffn[0], None)


@pytest.mark.parametrize(
    "change",
    [
        {"attention": (side(4),)},
        {"ffn": (side(6),)},
        {"ffn": (side(5, hbm_bytes=81e9),)},
        {"attention": (side(3, nics=3),)},
        {"nics": (NicOption(6, 3),)},
    ],
    ids=["attention gpus", "ffn gpus", "hbm", "reach", "nics"],
)
def test_rounded_is_none_where_nothing_fits(change):
    budgets = Budgets(gpus=8, nics=8, hbm_bytes=80e9)
    table = OptionTable((side(3),), (side(5),), (NicOption(4, 4),), 1e9, 50e9)
    relaxed = relax(3.5, 4.5, 1e9, 50e9, budgets)
    assert rounded(relaxed, table, budgets) is not None
    assert rounded(relaxed, replace(table, **change), budgets) is None
