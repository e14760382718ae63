"""Over a deduplicated M2N a token crosses once for each node with one of its experts, and nothing else changes."""

import pytest
import torch
from cases import FP64, model, plan_of, run_all, to_first, worst_error

from moeplan.layout import Disaggregated, Recompute
from moeplan.plan import world_size
from moeplan_exec.groups import rank_lists
from moeplan_exec.hooks import Hooks
from moeplan_exec.launch import fork
from moeplan_exec.run import Options, run_rank

BOUND = 1e-10
BOTH = Recompute(attention="full", ffn="experts")
WIDE = {"num_layers": 3, "experts": 6, "top_k": 4}
SHARED = WIDE | {"shared_experts": 1}
ONCE = Options(steps=1, dtype="fp64", timeout_s=30, trace=False)


def split(attention, ffn, **more):
    return Disaggregated(attention_gpus=attention, ffn_gpus=ffn, deduplicate=True, **more)


CASES = {
    "one node each": (4, 2, split(2, 2), {}, {}),
    "one and three": (4, 2, split(1, 3), {}, SHARED),
    "three and one": (4, 2, split(3, 1), {"schedule": "gpipe", "global_batch": 7}, SHARED | {"dense_layers": 1}),
    "three on the sender's node and one": (8, 2, split(1, 4), {}, {"experts": 8, "top_k": 4, "shared_experts": 2}),
    "three nodes": (8, 4, split(2, 6), {"recompute": BOTH}, WIDE | {"qk_norm": True}),
    "three nodes, one idle": (8, 4, split(1, 6), {"global_batch": 3, "schedule": "interleaved"}, SHARED | {"top_k": 2}),
    "two pairs over three nodes": (
        8,
        4,
        split(2, 6, pairs=2, micro_batch=2),
        {"global_batch": 11, "recompute": BOTH},
        SHARED | {"num_layers": 5, "dense_layers": 1, "dense_width": 24, "tied_embeddings": True},
    ),
    "two copies": (8, 4, split(1, 3, dp=2), {"global_batch": 7, "recompute": Recompute(ffn="experts")}, SHARED),
}


def plan_for(case):
    ranks, nodes, layout, settings, changes = CASES[case]
    return plan_of(model(**changes), layout, ranks, nodes=nodes, **settings)


@pytest.mark.parametrize("case", CASES)
def test_a_deduplicated_m2n_equals_one_process(case):
    plan = plan_for(case)
    assert any(edge.algorithm == "deduplicated" for edge in plan.graph.edges)
    assert worst_error(plan, run_all(plan)) <= BOUND


@pytest.mark.parametrize(("chosen", "top_k"), [(1, 1), (2, 2), (4, 2)], ids=["one expert", "one rank", "one idle node"])
def test_nodes_and_ranks_without_tokens(chosen, top_k):
    plan = plan_of(model(experts=8, top_k=top_k, shared_experts=1), split(1, 4), 5, nodes=3, global_batch=2)
    initialise = to_first(chosen)
    assert worst_error(plan, run_all(plan, initialise=initialise), initialise=initialise) <= BOUND


def test_ranks_without_sequences():
    plan = plan_of(model(**SHARED), split(2, 3), 5, nodes=3, global_batch=1)
    assert worst_error(plan, run_all(plan)) <= BOUND


def crossing(plan):
    """Rows that go to other nodes over M2N edges in one step, by phase, and the choices of each rank."""
    gpus, places = plan.case.cluster.node.gpus, plan.graph.positions

    def body(start, report):
        rows, routed = {"F": 0, "B": 0}, []

        def leaving(op, parcel):
            if op.kind == "m2n":
                copy = next(i for i, group in enumerate(places[op.position].ranks) if start.rank in group)
                away = [rank // gpus != start.rank // gpus for rank in places[op.peers[0]].ranks[copy]]
                for table, counts in zip(parcel.tables, parcel.counts, strict=True):
                    wide = table.shape[1] >= plan.case.model.hidden
                    rows[op.phase] += wide * sum(n for n, far in zip(counts, away, strict=True) if far)

        hooks = Hooks(leaving=leaving, routed=lambda step, layer, sequences, choice: routed.append((layer, choice)))
        run_rank(plan, ONCE, start, hooks=hooks)
        return rows, routed

    return fork(world_size(plan), body)


def expected(plan, ranks, copies_of):
    """Sum over tokens of `copies_of(the nodes of its experts that are not its own)`."""
    gpus, graph, total = plan.case.cluster.node.gpus, plan.graph, 0
    for rank, (_, routed) in enumerate(ranks):
        for layer, choice in routed:
            piece = next(p for p in graph.pieces if (p.kind, p.layer) == ("experts", layer))
            copies = graph.positions[graph.stages[piece.stage][0]].ranks
            group = copies[rank * len(copies) // world_size(plan)]
            nodes = torch.tensor([r // gpus for r in group])[choice * len(group) // plan.case.model.experts]
            total += sum(copies_of([n for n in token if n != rank // gpus]) for token in nodes.tolist())
    return total


@pytest.mark.parametrize("case", ["one and three", "three nodes", "two pairs over three nodes", "two copies"])
def test_a_token_crosses_once_for_each_node(case):
    plan = plan_for(case)
    spec = plan.case.model
    ranks = crossing(plan)
    pairs = expected(plan, ranks, lambda nodes: len(set(nodes)))
    copies = expected(plan, ranks, len)
    carried = expected(plan, ranks, lambda nodes: bool(nodes))
    assert 0 < pairs < copies
    found = {phase: sum(rows[phase] for rows, _ in ranks) for phase in "FB"}
