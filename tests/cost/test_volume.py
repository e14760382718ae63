"""What leaves a rank and its node: experts against a pipeline's hand-off, element types, and which links it crosses."""

import numpy as np
import pytest
from msgspec import structs

from moeplan.cost.communication import all_to_all
from moeplan.cost.edges import edge_cost
from moeplan.cost.flows import flows
from moeplan.cost.pricing import Pricing, loads
from moeplan.draft import dealt, draft
from moeplan.layout import Colocated
from moeplan.layouts import stages
from moeplan.resources.traffic import edge_bytes
from moeplan.spec.cluster import first_gpus
from moeplan.spec.execution import Execution
from moeplan.spec.shipped import load_calibration, load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import BytesPerS

MIB = 2**20
HIDDEN, TOP_K, LAYERS = 6144, 4, 48


@pytest.mark.parametrize(("ep", "moved", "between"), [(8, 3.9375, 0.0), (16, 4.21875, 2.25)])
def test_rows_of_a_token_to_experts_and_back(ep, moved, between):
    """48 layers of 6,144 with 4 experts per token, bf16, forward: what leaves a rank, and what of it an 8-GPU node."""
    fabric = Fabric(build(first_gpus(load_cluster("h800-16x8"), 16)))
    token = LAYERS * TOP_K * HIDDEN * 2 * 2
    ranks = np.arange(ep)
    sources, targets = np.repeat(ranks, ep), np.tile(ranks, ep)
    found = dict(zip(fabric.edges, fabric.loads(sources, targets, np.full(ep * ep, token / ep)), strict=True))
    out = sum(load for (a, b), load in found.items() if a == ("gpu", 0))
    nic = sum(load for (a, b), load in found.items() if (a[0], b[0]) == ("nic", "leaf")) / ep
    assert out / MIB == pytest.approx(moved, rel=1e-3)
    assert nic / MIB == pytest.approx(between, rel=1e-3)


def test_a_pipeline_hands_on_12_kib_per_token(make_case):
    """12 KiB forward across a boundary, 24 with the gradient."""
    case = make_case(2, hidden=HIDDEN, seq_len=64)
    layout = Colocated(pp=2)
    graph = stages(case, layout)
    at = loads(case, graph, dealt(case, layout, graph), 0)[0]
    edge = next(i for i, e in enumerate(graph.edges) if e.kind == "send")
    both = [edge_bytes(case.model, graph, edge, phase, at, dtype="bf16") / at.tokens for phase in "FB"]
    assert both == [12 * 1024] * 2


def test_rows_go_to_experts_in_8_bits_and_come_back_in_16(make_case):
    """A byte per element and 4 per 128: 0.516 of bf16; combine and all gradients stay."""
    case = make_case(16, hidden=1024)
    layout = Colocated(dp=16, ep=8)
    graph = stages(case, layout)
    at = loads(case, graph, dealt(case, layout, graph), 0)[0]
    for i, edge in enumerate(graph.edges):
        for phase in "FRB":
            wide, narrow = (
                edge_bytes(case.model, graph, i, phase, at, dtype="bf16", rows=rows) for rows in ("same", "fp8")
            )
            less = edge.kind == "dispatch" and phase != "B"
            saved = at.tokens * case.model.top_k * 1024 * (2 - 1 - 4 / 128)
            assert wide - narrow == pytest.approx(saved * less)


def test_a_dispatch_in_8_bits_takes_less_than_a_combine(make_case, machine_of):
    case = make_case(16, global_batch=64, seq_len=4096, hidden=1024, experts=16)
    case = structs.replace(case, execution=Execution(rows="fp8", exchange="flat"))
    layout = Colocated(dp=16, ep=16)
    graph = stages(case, layout)
    at = loads(case, graph, dealt(case, layout, graph), 0)
    seconds = {
        (graph.edges[i].kind, phase): edge_cost(Pricing(case, graph, machine_of(case)), i, phase, at).seconds
        for i in range(len(graph.edges))
        for phase in "FB"
        if graph.edges[i].kind in ("dispatch", "combine")
    }
    assert seconds["dispatch", "F"] < 0.7 * seconds["combine", "F"]
    assert seconds["dispatch", "B"] > 0.95 * seconds["combine", "B"]


def halved(cluster, path):
    """`cluster` with half of one bandwidth."""
    table, field = path
    part = getattr(cluster, table)
    half = structs.replace(part, **{field: BytesPerS(getattr(part, field) / 2)})
    return structs.replace(cluster, **{table: half})


CLASSES = {
    "frontier": {
        ("node", "nic_bytes_per_s"): ("nic", "switch"),
        ("network", "local_link_bytes_per_s"): ("switch", "group"),
        ("network", "global_link_bytes_per_s"): ("group", "group"),
    },
    "dgx-a100": {
        ("node", "link_bytes_per_s"): ("gpu", "node"),
        ("node", "nic_bytes_per_s"): ("nic", ""),
        ("network", "uplink_bytes_per_s"): ("", "spine"),
    },
}
"""Fields of a cluster file and the edges that they are about; "" is any kind."""
RANKS = {"frontier": (8, 32, 128, 2048), "dgx-a100": (8, 32, 320)}
"""All-to-alls inside a node, a switch or a leaf, a group, and between groups or leaves."""


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in CLASSES.items() for path in paths])
def test_half_of_one_bandwidth_changes_exactly_the_costs_whose_routes_need_it(name, path):
    """What does not cross such links costs the same to the last bit; what they are the narrowest for costs more."""
    cluster = first_gpus(load_cluster(name), RANKS[name][-1])
    calibration, kinds = load_calibration(cluster.calibration), CLASSES[name][path]
    before, after = (Fabric(build(one)) for one in (cluster, halved(cluster, path)))
    changed = []
    for ranks in RANKS[name]:
        one, other = (all_to_all(fabric, calibration, [range(ranks)], 1e9).seconds for fabric in (before, after))
        pairs = np.repeat(np.arange(ranks), ranks), np.tile(np.arange(ranks), ranks), np.ones(ranks**2)
        loads = before.loads(*pairs)
        crossed = {(a[0], b[0]) for (a, b), load in zip(before.edges, loads, strict=True) if load}
        used = any(all(want in ("", got) for want, got in zip(kinds, pair, strict=True)) for pair in crossed)
        busiest = [float((loads / fabric.bandwidth_bytes_per_s).max()) for fabric in (before, after)]
        assert (other > one) == (busiest[1] > busiest[0] * (1 + 1e-12))
        assert used or other == one
        changed.append(other > one)
    assert any(changed) or path[1] == "local_link_bytes_per_s"
    assert not all(changed)


def test_rows_in_8_bits_move_less_between_ranks_in_a_step(make_case):
    """Of the four exchanges of a layer one: what a placement sees, too."""
    case = make_case(16, hidden=1024, num_layers=2)
    wide, narrow = (
        flows(draft(structs.replace(case, execution=Execution(rows=rows)), Colocated(dp=16, ep=8), schedule="1f1b"))
        for rows in ("same", "fp8")
    )
    tokens = case.workload.global_batch * case.workload.seq_len
    saved = 2 * tokens * case.model.top_k * 1024 * (2 - 1 - 4 / 128) * 7 / 8
    assert wide.bytes.sum() - narrow.bytes.sum() == pytest.approx(saved)
