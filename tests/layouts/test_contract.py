"""Every family: ranks, layers, experts, vocabulary and bytes are each accounted for exactly once."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from msgspec import structs

from moeplan.cost.durations import loads, predict
from moeplan.draft import dealt, draft, straight
from moeplan.errors import SpecError
from moeplan.layout import Colocated, Disaggregated, Piper, experts_of, pieces_of
from moeplan.layouts import colocated, disaggregated, family_of, piper, stages
from moeplan.mesh import mesh_of
from moeplan.optimizer.evaluate import footprint
from moeplan.plan import steps_of
from moeplan.plan_rules import check
from moeplan.resources.memory import replica_parameters
from moeplan.resources.parameters import norm_parameters, router_parameters, total_parameters
from moeplan.resources.traffic import ROUTE_BYTES, TOKEN_BYTES, edge_bytes
from moeplan.spec.model import GroupedQuery, is_dense, moe_layers

MODELS = {
    "experts only": {},
    "dense first layers": {"dense_layers": 2, "dense_width": 48},
    "shared experts": {"shared_experts": 2, "dense_layers": 1, "dense_width": 48},
    "every second layer": {
        "moe_every": 2,
        "dense_width": 48,
        "shared_experts": 2,
        "shared_width": 40,
        "shared_gate": True,
        "norm": "layer_bias",
        "head_bias": True,
        "attention": GroupedQuery(heads=4, kv_heads=2, head_dim=16, window=16, full_every=4, chunked=True),
    },
    "tied": {"tied_embeddings": True, "attention": GroupedQuery(heads=4, kv_heads=2, head_dim=16, qk_norm=True)},
}
LAYOUTS = {
    8: (
        Colocated(dp=8),
        Colocated(dp=8, ep=8),
        Colocated(tp=2, dp=4, ep=4),
        Colocated(tp=4, dp=2, ep=8),
        Colocated(tp=2, pp=2, dp=2, ep=2),
        Colocated(tp=2, dp=4, ep=2, etp=2),
        Colocated(pp=4, dp=2, ep=2),
        Colocated(pp=2, vpp=3, dp=4, ep=4),
        Colocated(tp=2, pp=4, dp=1, ep=2),
        Piper(pp=2, dp=2, ep=2),
        Piper(pp=4, dp=2, ep=1),
        Colocated(pp=2, dp=4, split=(1, 5)),
        Piper(pp=2, vpp=2, ep=4, split=(2, 1, 1, 2)),
        Disaggregated(attention_gpus=4, ffn_gpus=4),
        Disaggregated(attention_gpus=2, ffn_gpus=2, dp=2, deduplicate=True),
        Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4),
        Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=2, dp=2),
    ),
    7: (
        Disaggregated(attention_gpus=3, ffn_gpus=4),
        Disaggregated(pairs=3, attention_gpus=3, ffn_gpus=3),
        Disaggregated(pairs=1, attention_gpus=5, ffn_gpus=2),
    ),
}
CASES = [
    pytest.param((model, gpus, layout), id=f"{layout.__class__.__name__} {i} of {gpus}, {model}")
    for gpus, rows in LAYOUTS.items()
    for i, layout in enumerate(rows)
    for model in MODELS
]


@pytest.fixture(scope="module", params=CASES)
def drawn(request, make_case):
    """(case, layout, graph) of each family, shape and kind of model."""
    model, gpus, layout = request.param
    case = make_case(gpus, num_layers=6, global_batch=40, **MODELS[model])
    return case, layout, stages(case, layout)


def count(graph, position):
    """Ranks of a position in all copies."""
    return sum(map(len, graph.positions[position].ranks))


def test_ranks_are_covered_once(drawn):
    _, layout, graph = drawn
    ranks = [rank for position in graph.positions for group in position.ranks for rank in group]
    assert sorted(ranks) == list(range(len(ranks)))
    if isinstance(layout, Colocated):
        assert len(ranks) == layout.tp * layout.dp * layout.pp
    elif isinstance(layout, Piper):
        assert len(ranks) == layout.pp * layout.ep * layout.dp
    else:
        assert len(ranks) == (layout.attention_gpus + layout.ffn_gpus) * layout.dp


def test_layers_and_vocabulary_are_covered_once(drawn):
    case, _, graph = drawn
    model = case.model
    found = Counter((piece.kind, piece.layer) for piece in graph.pieces if piece.kind != "join")
    ffn = ["dense" if is_dense(model, layer) else "experts" for layer in range(model.num_layers)]
    pieces = [(kind, layer) for layer in range(model.num_layers) for kind in ("attention", ffn[layer])]
    assert found == Counter([("embedding", 0), *pieces, ("head", model.num_layers)])
    assert sorted(i for s in range(len(graph.stages)) for i in pieces_of(graph, s)) == list(range(len(graph.pieces)))


def test_every_expert_block_holds_every_expert_once(drawn):
    case, _, graph = drawn
    homes = {graph.stages[piece.stage][0] for piece in graph.pieces if piece.kind == "experts"}
    size = graph.ep * graph.etp
    for position in homes:
        for group in graph.positions[position].ranks:
            assert len(group) % size == 0
            for start in range(0, len(group), size):
                block = range(start, start + size)
                held = Counter(e for index in block for e in experts_of(case.model, graph, index))
                assert held == dict.fromkeys(range(case.model.experts), graph.etp)


def test_who_holds_parameters_stands_in_one_group_of_replicas(drawn):
    _, layout, graph = drawn
    dp = None if isinstance(layout, Disaggregated) else mesh_of(layout).dp
    for replica in graph.replicas:
        there = [rank for p in replica.positions for group in graph.positions[p].ranks for rank in group]
        assert sorted(rank for group in replica.groups for rank in group) == sorted(there)
        assert len({len(group) for group in replica.groups}) == 1
        if replica.parameters == "experts":
            assert len(replica.groups[0]) == count(graph, replica.positions[0]) // (graph.ep * graph.etp)
        elif dp is not None:
            assert len(replica.groups[0]) == dp * len(replica.positions)


def test_parameters_over_all_ranks_are_those_of_the_model(drawn):
    """Each rank's parameters over the size of its replica group; what tensor parallelism does not cut, tp times."""
    case, _, graph = drawn
    model, tp = case.model, graph.tp
    held = sum(
        Fraction(replica_parameters(model, graph, replica, position)) * count(graph, position) / len(replica.groups[0])
        for replica in graph.replicas
        for position in replica.positions
    )
    shape, moe = model.attention, moe_layers(model)
    norms = (2 * model.num_layers + 1) * norm_parameters(model) + model.num_layers * 2 * shape.head_dim * shape.qk_norm
    keys = 2 * model.num_layers * model.hidden * shape.kv_heads * shape.head_dim
    again = Fraction(tp, min(tp, shape.kv_heads)) - 1
    assert held == total_parameters(model) + (tp - 1) * (norms + moe * router_parameters(model)) + again * keys


