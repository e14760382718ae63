"""Rows that go by nodes: the same step, bit for bit, as rows that go straight; phases in the trace."""

from dataclasses import replace

import pytest
import torch
from cases import FP64, model, plan_of, run_all, worst_error
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.layout import Colocated, Recompute
from moeplan.plan_rules import check
from moeplan.tiers import Tiers
from moeplan_exec.refuse import refuse

MOE = {"num_layers": 3, "experts": 8, "dense_layers": 1, "dense_width": 24, "shared_experts": 1}
PLANS = {
    "two nodes of two": (Colocated(ep=4, dp=4), 4, {"nodes": 2, "global_batch": 9}),
    "four nodes of two, two stages": (Colocated(pp=2, ep=4, dp=4), 8, {"nodes": 4, "recompute": Recompute(ffn="full")}),
    "two groups of experts in a position": (Colocated(tp=1, ep=4, dp=8), 8, {"nodes": 2, "global_batch": 11}),
}


def plan(name, exchange):
    layout, ranks, settings = PLANS[name]
    return plan_of(model(**MOE), layout, ranks, exchange=exchange, **settings)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("exchange", ["halo", "two_level", "halo_chunked"])
def test_a_step_by_nodes_is_the_step_by_all_to_all_single(name, exchange):
    by_nodes, straight = (plan(name, way) for way in (exchange, "flat"))
    assert {edge.algorithm for edge in by_nodes.graph.edges if edge.kind == "dispatch"} == {exchange}
    assert by_nodes.tiers
    assert not straight.tiers
    check(by_nodes)
    ours, theirs = run_all(by_nodes), run_all(straight)
    for (result, gradients, routed), (other, same, chosen) in zip(ours, theirs, strict=True):
        assert [step.loss for step in result.steps] == [step.loss for step in other.steps]
        assert [where[:2] for where in routed] == [where[:2] for where in chosen]
        for step, found in gradients.items():
            assert found.keys() == same[step].keys()
            assert all(torch.equal(found[key], same[step][key]) for key in found)
    assert worst_error(by_nodes, ours) <= 1e-10


def test_tiers_are_the_nodes_of_each_group_and_what_needs_no_global_link():
    """Leaves of one node: four nodes are four groups."""
    (tiers, *_) = plan("four nodes of two, two stages", "halo").tiers
    assert tiers == Tiers(nodes=((0, 1), (2, 3)), groups=((0, 1), (2, 3)))


def test_tiers_that_are_not_those_of_the_ranks_are_refused():
    found = plan("two nodes of two", "halo")
    for wrong in ((), (Tiers(nodes=((0, 2), (1, 3))),)):
        with pytest.raises(SpecError, match="tiers: nodes and groups are not those of the ranks"):
            check(structs.replace(found, tiers=wrong))


def test_a_way_that_a_plan_leaves_open_is_refused():
    found = plan("two nodes of two", "flat")
    edges = tuple(structs.replace(e, algorithm="fastest") if e.kind == "dispatch" else e for e in found.graph.edges)
    with pytest.raises(
        SpecError, match="dispatch by 'fastest' cannot be run, flat and two_level and halo and halo_chunked can"
    ):
        refuse(structs.replace(found, graph=structs.replace(found.graph, edges=edges)))


def test_the_first_phase_of_halo_lies_inside_what_crosses_and_is_handed_out():
    """In the trace of a run: I begins before II ends, and the operation lasts until all its phases are over."""
    found = plan("two nodes of two", "halo")
    trace = run_all(found, replace(FP64, steps=1))[0][0].trace
    spans = {}
    for span in trace.spans:
        spans.setdefault((span.op, span.lane), {})[span.stream.partition(", ")[2]] = span
    by_nodes = [found for found in spans.values() if "II" in found]
    assert len({lane for (_, lane), found in spans.items() if "II" in found}) == 4
    for found in by_nodes:
        first, second, third, whole = (found[name] for name in ("I", "II", "III", ""))
        assert whole.start_ns <= first.start_ns <= second.start_ns
        assert second.end_ns == third.start_ns
        assert max(first.end_ns, third.end_ns) <= whole.end_ns
