"""What the cost model says of the emulated network, beside what ranks on it measure."""

import statistics

import pytest

KIB = 1024
LARGE = 8
"""Full buckets on the narrowest link from which on a message counts."""


def compared(network, per_node, sizes):
    """Timed exchanges of `sizes` bytes per pair, and of the large ones the relative errors of predictions."""
    from emulated import bucket_bytes
    from timed import time_all_to_all

    found = time_all_to_all(network, per_node, sizes)
    bucket = bucket_bytes(network.shape.uplink_bit_per_s)
    large = [t for t in found if (2 * per_node) ** 2 * t.bytes >= LARGE * bucket]
    return found, [abs(t.predicted_s / t.measured_s - 1) for t in large]


@pytest.mark.parametrize("uplink", [200e6, 400e6], ids=["uplinks share", "uplinks do not"])
def test_all_to_alls_take_what_the_cost_model_says(uplink, make_network):
    """Flat, two-level and HALO, plain and in chunks; the smallest tell how long one takes to start."""
    _, errors = compared(make_network(nic_bit_per_s=200e6, uplink_bit_per_s=uplink), 2, [4 * KIB, 256 * KIB, 512 * KIB])
    assert len(errors) >= 8
    assert statistics.median(errors) <= 0.15


def test_flat_and_halo_cross_where_the_cost_model_says(make_network):
    """Where a frame has a price and a node's inside is no faster than its NIC, HALO's fewer messages win while they are
    small, and its redistribution loses when they are large; both find one such size."""
    from timed import crossings

    rates = {"nic_bit_per_s": 200e6, "uplink_bit_per_s": 200e6, "inside_bit_per_s": 200e6}
    network = make_network(**rates, uplink_frame_s=1e-3)
    sizes = [1 * KIB, 4 * KIB, 17 * KIB, 34 * KIB]
    found, _ = compared(network, 4, sizes)
    flat, halo = ([t for t in found if t.algorithm == name] for name in ("flat", "halo"))
    measured, predicted = (
        crossings(sizes, *([getattr(t, which) for t in of] for of in (halo, flat)))
        for which in ("measured_s", "predicted_s")
    )
    assert [way for _, way in measured] == [way for _, way in predicted] == [-1]
    assert 0.5 < measured[0][0] / predicted[0][0] < 2


def test_two_senders_and_three_receivers_share_an_uplink_as_the_cost_model_says(make_network):
    from timed import time_m2n

    for timed in time_m2n(make_network(racks=(2, 3)), (2, 3), [4 * KIB * KIB, 12 * KIB * KIB]):
        assert timed.predicted_s == pytest.approx(timed.measured_s, rel=0.1)