def test_what_one_side_sends_the_other_receives(drawn):
    """Copies of rows out of attention, those that experts get and those that come back are equally many."""
    case, layout, graph = drawn
    at = loads(case, graph, dealt(case, layout, graph), 0)
    model, row = case.model, case.model.hidden * 2
    for edge, (piece, following) in enumerate(pairwise(graph.pieces)):
        ends = [graph.stages[p.stage][0] for p in (piece, following)]
        ranks = [count(graph, position) for position in ends]
        there, back = (
            n * edge_bytes(model, graph, edge, phase, at[end], dtype="bf16")
            for n, end, phase in zip(ranks, ends, "FB", strict=True)
        )
        tokens = at[0].tokens * count(graph, 0) / graph.tp
        if following.kind == "experts":
            copies = tokens * model.top_k
            rides = row * tokens if graph.edges[edge].kind == "m2n" and model.shared_experts else 0
            assert there == pytest.approx(copies * (row + 2 + ROUTE_BYTES) + rides)
            assert back == pytest.approx(copies * (row + 2) + rides)
            assert ranks[1] * at[ends[1]].rows / graph.etp == pytest.approx(copies)
        elif graph.edges[edge].kind in ("combine", "n2m"):
            copies = tokens * (model.top_k if piece.kind == "experts" else 1)
            assert there == pytest.approx(copies * (row + TOKEN_BYTES))
            assert back == pytest.approx(copies * row)
        elif graph.edges[edge].kind == "send":
            assert there == back == pytest.approx(tokens * row)


