"""What a cluster's file may not say: kinds of nothing, bandwidths of nothing, networks too large to be a graph."""

from typing import Any

import pytest
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.cluster import Bridge, Dragonfly, Kind, Switch, Switches, Torus, check_cluster, hosts_of
from moeplan.spec.shipped import load_cluster
from moeplan.units import BytesPerS, Seconds

SPEED, HOP = BytesPerS(50e9), Seconds(1e-6)
DGX = structs.replace(load_cluster("dgx-h100"), nodes=8, hosts="n[0-7]")
NODE = DGX.node


def kind(nodes: str = "n2", **changes: Any) -> tuple[Kind, ...]:
    return (Kind(nodes=nodes, node=structs.replace(NODE, **changes)),)


def dragonfly(**changes: Any) -> Dragonfly:
    told = {"nodes_per_switch": 1, "switches_per_group": 2, "links_per_group_pair": 1, "hop_latency_s": HOP}
    return Dragonfly(local_link_bytes_per_s=SPEED, global_link_bytes_per_s=SPEED, **told | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"node": structs.replace(NODE, bridge=Bridge(gpus=4, uplink_bytes_per_s=BytesPerS(0.0)))},
            "bridge.uplink is 0",
        ),
        ({"kinds": kind(nic_bytes_per_s=BytesPerS(0.0))}, "nodes n2, node.nic is 0"),
        ({"kinds": kind(link_bytes_per_s=BytesPerS(0.5))}, "nodes n2, node.link is 0.5"),
        ({"kinds": kind(bridge=Bridge(gpus=4, uplink_bytes_per_s=BytesPerS(0.0)))}, "n2, node.bridge.uplink is 0"),
        ({"kinds": kind(nics=10**7)}, "80000000 NICs; at most 131072"),
        ({"kinds": kind(nics=0)}, "node 'n2' has nics 0"),
        ({"kinds": kind("")}, "nodes of kinds is empty"),
        ({"kinds": kind("n2,n2")}, "kinds has node 'n2' twice"),
        ({"kinds": kind("n[1-2]") + kind("n[2-3]", nics=4)}, "kinds has node 'n2' twice"),
        ({"kinds": kind("n9")}, "node 'n9' of kinds is not there"),
        ({"network": Torus(shape=(10**5, 10**5), link_bytes_per_s=SPEED, hop_latency_s=HOP)}, "10000000000 routers"),
        ({"network": dragonfly(groups=10**8, routing="adaptive")}, "100000000 groups, every two of which"),
        ({"network": dragonfly(), "nodes": 2050, "hosts": ""}, "1025 groups, every two of which"),
        (
            {"network": Switches(switches=(Switch(name="", nodes="n[0-7]"),), hop_latency_s=HOP)},
            "switch 0, counted from 0, has no name",
        ),
    ],
)
def test_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^cluster dgx-h100: .*{message}") as raised:
        check_cluster(structs.replace(DGX, **changes))
    assert "\n" not in str(raised.value)


def test_groups_that_no_route_of_the_job_needs_are_not_counted() -> None:
    """Minimal routes cross the job's own groups only, and a job in one group has no detours."""
    check_cluster(structs.replace(DGX, network=dragonfly(groups=10**8)))
    check_cluster(structs.replace(DGX, network=dragonfly(groups=10**8, switches_per_group=8, routing="adaptive")))


def test_nodes_that_can_send_nothing_may_be_left_out() -> None:
    """The remedy that the message names works."""
    lost = tuple(("n3", nic) for nic in range(NODE.nics))
    broken = structs.replace(DGX, kinds=kind("n2", nics=0), without_nics=lost)
    with pytest.raises(SpecError):
        check_cluster(broken)
    assert hosts_of(check_cluster(structs.replace(broken, exclude="n[2-3]"))) == ("n0", "n1", "n4", "n5", "n6", "n7")
