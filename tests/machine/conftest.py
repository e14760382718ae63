"""The command line in an empty folder, and small clusters of every kind of network."""

from functools import partial

import pytest
from msgspec import structs

from moeplan.spec.cluster import Dragonfly, FatTree, Level, Rail, Switch, Switches, Torus, Tree, check_cluster
from moeplan.spec.shipped import load_cluster
from moeplan.units import BytesPerS, Seconds

HOP = Seconds(1e-6)
NETWORKS = {
    "tree": Tree(nodes_per_leaf=2, uplink_bytes_per_s=BytesPerS(5e11), hop_latency_s=HOP),
    "pods": Tree(
        nodes_per_leaf=2,
        uplink_bytes_per_s=BytesPerS(5e11),
        hop_latency_s=HOP,
        levels=(Level(children=2, uplink_bytes_per_s=BytesPerS(3e11)),),
    ),
    "fat-tree": FatTree(radix=32, link_bytes_per_s=BytesPerS(50e9), hop_latency_s=HOP, oversubscription=3.0),
    "rail": Rail(nodes_per_unit=2, uplink_bytes_per_s=BytesPerS(2e10), hop_latency_s=HOP),
    "dragonfly": Dragonfly(
        nodes_per_switch=1,
        switches_per_group=2,
        local_link_bytes_per_s=BytesPerS(2e11),
        global_link_bytes_per_s=BytesPerS(25e9),
        links_per_group_pair=2,
        hop_latency_s=HOP,
    ),
    "torus": Torus(shape=(4, 2), link_bytes_per_s=BytesPerS(25e9), hop_latency_s=HOP),
    "switches": Switches(
        switches=(
            Switch(name="a", nodes="[0-4]", up="top", uplink_bytes_per_s=BytesPerS(7e11)),
            Switch(name="b", nodes="[5-7]", up="top", uplink_bytes_per_s=BytesPerS(9e11)),
            Switch(name="top"),
        ),
        hop_latency_s=HOP,
    ),
}


@pytest.fixture(params=NETWORKS)
def cluster(request):
    """8 nodes of an h800-16x8 on each kind of network."""
    return on(NETWORKS[request.param])


def on(network, nodes=8, **changes):
    """An h800-16x8 of `nodes` nodes on `network`."""
    usual = load_cluster("h800-16x8")
    node = structs.replace(usual.node, **changes)
    return check_cluster(structs.replace(usual, name="small", nodes=nodes, node=node, network=network))


@pytest.fixture
def moeplan(command_line, monkeypatch, tmp_path):
    """moeplan(*arguments): exit code, stdout and stderr of `moeplan topology` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(command_line, "topology")


@pytest.fixture
def small():
    """small(network, nodes=8, **node): `on`, for networks by name."""
    return lambda network, nodes=8, **changes: on(NETWORKS.get(network, network), nodes, **changes)
