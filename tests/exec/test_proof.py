"""The proof of a layout: its loss and every gradient equal one process's, step after step."""

import pytest
import torch
from cases import FP64, model, plan_of, reference, run_all, to_first, worst_error

from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan_exec.run import Options

BOUND = 1e-10
DEEP = {"num_layers": 5, "experts": 8, "dense_layers": 1, "dense_width": 24, "shared_experts": 1}
TURNS = {"num_layers": 6, "experts": 8, "moe_every": 2, "dense_width": 24, "shared_experts": 1, "shared_width": 12}
BOTH = Recompute(attention="full", ffn="experts")
ALL = Recompute(attention="full", ffn="full")

COLOCATED = {
    "two stages": (2, Colocated(pp=2), "1f1b", {}, {}),
    "two expert shards": (2, Colocated(ep=2, dp=2), "1f1b", {}, {}),
    "two copies": (2, Colocated(dp=2), "gpipe", {"recompute": Recompute(ffn="full")}, {}),
    "interleaved": (2, Colocated(pp=2, vpp=2), "interleaved", {"recompute": BOTH}, {}),
    "chunks of one position": (1, Colocated(vpp=2), "interleaved", {}, {}),
    "stages and shards": (4, Colocated(pp=2, ep=2, dp=2), "1f1b", {"global_batch": 7}, DEEP),
    "attention again": (4, Colocated(pp=2, ep=2, dp=2), "gpipe", {"recompute": Recompute(attention="full")}, DEEP),
    "experts again": (4, Colocated(pp=2, ep=2, dp=2), "1f1b", {"recompute": Recompute(ffn="experts")}, DEEP),
    "all again": (4, Colocated(pp=2, ep=2, dp=2), "1f1b", {"recompute": ALL}, DEEP),
    "four expert shards": (4, Colocated(ep=4, dp=4, micro_batch=2), "1f1b", {"global_batch": 9}, DEEP),
    "four stages": (4, Piper(pp=4), "1f1b", {}, {"qk_norm": True, "tied_embeddings": True}),
    "copies of stages": (8, Colocated(pp=2, ep=2, dp=4), "1f1b", {"global_batch": 11}, DEEP),
    "chunks and shards": (8, Piper(pp=2, vpp=2, ep=4), "interleaved", {"recompute": ALL}, DEEP),
    "every second layer": (4, Colocated(pp=2, ep=2, dp=2), "1f1b", {"global_batch": 7, "recompute": ALL}, TURNS),
    "every third layer": (4, Piper(pp=2, vpp=2, ep=2), "interleaved", {"recompute": BOTH}, TURNS | {"moe_every": 3}),
    "four stages of two": (8, Piper(pp=4, ep=2), "gpipe", {"recompute": BOTH}, DEEP | {"top_k": 3}),
}
DISAGGREGATED = {
    "one and one": (2, Disaggregated(), "af-pipe", {}, {}),
    "two pairs of one": (4, Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=2), "af-pipe", {"global_batch": 7}, DEEP),
    "three and one": (4, Disaggregated(attention_gpus=3, ffn_gpus=1), "gpipe", {"global_batch": 7}, DEEP),
    "one and three": (4, Disaggregated(attention_gpus=1, ffn_gpus=3), "interleaved", {}, DEEP | {"experts": 6}),
    "two copies": (4, Disaggregated(dp=2), "af-pipe", {"recompute": BOTH}, {"normalize_top_k": False}),
    "copies of three and one": (8, Disaggregated(attention_gpus=3, dp=2), "af-pipe", {"global_batch": 11}, DEEP),
    "copies of one and three": (
        8,
        Disaggregated(attention_gpus=1, ffn_gpus=3, dp=2),
        "gpipe",
        {"recompute": Recompute(attention="full")},
        DEEP | {"experts": 6, "dense_layers": 2},
    ),
    "two pairs, deep queue": (
        8,
        Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=6, micro_batch=2, depth=2),
        "af-pipe",
        {"global_batch": 11, "recompute": Recompute(ffn="experts")},
        DEEP | {"experts": 6, "qk_norm": True, "tied_embeddings": True},
    ),
    "every second layer": (4, Disaggregated(attention_gpus=2, ffn_gpus=2), "af-pipe", {"recompute": BOTH}, TURNS),
    "every third layer": (
        8,
        Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4, deduplicate=True),
        "af-pipe",
        {"global_batch": 9},
        TURNS | {"moe_every": 3, "dense_layers": 1},
    ),
    "two pairs again": (
        8,
        Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4),
        "af-pipe",
        {"global_batch": 9, "recompute": BOTH},
        DEEP | {"shared_experts": 0, "normalize_top_k": False},
    ),
}


def check(case):
    ranks, layout, schedule, settings, changes = case
    plan = plan_of(model(**changes), layout, ranks, schedule=schedule, **settings)
    assert worst_error(plan, run_all(plan)) <= BOUND


@pytest.mark.parametrize("case", COLOCATED.values(), ids=COLOCATED)
def test_colocated_equals_one_process(case):
    check(case)


@pytest.mark.parametrize("case", DISAGGREGATED.values(), ids=DISAGGREGATED)
def test_disaggregated_equals_one_process(case):
    check(case)


@pytest.mark.parametrize("layout", [Colocated(pp=2, ep=2, dp=2), Disaggregated(attention_gpus=2, ffn_gpus=2)])
@pytest.mark.parametrize(("chosen", "top_k"), [(1, 1), (2, 2), (3, 2)], ids=["one expert", "one rank", "one idle"])
def test_ranks_and_experts_without_tokens(layout, chosen, top_k):
    plan = plan_of(model(top_k=top_k), layout, 4)
    initialise = to_first(chosen)
    ranks = run_all(plan, initialise=initialise)
    single = reference(plan.case.model, plan.case.workload, FP64, initialise)
    assert all(int(choice.max()) < chosen for choice in single.choices.values())
    assert worst_error(plan, ranks, initialise=initialise) <= BOUND


@pytest.mark.parametrize("layout", [Colocated(pp=2, dp=2), Disaggregated(attention_gpus=3, ffn_gpus=1)])
def test_ranks_without_sequences(layout):
    plan = plan_of(model(**DEEP), layout, 4, global_batch=1)
    assert worst_error(plan, run_all(plan)) <= BOUND


@pytest.mark.parametrize("layout", [Colocated(pp=2, ep=2, dp=2), Disaggregated(attention_gpus=2, ffn_gpus=2)])
def test_float32_routes_alike_and_agrees(layout):
    options = Options(steps=3, dtype="fp32", lr=0.01, timeout_s=30)
    plan = plan_of(model(**DEEP), layout, 4)
    ranks = run_all(plan, options)
    single = reference(plan.case.model, plan.case.workload, options)
    for _, _, routed in ranks:
        for step, layer, sequences, choice in routed:
            expected = single.choices[(step, layer)][sequences.start : sequences.stop].flatten(0, 1)
            assert torch.equal(choice, expected), f"smallest margin {single.margin}"
    assert worst_error(plan, ranks, options) <= 1e-4, f"smallest margin {single.margin}"
