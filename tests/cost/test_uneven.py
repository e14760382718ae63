"""Transfers of any sizes at the same time: the even ones cost what a pattern does, the fullest link decides."""

import numpy as np
import pytest

from moeplan.cost.communication import all_to_all, many_to_many, uneven
from moeplan.spec.cluster import first_gpus
from moeplan.spec.shipped import load_calibration, load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

H100 = load_calibration("h100")


@pytest.fixture(scope="module")
def fabric():
    return Fabric(build(first_gpus(load_cluster("h800-16x8"), 32)))


def test_an_even_table_is_an_all_to_all(fabric):
    a, b = np.repeat(np.arange(32), 32), np.tile(np.arange(32), 32)
    even = uneven(fabric, H100, a, b, np.full(1024, 1e6))
    assert even.seconds == pytest.approx(all_to_all(fabric, H100, [range(32)], 32e6).seconds)


def test_rows_from_two_to_three_ranks(fabric):
    a, b = np.repeat([0, 8], 3), np.tile([16, 24, 25], 2)
    even = uneven(fabric, H100, a, b, np.full(6, 1e7))
    assert even.seconds == pytest.approx(many_to_many(fabric, H100, [(0, 8)], [(16, 24, 25)], 3e7).seconds)


def test_one_full_receiver_is_waited_for(fabric):
    """All of 31 ranks send to one: its NIC takes in what 24 of them send from other nodes."""
    senders = np.arange(1, 32)
    told = uneven(fabric, H100, senders, np.zeros(31, dtype=int), np.full(31, 1e8))
    nic = 24 * 1e8 / (50e9 * H100.network.efficiency)
    assert told.seconds == pytest.approx(nic, rel=0.02)


def test_what_stays_costs_nothing(fabric):
    assert uneven(fabric, H100, [3, 4], [3, 5], [1e9, 0.0]).seconds == 0
    assert uneven(fabric, H100, [], [], []).seconds == 0
