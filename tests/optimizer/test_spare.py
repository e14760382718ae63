"""Buffers of exchanges by nodes count in memory; where they do not fit, an exchange with fewer is taken."""

import pytest
from msgspec import structs

from moeplan.cost.durations import Machine
from moeplan.estimator import estimate
from moeplan.layout import Colocated
from moeplan.optimizer.candidate import Candidate
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.optimizer.search import Search
from moeplan.resources.memory import spare
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import Load
from moeplan.spec.case import Case
from moeplan.spec.cluster import first_gpus
from moeplan.spec.execution import Execution
from moeplan.spec.shipped import load_calibration, load_cluster, load_model
from moeplan.spec.workload import Workload
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.units import Bytes

LAYOUT = Colocated(pp=2, ep=32, dp=32)
MI250X = load_calibration("mi250x")
SLOW = structs.replace(MI250X, network=structs.replace(MI250X.network, half_message_bytes=Bytes(2.0**26)))
"""Every message costs as much as 64 MiB, so that few large ones are fastest: HALO."""


def case_of(exchange="fastest", usable=0.9):
    case = Case(
        model=load_model("deepseek-moe-16b"),
        cluster=first_gpus(load_cluster("frontier"), 64),
        workload=Workload(seq_len=4096, global_batch=64),
        execution=Execution(exchange=exchange),
    )
    return structs.replace(case, memory=structs.replace(case.memory, usable=usable))


def first_stage(exchange):
    """Bytes of the first position by bucket, and the plan."""
    told = estimate(case_of(exchange), MI250X, LAYOUT, recompute="none/none")
    return told.stages[0].bytes, told.plan


def test_halo_holds_what_crossed_what_is_handed_out_and_what_arrived():
    """At its end: rows as sent and as received, three times those of 3 of 4 nodes, and twice those of the own."""
    held, plan = first_stage("halo")
    dispatch = next(i for i, edge in enumerate(plan.graph.edges) if edge.kind == "dispatch")
    rows = edge_bytes(plan.case.model, plan.graph, dispatch, "F", Load(4096, 4096 * 6, 1), dtype="bf16")
    assert held.buffers == pytest.approx((2 + 3 * 3 / 4 + 2 / 4) * rows)


def test_more_is_held_by_the_exchange_with_more_buffers():
    flat, two_level, halo, chunked = (first_stage(name)[0] for name in ("flat", "two_level", "halo", "halo_chunked"))
    assert sum(flat) < sum(two_level) < sum(halo) == sum(chunked)
    assert flat[:5] == halo[:5]


def test_spare_by_algorithm():
    assert [spare(name, 4) for name in ("flat", "p2p", "two_level", "halo")] == [0, 0, 2, 2.75]
    assert spare("halo", 10**6) == pytest.approx(3)


def between(*exchanges):
    """A share of the HBM that lies between what two exchanges need."""
    most = [sum(first_stage(name)[0]) for name in exchanges]
    return sum(most) / 2 / case_of().cluster.gpu.hbm_bytes


def named(plan, position):
    edges = zip(plan.graph.pieces, plan.graph.edges, strict=False)
    return {e.algorithm for p, e in edges if position in plan.graph.stages[p.stage] and e.kind == "dispatch"}


def test_where_halo_does_not_fit_what_does_is_taken_there_and_only_there():
    assert named(estimate(case_of(), SLOW, LAYOUT, recompute="none/none").plan, 0) <= {"halo", "halo_chunked"}
    for fits, lacks in (("two_level", "halo"), ("flat", "two_level")):
        told = estimate(case_of(usable=between(fits, lacks)), SLOW, LAYOUT, recompute="none/none")
        assert not told.short_bytes
        assert named(told.plan, 0) == {fits}
        assert named(told.plan, 1) <= {"halo", "halo_chunked"}
        asked = estimate(case_of(lacks, between(fits, lacks)), SLOW, LAYOUT, recompute="none/none")
        assert asked.short_bytes > 0
        assert named(asked.plan, 0) == {lacks}


def test_where_nothing_fits_the_fastest_stays():
    """Buffers are not what is too much: parameters alone are."""
    told = estimate(case_of(usable=0.001), SLOW, LAYOUT, recompute="none/none")
    assert told.short_bytes > 0
    assert named(told.plan, 0) <= {"halo", "halo_chunked"}


@pytest.mark.parametrize(("exchange", "found"), [("fastest", True), ("halo", False)])
def test_the_search_takes_no_layout_that_its_exchange_makes_too_large(exchange, found):
    case = case_of(exchange, between("flat", "two_level"))
    machine = Machine(Fabric(build(case.cluster)), SLOW)
    search = Search(case, machine)
    searched = search.meshes("colocated", [LAYOUT])
    for plan in search.plans.values():
        assert max(plan.predictions.peak_hbm_bytes) <= usable_bytes(case)
    candidate = Candidate(LAYOUT, "1f1b", estimate(case, SLOW, LAYOUT, recompute="none/none").plan.recompute)
    assert (search.room.peak_bytes(candidate) <= usable_bytes(case)) == found
    kept = [p for p in searched.pruned if "buffers of exchange halo" in p.reason]
    assert bool(kept) != found
