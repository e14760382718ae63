"""Memory of the executor's own modules: live storages of a real run against the model of what autograd keeps."""

import random

import numpy as np
import pytest
from cases import model, plan_of
from live import measured
from msgspec import structs

from moeplan.cost.durations import loads
from moeplan.layout import Colocated, Disaggregated, Recompute
from moeplan.plan import steps_of
from moeplan.resources.memory import peak_activations, tracks
from moeplan.spec.model import GroupedQuery

NONE, EXPERTS = Recompute(), Recompute(ffn="experts")
FULL, BOTH = Recompute(attention="full", ffn="full"), Recompute(attention="full", ffn="experts")
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


def predicted(plan):
    """(peak bytes, most live micro-batches) of a rank of each position."""
    order, at = tracks(steps_of(plan)), loads(plan.case, plan.graph, plan.batch, 0)
    live = [int(np.cumsum(np.where(track.kinds == "F", 1, -1)).max()) for track in order]
    peaks = peak_activations(plan.case, plan.graph, order, plan.recompute, at)
    return [(sum(peak), most) for peak, most in zip(peaks, live, strict=True)]


def compared(plan):
    """(measured, predicted) of the first rank of each position."""
    found = measured(plan)
    ranks = [place.ranks[0][0] for place in plan.graph.positions]
    return [(found[rank], told) for rank, told in zip(ranks, predicted(plan), strict=True)]


@pytest.mark.parametrize("number", range(SHAPES))
@pytest.mark.parametrize("schedule", MESHES)
def test_peaks_of_pipelines_are_those_of_live_storages(number, schedule):
    """Within 3 % at every stage; live micro-batches exactly. Every shape meets every rule of recomputation."""
    rule = (NONE, EXPERTS, FULL)[(number + list(MESHES).index(schedule)) % 3]
    for (peak, live), (told, most) in compared(planned(number, *MESHES[schedule], schedule, rule)):
        assert live == most
        assert told == pytest.approx(peak, rel=0.03)


@pytest.mark.parametrize("number", range(SHAPES))
def test_peaks_of_two_sides_are_those_of_live_storages(number):
    """Within 15 %: transfers begin and end when they can, so that which rows are in flight depends on the machine."""
    rule = (NONE, EXPERTS, BOTH)[number % 3]
    for (peak, live), (told, most) in compared(planned(number, SIDES, 4, "af-pipe", rule)):
        assert live == most
        assert told == pytest.approx(peak, rel=0.15)
