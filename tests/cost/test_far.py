"""Transfers that are told together, against the same transfers one by one."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.cost.pairs import pairs
from moeplan.cost.patterns import Side, every_pair, side
from moeplan.spec.cluster import Torus, pick
from moeplan.spec.shipped import load_cluster
from moeplan.topology.far import units
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import BytesPerS, Seconds

FRONTIER, DGX, LUMI, RACKS = (load_cluster(name) for name in ("frontier", "dgx-h100", "lumi-g", "gb200-nvl72"))
NODES = 12


def small(cluster, hostlist, **network):
    network = msgspec.structs.replace(cluster.network, **network)
    return pick(msgspec.structs.replace(cluster, network=network), hostlist)


TORUS = Torus(shape=(3, 4), link_bytes_per_s=BytesPerS(1e11), hop_latency_s=Seconds(1e-6))
CLUSTERS = {
    "dragonfly": small(FRONTIER, "[3,0-2,4-11]", nodes_per_switch=2, switches_per_group=2),
    "nics on several switches": small(LUMI, "[0-2,8-16]", nodes_per_switch=2, switches_per_group=4),
    "rails": small(DGX, "[0-11]", nodes_per_unit=4),
    "racks": small(RACKS, "[0-5,18-23]", nodes_per_leaf=18),
    "racks across leaves": small(RACKS, "[0-5,18-23]", nodes_per_leaf=5),
    "torus": pick(msgspec.structs.replace(DGX, network=TORUS), "[0-11]"),
}
FABRICS = {name: Fabric(build(cluster)) for name, cluster in CLUSTERS.items()}


def totals(fabric, transfers):
    """Bytes and messages on every edge, before any detours, and the longest latency."""
    crossed = fabric.crossings(*transfers[:2])
    bytes_, messages = (fabric.per_edge(crossed, amounts) for amounts in transfers[2:4])
    seconds = np.bincount(crossed.transfer, fabric.latency_s[crossed.edge] * crossed.share)
    loads, longest = np.array([bytes_, messages]), float(seconds.max(initial=0.0))
    if transfers.far is None:
        return loads, longest
    further, far_s = fabric.far(transfers.far)
    return loads + further, max(longest, far_s)


def some_groups(data, ranks):
    """Groups of different sizes of `ranks` in any order, some of them empty."""
    mixed = data.draw(st.permutations(range(ranks)))
    cuts = sorted(data.draw(st.lists(st.integers(0, ranks), min_size=2, max_size=5)))
    return [mixed[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize("name", CLUSTERS)
@given(data=st.data())
def test_as_many_bytes_and_messages_on_every_edge_as_one_by_one(name, data):
    fabric = FABRICS[name]
    sources, targets = some_groups(data, fabric.num_ranks), some_groups(data, fabric.num_ranks)
    number = min(len(sources), len(targets))
    sides = side(sources[:number]), side(targets[:number])
    together, apart = (totals(fabric, found) for found in (pairs(fabric, *sides), every_pair(*sides)))
    np.testing.assert_allclose(together[0], apart[0], rtol=1e-9, atol=1e-12)
    assert together[1] == pytest.approx(apart[1])


@pytest.mark.parametrize("name", CLUSTERS)
def test_what_shares_no_switch_is_told_together(name):
    fabric = FABRICS[name]
    everyone = Side(np.arange(fabric.num_ranks), np.array([fabric.num_ranks]))
    found = pairs(fabric, everyone, everyone)
    assert (found.far is None) == (fabric.units is None) == (name == "racks across leaves")
    if found.far is not None:
        assert (fabric.units[found.source] == fabric.units[found.target]).all()
        assert found.source.size + found.far.messages.sum() == fabric.num_ranks**2


def test_units_are_what_nodes_and_switches_join():
    node, leaf = np.array([0, 0, 1, 1, 2, 3, 3]), np.array([7, 8, 8, 9, 9, 4, 5])
    assert units(node, leaf).tolist() == [*[units(node, leaf)[0]] * 5, *[units(node, leaf)[5]] * 2]
    assert np.unique(units(node, leaf)).size == 2
