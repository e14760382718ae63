"""Piper's own mesh (arXiv 2605.05049): PP x EP = GPUs, groups of at most one switch, 16 bytes per parameter, 64 GB."""

import pytest
from msgspec import structs

from moeplan.draft import draft_with_steps
from moeplan.layout import Piper, Recompute
from moeplan.layouts import piper, stages
from moeplan.layouts.piper import widest_group
from moeplan.optimizer.evaluate import footprint
from moeplan.resources.memory import static_bytes
from moeplan.spec.case import Case
from moeplan.spec.cluster import first_gpus
from moeplan.spec.shipped import load_cluster, load_model
from moeplan.spec.workload import Memory, Workload

GB = 1e9
LITERAL = Memory(bytes_per_parameter=16, optimizer_shards=1, usable=1.0, activations="piper")


def literal(model, gpus, global_batch=2048):
    """A case counted as the paper counts: no embedding, no optimizer sharding, its own activations."""
    return Case(
        model=structs.replace(load_model(model), vocab=1),
        cluster=first_gpus(load_cluster("frontier"), gpus),
        workload=Workload(seq_len=4096, global_batch=global_batch),
        memory=LITERAL,
    )


def meshes(case, limit_bytes):
    """(PP, EP) of one copy whose fullest position holds at most so much of parameters, gradients and optimizer."""
    found = set()
    for layout in piper.layouts(case, {"vpp": (1,), "micro_batch": (1,)}):
        if layout.dp == 1:
            graph = stages(case, layout)
            if max(static_bytes(case, graph, p) for p in range(len(graph.positions))) <= limit_bytes:
                found.add((layout.pp, layout.ep))
    return found


def test_groups_on_frontier_have_at_most_32_ranks():
    assert widest_group(load_cluster("frontier")) == 32


def test_the_largest_model_has_one_mesh_on_1024_gpus():
    case = literal("piper-1.7t", 1024)
    assert {(one.pp, one.ep) for one in piper.layouts(case) if one.dp == 1} == {(32, 32)}
    assert meshes(case, 64 * GB) == {(32, 32)}


@pytest.mark.parametrize(
    ("model", "gpus", "expected"),
    [
        ("xmoe-small", 8, {(1, 8), (2, 4), (4, 2), (8, 1)}),
        ("xmoe-large", 80, {(10, 8)}),
        ("xmoe-super", 512, {(32, 16), (16, 32)}),
        ("piper-110b", 64, {(4, 16), (8, 8), (16, 4), (32, 2)}),
        ("piper-862b", 512, {(16, 32), (32, 16)}),
    ],
)
def test_the_meshes_of_the_published_runs(model, gpus, expected):
    """Of the 201.4B model on 80 GPUs only one node per stage stays below 60 GB; the others have several choices."""
    assert meshes(literal(model, gpus), (60 if model == "xmoe-large" else 64) * GB) == expected


@pytest.mark.parametrize(
    ("recompute", "peak_gb"),
    [(Recompute(), 60.7), (Recompute(attention="full", ffn="full"), 30.9)],
    ids=["none", "full"],
)
def test_the_first_stage_of_the_largest_model(recompute, peak_gb):
    """28.5 GB static; 32 micro-batches of one sequence in flight, kept whole or only their inputs."""
    case = literal("piper-1.7t", 1024)
    bytes_ = footprint(*draft_with_steps(case, Piper(pp=32, ep=32), schedule="1f1b", recompute=recompute))
    assert bytes_.static[0] == pytest.approx(28.5 * GB, rel=0.01)
    assert bytes_.peak[0] == max(bytes_.peak) == pytest.approx(peak_gb * GB, rel=0.01)


def test_one_stage_of_the_medium_model_does_not_fit():
    """PP = 1, EP = 32: 75 GB of parameters alone, which is why the paper adds pipeline stages."""
    case = literal("xmoe-medium", 32)
    assert static_bytes(case, stages(case, Piper(ep=32)), 0) == pytest.approx(75 * GB, rel=0.02)