def test_every_schedule_of_the_family_makes_a_legal_plan(drawn):
    case, layout, graph = drawn
    for schedule in family_of(layout).SCHEDULES:
        if schedule != "1f1b" or layout.vpp == 1:
            plan = draft(case, layout, schedule=schedule)
            check(plan)
            assert plan.graph == straight(graph)


@pytest.mark.parametrize(
    ("mesh", "copied"),
    [
        (Colocated(dp=16, ep=8), Piper(ep=8, dp=2)),
        (Colocated(pp=2, dp=8, ep=4), Piper(pp=2, ep=4, dp=2)),
        (Colocated(pp=4, vpp=2, dp=4, ep=4, micro_batch=2), Piper(pp=4, vpp=2, ep=4, micro_batch=2)),
        (Colocated(pp=2, dp=8, ep=8, split=(5, 3)), Piper(pp=2, ep=8, split=(5, 3))),
    ],
    ids=["one stage", "two stages", "interleaved", "uneven"],
)
def test_colocated_and_piper_are_one_where_both_hold_a_layout(mesh, copied, make_case, machine_of):
    """Piper's dp copies of ep ranks are ep * dp data-parallel ranks of attention."""
    case = make_case(16, num_layers=8)
    machine = machine_of(case)
    schedule = "interleaved" if mesh.vpp > 1 else "1f1b"
    plans = [draft(case, layout, schedule=schedule) for layout in (mesh, copied)]
    one, two = (
        (p.graph, p.batch, p.schedule, footprint(p, steps_of(p)), predict(case, p.graph, p.batch, machine))
        for p in plans
    )
    assert one == two


@pytest.mark.parametrize("family", [colocated, piper])
def test_every_layout_that_a_mesh_family_offers_is_legal_and_uses_all_gpus(family, make_case):
    case = make_case(16, num_layers=5, per_node=4, global_batch=8)
    case = structs.replace(
        case, cluster=structs.replace(case.cluster, network=structs.replace(case.cluster.network, nodes_per_leaf=2))
    )
    offered = list(family.layouts(case))
    assert len(set(map(repr, offered))) == len(offered) > 10
    for layout in offered:
        graph = stages(case, layout)
        assert sum(count(graph, p) for p in range(len(graph.positions))) == 16
        if family is piper:
            assert graph.tp == 1
            assert layout.pp * layout.ep * layout.dp == 16
            assert layout.ep <= 8


def test_every_allocation_that_disaggregation_offers_is_legal(make_case):
    case = make_case(8, num_layers=5)
    built = 0
    for frame in disaggregated.frames(case):
        for attention in disaggregated.sides(case, frame)[0]:
            for ffn in disaggregated.sides(case, frame)[1]:
                pairs = frame.pairs
                if pairs * (attention + ffn) * frame.dp <= 8:
                    sizes = {"attention_gpus": pairs * attention, "ffn_gpus": pairs * ffn}
                    stages(case, Disaggregated(pairs=pairs, dp=frame.dp, **sizes))
                    built += 1
    assert built > 20


@pytest.mark.parametrize(
    ("layers", "stages_", "counts"),
    [(30, 4, [8, 8, 7, 7]), (48, 5, [10, 10, 10, 9, 9]), (94, 8, [12, 12, 12, 12, 12, 12, 11, 11]), (4, 4, [1] * 4)],
)
def test_uneven_layers_differ_by_one_and_none_is_lost(layers, stages_, counts, make_case):
    graph = stages(make_case(stages_, per_node=stages_, num_layers=layers), Colocated(pp=stages_))
    found = Counter(piece.stage for piece in graph.pieces if piece.kind == "attention")
    assert [found[stage] for stage in range(stages_)] == counts
    assert sum(counts) == layers


def test_four_ranks_in_two_stages_and_expert_groups_of_two(make_case):
    graph = stages(make_case(4), Colocated(pp=2, ep=2, dp=2))
    assert [position.ranks for position in graph.positions] == [((0, 1),), ((2, 3),)]
    assert [len(r.groups[0]) for r in graph.replicas if r.parameters == "experts"] == [1, 1]


