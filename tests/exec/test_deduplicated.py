"""Deduplicated, a token crosses once for each node with one of its experts, there and back; nothing else changes."""

from collections import Counter

import pytest
import torch
from cases import model, plan_of, run_all, to_first, worst_error
from msgspec.structs import replace

from moeplan.layout import Disaggregated, Recompute
from moeplan.plan import world_size
from moeplan_exec.chain import edges_of
from moeplan_exec.deduplicated import Deduplicated, starts
from moeplan_exec.groups import rank_lists
from moeplan_exec.hooks import Hooks
from moeplan_exec.launch import fork
from moeplan_exec.run import Options, run_rank
from moeplan_exec.site import find

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
    "three and one": (
        4,
        2,
        split(3, 1),
        {"schedule": "gpipe", "global_batch": 7},
        SHARED | {"dense_layers": 1, "dense_width": 9},
    ),
    "three on the sender's node and one": (8, 2, split(1, 4), {}, {"experts": 8, "top_k": 4, "shared_experts": 2}),
    "three nodes": (8, 4, split(2, 6), {"recompute": BOTH}, WIDE | {"qk_norm": True}),
    "four nodes, one of them the sender's": (
        8,
        4,
        split(1, 6),
        {"global_batch": 3, "schedule": "interleaved"},
        SHARED | {"top_k": 2},
    ),
    "two pairs over three nodes": (
        8,
        4,
        split(2, 6, pairs=2, micro_batch=2),
        {"global_batch": 11, "recompute": BOTH},
        SHARED | {"num_layers": 5, "dense_layers": 1, "dense_width": 24, "tied_embeddings": True},
    ),
    "two pairs, next homes on two nodes": (
        10,
        4,
        split(4, 6, pairs=2),
        {"global_batch": 3, "recompute": BOTH},
        WIDE | {"shared_experts": 1, "normalize_top_k": False},
    ),
    "two copies": (8, 4, split(1, 3, dp=2), {"global_batch": 7, "recompute": Recompute(ffn="experts")}, SHARED),
}


def plan_for(case):
    ranks, nodes, layout, settings, changes = CASES[case]
    return plan_of(model(**changes), layout, ranks, nodes=nodes, **settings)


@pytest.mark.parametrize("case", CASES)
def test_deduplicated_transfers_equal_one_process(case):
    plan = plan_for(case)
    assert {edge.kind for edge in plan.graph.edges if edge.algorithm == "deduplicated"} == {"m2n", "n2m"}
    assert worst_error(plan, run_all(plan)) <= BOUND


@pytest.mark.parametrize(("chosen", "top_k"), [(1, 1), (2, 2), (4, 2)], ids=["one expert", "one rank", "one idle node"])
def test_nodes_and_ranks_without_tokens(chosen, top_k):
    spec = model(num_layers=3, experts=8, top_k=top_k, shared_experts=1, normalize_top_k=False)
    plan = plan_of(spec, split(1, 4), 5, nodes=3, global_batch=2)
    initialise = to_first(chosen)
    assert worst_error(plan, run_all(plan, initialise=initialise), initialise=initialise) <= BOUND


def test_ranks_without_sequences():
    plan = plan_of(model(**SHARED), split(2, 3), 5, nodes=3, global_batch=1)
    assert worst_error(plan, run_all(plan)) <= BOUND


