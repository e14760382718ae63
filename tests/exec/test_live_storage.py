"""Memory of the executor's own modules: live storages of a simulated order against what predictions say is kept."""

import random

import numpy as np
import pytest
from cases import model, plan_of
from live import measured
from msgspec import structs

from moeplan.cost.durations import loads
from moeplan.layout import Colocated, Disaggregated, Recompute
from moeplan.plan import steps_of
from moeplan.program import is_receive, keeps
from moeplan.resources.memory import Lengths, peak_activations, tracks
from moeplan.simulate import run
from moeplan.spec.model import GroupedQuery

NONE, EXPERTS = Recompute(), Recompute(ffn="experts")
FULL, BOTH = Recompute(attention="full", ffn="full"), Recompute(attention="full", ffn="experts")
RULES = {"none": NONE, "experts": EXPERTS, "full": FULL}
ACROSS = {"none": NONE, "experts": EXPERTS, "full": BOTH}
"""Rows are not dispatched again from other ranks."""
MESHES = {
    "gpipe": (Colocated(pp=2), 2),
    "1f1b": (Colocated(pp=4), 4),
    "interleaved": (Colocated(pp=2, vpp=2), 2),
}
SIDES = Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=2)
SHAPES = 8


def shape(number):
    """A random model: (spec, tokens per sequence, sequences per step)."""
    draw = random.Random(number)
    kv = draw.choice([1, 2, 4])
    attention = GroupedQuery(
        heads=kv * draw.choice([1, 2, 4]),
        kv_heads=kv,
        head_dim=draw.choice([8, 16, 32]),
        qk_norm=draw.choice([True, False]),
    )
    sizes = {
        "hidden": draw.choice([64, 96, 128, 192]),
        "vocab": draw.choice([128, 256, 512]),
        "experts": draw.choice([4, 8]),
        "expert_width": draw.choice([32, 64, 96]),
        "num_layers": draw.choice([4, 5, 8]),
        "shared_experts": draw.choice([0, 1]),
    }
    dense = {"dense_layers": 1, "dense_width": draw.choice([128, 256])} if draw.random() < 0.4 else {}
    spec = structs.replace(model(**sizes, **dense), attention=attention)
    return spec, draw.choice([128, 256, 384]), draw.choice([3, 6, 8])


def planned(number, layout, ranks, schedule, recompute):
    spec, seq_len, batch = shape(number)
    size = {"seq_len": seq_len, "global_batch": batch}
    return plan_of(spec, layout, ranks, schedule=schedule, recompute=recompute, **size)


def unit(program, transfer=1):
    """Each forward of a piece takes 200 ns, each backward 400 ns, each transfer `transfer` ns."""
    lengths = {"F": 200, "B": 400, **dict.fromkeys(("dispatch", "combine", "m2n", "n2m", "send"), transfer)}
    return [0 if is_receive(program, op) else lengths.get(op.kind, 1) for op in program.ops]


def lengths_of(plan, transfer=1):
    """The same of stages, forwards that run again and transfers inside a stage included."""
    graph = plan.graph
    forward, backward = ([0] * len(graph.stages) for _ in range(2))
    for number, piece in enumerate(graph.pieces):
        kept = keeps(piece, plan.recompute)
        inside = number > 0 and graph.pieces[number - 1].stage == piece.stage
        moved = transfer * (inside and graph.edges[number - 1].kind != "local")
        forward[piece.stage] += 200 + moved
        backward[piece.stage] += 400 + moved + (kept != "activations") * 200 + (kept == "nothing") * moved
    return Lengths(forward, backward, transfer)


def predicted(plan):
    """(peak bytes, most live micro-batches) of a rank of each position."""
    order, at = tracks(steps_of(plan), lengths_of(plan)), loads(plan.case, plan.graph, plan.batch, 0)
    live = [int(np.cumsum(np.where(track.kinds == "F", 1, -1)).max()) for track in order]
    peaks = peak_activations(plan.case, plan.graph, order, plan.recompute, at)
    return [(sum(peak), most) for peak, most in zip(peaks, live, strict=True)]


CASES = [(schedule, number) for schedule in (*MESHES, "af-pipe") for number in range(SHAPES)]


@pytest.mark.parametrize("rule", ["none", "experts", "full"])
@pytest.mark.parametrize(("schedule", "number"), CASES)
def test_peaks_of_stages_are_those_of_live_storages(schedule, number, rule):
    """Within 3 % at every stage; live micro-batches exactly."""
    layout, ranks = MESHES.get(schedule, (SIDES, 4))
    recompute = RULES[rule] if schedule in MESHES else ACROSS[rule]
    plan = planned(number, layout, ranks, schedule, recompute)
    found = measured(plan, lambda program: run(program, unit(program)))
    assert [rank.live for rank in found] == [most for _, most in predicted(plan)]
    assert [told for told, _ in predicted(plan)] == pytest.approx([rank.peak for rank in found], rel=0.03)