@pytest.mark.parametrize(
    ("gpus", "layout", "message"),
    [
        (8, Colocated(dp=8, ep=3), "256 experts % ep 3 is not 0; ep may be 1, 2, 4, 8$"),
        (768, Colocated(dp=768, ep=3), "256 experts % ep 3 .*; ep may be 1, 2, 4, 8, 16, 32, 64, 128, 256$"),
        (512, Piper(ep=512), "piper keeps ep 512 within the 128 ranks"),
        (512, Colocated(dp=512, ep=512), "256 experts % ep 512"),
        (8, Colocated(pp=2, dp=3), r"tp 1 \* cp 1 \* dp 3 \* pp 2 = 6, not 8"),
        (4, Colocated(tp=2, pp=2, ep=2, etp=2), r"etp 2 \* ep 2 \* pp 2 = 8 does not divide 4 ranks"),
        (8, Colocated(pp=8), r"pp 8 \* vpp 1 = 8 stages for 6 layers"),
        (8, Colocated(pp=2, vpp=4, dp=4), r"pp 2 \* vpp 4 = 8 stages for 6 layers"),
        (8, Colocated(tp=8), "4 heads % tp 8 is not 0"),
        (8, Piper(ep=2, dp=8), r"pp 1 \* ep 2 \* dp 8 copies = 16, not 8 ranks"),
        (8, Colocated(pp=2, dp=4, split=(3, 2, 1)), r"split \[3, 2, 1\] names 3 stages, not pp 2 \* vpp 1"),
        (8, Colocated(dp=8, split=(5,)), r"split \[5\] has 5 layers, not 6"),
        (8, Colocated(pp=2, dp=4, split=(6, 0)), r"split \[6, 0\] has a stage of 0 layers; at least 1"),
        (8, Colocated(tp=0, dp=8), "tp 0 must be at least 1"),
        (8, Colocated(dp=-4, pp=-2), "pp -2 must be at least 1"),
        (8, Colocated(dp=8, micro_batch=0), "micro_batch 0 must be at least 1"),
        (20, Disaggregated(attention_gpus=8, ffn_gpus=16), r"attention 8 \+ ffn 16 = 24 ranks \* dp 1 > 20"),
        (8, Disaggregated(attention_gpus=2, ffn_gpus=2, dp=4), r"attention 2 \+ ffn 2 = 4 ranks \* dp 4 > 8"),
        (8, Disaggregated(attention_gpus=2, ffn_gpus=6), "256 experts % 6 ranks of one FFN group"),
        (8, Disaggregated(pairs=2, attention_gpus=3, ffn_gpus=4), "attention 3 ranks % pairs 2"),
        (8, Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=3), "ffn 3 ranks % pairs 2"),
        (16, Disaggregated(pairs=7, attention_gpus=7, ffn_gpus=7), "pairs 7 > 6 layers"),
        (8, Disaggregated(pairs=0), "pairs 0 must be at least 1"),
    ],
)
def test_degrees_that_do_not_fit_are_refused_with_their_numbers(gpus, layout, message, make_case):
    case = make_case(gpus, per_node=4 if gpus == 20 else 8, num_layers=6, experts=256)
    with pytest.raises(SpecError, match=message):
        stages(case, layout)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Colocated(dp=8, ep=8), "ep 8 for a model without experts; it may be 1"),
        (Piper(ep=8), "ep 8 for a model without experts; it may be 1"),
        (Colocated(dp=8, etp=2), "etp 2 for a model without experts; it may be 1, or tp 1"),
        (Colocated(tp=4, dp=2, etp=2), "etp 2 for a model without experts; it may be 1, or tp 4"),
    ],
)
@pytest.mark.parametrize("experts", [0, 8])
def test_a_model_without_experts_has_no_ranks_of_experts(layout, message, experts, make_case):
    """Whether it has none at all, or none of its layers has them."""
    few = {"experts": experts, "top_k": min(experts, 2), "dense_layers": 6, "dense_width": 64}
    case = make_case(8, num_layers=6, **few)
    with pytest.raises(SpecError, match=message):
        stages(case, layout)
    assert stages(case, Colocated(tp=4, dp=2, etp=4)).ep == 1


def test_pipers_groups_lie_inside_nodes_or_fill_them(make_case):
    """Groups of 4 would lie across nodes of 6; of 3 they lie inside, of 6 they fill one."""
    case = make_case(12, per_node=6, experts=12)
    assert {layout.ep for layout in piper.layouts(case)} <= {1, 2, 3, 6, 12}
    with pytest.raises(SpecError, match="groups of 4 ranks would lie across nodes of 6"):
        stages(case, Piper(dp=3, ep=4))
