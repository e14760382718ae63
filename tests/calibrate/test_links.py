"""Links fitted to measured collectives: what the fits find, and published anchors that they meet."""

from math import log

import pytest
from msgspec import structs

from moeplan.calibrate.collectives import PRICES, Sample, nccl, part
from moeplan.calibrate.links import (
    CLUSTERS,
    LIKE,
    NODE,
    POOLS,
    fitted,
    fitted_network,
    fitted_node,
    link_sections,
    priced,
)
from moeplan.spec.calibration import Tier
from moeplan.spec.record import convert
from moeplan.spec.shipped import load_calibration

ACCELERATORS = [*POOLS, *LIKE]
ALLTOALL, ALL_REDUCE = PRICES["alltoall"], PRICES["all_reduce"]


def busbw(cluster, name, gpus, size=2.0**33):
    """GB/s as nccl-tests print them for an alltoall of `size` bytes per rank."""
    return (
        size
        * (gpus - 1)
        / gpus
        / ALLTOALL(part(cluster, gpus), load_calibration(name), [range(gpus)], size).seconds
        / 1e9
    )


@pytest.mark.parametrize("name", ACCELERATORS)
def test_sections_are_tiers_and_ship_in_the_calibration(name):
    sections, shipped = link_sections(name), load_calibration(name)
    assert convert(sections["node"], Tier, where="node") == shipped.node
    assert convert(sections["network"], Tier, where="network") == shipped.network


def test_numbers_that_made_the_seconds_are_found_again():
    truth = {"latency": 5e-6, "fill": 3e-6, "efficiency": 0.6, "kernel": 5e11, "all_reduce": 0.8}
    true = priced(truth, {}, reduces=True)
    rows = nccl("dgx-h100", ("H100-SXM 80GB",))
    found = fitted([retimed(row, row.price(true)) for row in rows], NODE, {}, "node", reduces=True)
    assert found == {name: pytest.approx(value, rel=0.15) for name, value in truth.items()}


def retimed(row, seconds):
    return Sample(row.price, seconds, row.weight, row.named)


def test_a_fit_to_odd_rows_meets_even_ones():
    """In the median within 10 %, on sizes from 1 MiB that it never saw."""
    errors = []
    for name, (hardware, _) in POOLS.items():
        rows = nccl(CLUSTERS[name], hardware)
        if len(rows) > 20:
            found = priced(fitted(rows[::2], NODE, {}, "node", reduces=True), {}, reduces=True)
            errors += [abs(log(row.price(found) / row.seconds)) for row in rows[1::2] if row.weight == 1]
    assert len(errors) > 50
    assert sorted(errors)[len(errors) // 2] < 0.1


@pytest.mark.parametrize(
    ("cluster", "name", "gpus", "published"),
    [
        ("dgx-a100", "a100", 8, 206),
        ("dgx-h100", "h100", 8, 318),
        ("dgx-h200", "h200", 8, 311),
        ("dgx-b200", "b200", 8, 600),
        ("dgx-b300", "b300", 8, 676),
        ("gb300-nvl72", "gb300", 64, 667),
        ("mi355x", "mi355x", 8, 361),
    ],
)
def test_bus_bandwidth_of_alltoall_inside_a_node(cluster, name, gpus, published):
    assert busbw(cluster, name, gpus) == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize(
    ("cluster", "name", "gpus", "nodes", "published"),
    [
        ("dgx-b300", "b300", 16, 2, 181),
        ("gb200-nvl72", "gb200", 128, 2, 89.7),
        ("gb200-nvl72", "gb200", 192, 3, 62.5),
        ("dgx-h200", "h200", 16, 2, 85),
    ],
)
def test_bus_bandwidth_of_alltoall_over_n_nodes_is_the_cards_times_n_over_n_less_1(
    cluster, name, gpus, nodes, published
):
    card = 100 if cluster == "dgx-b300" else 50
    reached = load_calibration(name).network.efficiency * card
    found = busbw(cluster, name, gpus)
    assert found == pytest.approx(reached * nodes / (nodes - 1) * (gpus - 1) / gpus, rel=0.02)
    assert found == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_a_share_is_of_the_fastest_pattern(name):
    calibration = load_calibration(name)
    for tier in (calibration.node, calibration.network):
        assert all(0 < share <= 1 for share in tier.shares.values())
        assert 0.6 < tier.efficiency <= 0.95
        assert 1e-6 < tier.latency_s < 1e-4


def test_a_small_all_reduce_takes_about_20_us():
    """H100: 17 to 20 us from 1 KiB to 512 KiB (NVIDIA dgxc-benchmarking)."""
    for size in (2.0**14, 2.0**17, 2.0**19):
        found = ALL_REDUCE(part("dgx-h100", 8), load_calibration("h100"), [range(8)], size).seconds
        assert found == pytest.approx(19.5e-6, rel=0.25)


def test_fits_are_made_once():
    assert fitted_node("h100") is fitted_node("h100")
    assert fitted_network() is fitted_network()
    assert structs.asdict(load_calibration("h100").network) == structs.asdict(load_calibration("b200").network)
