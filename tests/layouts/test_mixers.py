"""Layers with a mixer in place of attention, and layers without an FFN: one chain, each piece and parameter once."""

import pytest

from moeplan.draft import draft
from moeplan.errors import SpecError
from moeplan.estimator import usual_schedule
from moeplan.layout import Colocated, Disaggregated, Piper
from moeplan.layouts import stages
from moeplan.layouts.colocated import layouts
from moeplan.optimizer.evaluate import footprint
from moeplan.plan import steps_of
from moeplan.plan_rules import check
from moeplan.resources.memory import replica_parameters
from moeplan.resources.parameters import total_parameters
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import Load
from moeplan.spec.model import GatedDelta, Mamba2

MIXERS = {
    "mamba2": Mamba2(heads=4, head_dim=8, state=16, groups=2),
    "gated_delta": GatedDelta(key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=8),
}
FIELDS = {"num_layers": 8, "pattern": "MEM*EM-", "dense_width": 48, "expert_latent": 32}
LAYOUTS = [Colocated(dp=8, ep=4), Colocated(pp=4, dp=2, ep=2), Colocated(pp=2, vpp=4, dp=4), Piper(pp=4, ep=2, dp=1)]


@pytest.fixture(params=sorted(MIXERS))
def case(request, make_case):
    return make_case(8, global_batch=8, mixer=MIXERS[request.param], **FIELDS)


def test_a_layer_without_an_ffn_is_one_piece(case):
    graph = stages(case, Colocated(pp=4, dp=2, ep=2))
    kinds = [(piece.kind, piece.layer) for piece in graph.pieces if piece.kind != "join"]
    layers = ["attention experts", "attention", "attention experts", "attention dense"] * 2
    pieces = [(kind, layer) for layer, both in enumerate(layers) for kind in both.split()]
    assert kinds == [("embedding", 0), *pieces, ("head", 8)]


@pytest.mark.parametrize(
    ("mixer", "message"),
    [
        (Mamba2(heads=6, head_dim=8, state=16, groups=2), "6 heads of the mixer % tp 4 is not 0"),
        (Mamba2(heads=12, head_dim=8, state=16, groups=3), "3 groups of the mixer and tp 4 do not divide each other"),
        (
            GatedDelta(key_heads=6, value_heads=12, key_head_dim=8, value_head_dim=8),
            "6 key heads of the mixer and tp 4 do not divide each other",
        ),
        (
            GatedDelta(key_heads=1, value_heads=6, key_head_dim=8, value_head_dim=8),
            "6 value heads of the mixer % tp 4 is not 0",
        ),
    ],
)
def test_tensor_parallel_ranks_share_a_mixers_heads_or_are_refused(make_case, mixer, message):
    case = make_case(8, global_batch=8, mixer=mixer, **FIELDS)
    with pytest.raises(SpecError, match=message):
        stages(case, Colocated(tp=4, dp=2))
    assert stages(case, Colocated(tp=1, dp=8)).tp == 1
    assert {layout.tp for layout in layouts(case)} <= {1, 2}


def test_between_mixers_rows_pass_one_to_one(case):
    graph = stages(case, Colocated(dp=8, ep=4))
    for number, (piece, after) in enumerate(zip(graph.pieces, graph.pieces[1:], strict=False)):
        if piece.kind == after.kind == "attention":
            assert graph.edges[number].kind == "local"
            assert edge_bytes(case.model, graph, number, "F", Load(64.0, 0.0), dtype="bf16") == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_over_all_ranks_are_those_of_the_model(case, layout):
    """Every class of parameters over one rank of each group that holds it, experts over all their shares."""
    graph = stages(case, layout)
    held = 0.0
    for replica in graph.replicas:
        copies = len(replica.groups[0])
        for position in replica.positions:
            ranks = sum(map(len, graph.positions[position].ranks))
            held += replica_parameters(case.model, graph, replica, position) * ranks / copies
    assert held == pytest.approx(total_parameters(case.model))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plan_of_it_is_legal_and_has_a_peak(case, layout):
    plan = draft(case, layout, schedule=usual_schedule(layout))
    check(plan)
    assert min(footprint(plan, steps_of(plan)).peak) > 0


def test_rows_travel_at_the_width_of_the_experts(case):
    """A row of 32 elements of 2 bytes, its gate and what routes it, instead of 64 elements."""
    graph = stages(case, Colocated(dp=8, ep=4))
    number = next(i for i, edge in enumerate(graph.edges) if edge.kind == "dispatch")
    load = Load(64.0, 64.0 * case.model.top_k)
    assert edge_bytes(case.model, graph, number, "F", load, dtype="bf16") == 64 * case.model.top_k * (2 * 32 + 2 + 24)


def test_sides_that_do_not_alternate_are_refused(case):
    with pytest.raises(SpecError, match=r"layers without an FFN in pattern 'MEM\*EM-': attention and FFN do not"):
        stages(case, Disaggregated(attention_gpus=4, ffn_gpus=4))


def test_sides_may_have_mixers(make_case):
    graph = stages(make_case(8, mixer=MIXERS["mamba2"], pattern="ME*E"), Disaggregated(attention_gpus=4, ffn_gpus=4))
    assert {edge.kind for edge in graph.edges} >= {"m2n", "n2m"}
    assert all(edge.kind != "dispatch" for edge in graph.edges)