def crossing(plan):
    """By rank: rows to and from experts on other nodes in one step by (kind, phase), and what the rank routed."""
    gpus, places = plan.case.cluster.node.gpus, plan.graph.positions

    def body(start, report):
        rows, routed = Counter(), []

        def leaving(op, parcel):
            if plan.graph.pieces[op.piece + (op.kind == "m2n")].kind == "experts":
                copy = next(i for i, group in enumerate(places[op.position].ranks) if start.rank in group)
                away = [rank // gpus != start.rank // gpus for rank in places[op.peers[0]].ranks[copy]]
                for table, counts in zip(parcel.tables, parcel.counts, strict=True):
                    if table.shape[1] >= plan.case.model.hidden:
                        rows[op.kind, op.phase] += sum(n for n, far in zip(counts, away, strict=True) if far)

        hooks = Hooks(leaving=leaving, routed=lambda step, layer, sequences, choice: routed.append((layer, choice)))
        run_rank(plan, ONCE, start, hooks=hooks)
        return rows, routed

    return fork(world_size(plan), body)


def group_of(plan, piece, rank):
    """Ranks of the piece's position in the copy of `rank`."""
    copies = plan.graph.positions[plan.graph.stages[plan.graph.pieces[piece].stage][0]].ranks
    return copies[rank * len(copies) // world_size(plan)]


def expected(plan, ranks, kind, rows_of):
    """Sum over all tokens of rows_of(node of the home before or after experts, node of each choice)."""
    gpus, total = plan.case.cluster.node.gpus, 0
    pieces = [(piece.kind, piece.layer) for piece in plan.graph.pieces]
    for rank, (_, routed) in enumerate(ranks):
        for layer, choice in routed:
            piece = pieces.index(("experts", layer))
            if kind not in (plan.graph.edges[piece - 1].kind, plan.graph.edges[piece].kind):
                continue
            index = group_of(plan, piece - 1, rank).index(rank)
            own = rank if kind == "m2n" else group_of(plan, piece + 1, rank)[index]
            group = group_of(plan, piece, rank)
            nodes = torch.tensor([r // gpus for r in group])[choice * len(group) // plan.case.model.experts]
            total += sum(rows_of(own // gpus, token) for token in nodes.tolist())
    return total


@pytest.mark.parametrize(
    "case",
    [
        "three on the sender's node and one",
        "three nodes",
        "two pairs over three nodes",
        "two pairs, next homes on two nodes",
        "two copies",
    ],
)
def test_a_token_crosses_once_for_each_node(case):
    plan = plan_for(case)
    shared = plan.case.model.shared_experts > 0

    def pairs(own, nodes):
        return len(set(nodes) - {own})

    def copies(own, nodes):
        return sum(n != own for n in nodes)

    def residual(own, nodes):
        return shared and nodes[0] != own

    def due(ranks, rows_of):
        there = expected(plan, ranks, "m2n", rows_of) + expected(plan, ranks, "m2n", residual)
        back = expected(plan, ranks, "n2m", rows_of)
        return {(kind, phase): n for kind, n in (("m2n", there), ("n2m", back)) for phase in "FB"}

    ranks = crossing(plan)
    once = due(ranks, pairs)
    assert sum((rows for rows, _ in ranks), Counter()) == once
    plain = plan_of(
        plan.case.model,
        replace(plan.layout, deduplicate=False),
        CASES[case][0],
        nodes=plan.case.cluster.nodes,
        global_batch=plan.case.workload.global_batch,
    )
    ranks = crossing(plain)
    each = due(ranks, copies)
    assert sum((rows for rows, _ in ranks), Counter()) == each
    assert all(each[key] > once[key] > 0 for key in once)


@pytest.mark.parametrize(
    ("case", "sender", "rail"),
    [
        ("three nodes", 0, [0, 0, 2, 2, 4, 4]),
        ("three nodes", 1, [1, 1, 3, 3, 5, 5]),
        ("two copies", 4, [0, 1, 1]),
        ("three on the sender's node and one", 0, [0, 0, 0, 3]),
        ("two pairs over three nodes", 0, [0, 0, 2]),
        ("two pairs over three nodes", 1, [0, 2, 2]),
    ],
)
def test_each_node_takes_rows_in_on_the_senders_rail(case, sender, rail):
    plan = plan_for(case)
    edges = edges_of(find(plan, sender, torch.device("cpu"), torch.float64), {})
    found = next(edge.rail for edge in edges.values() if isinstance(edge, Deduplicated))
    assert found.tolist() == [index for index in rail for _ in range(plan.case.model.experts // len(rail))]


@pytest.mark.parametrize("case", CASES)
def test_groups_for_the_exchange_lie_on_one_node(case):
    plan = plan_for(case)
    plain = replace(plan, graph=replace(plan.graph, edges=()))
    added = set(rank_lists(plan)) - set(rank_lists(plain))
    gpus = plan.case.cluster.node.gpus
    assert all(len({rank // gpus for rank in group}) == 1 for group in added)


def test_runs_of_equal_keys():
    assert starts(torch.tensor([3, 3, 1, 1, 3])).tolist() == [True, False, True, False, True]
    assert starts(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 5, 6])).tolist() == [True, False, True, True]
    assert starts(torch.tensor([], dtype=torch.int64)).tolist() == []
