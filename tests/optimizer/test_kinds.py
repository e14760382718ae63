"""Bounds of models whose layers are not alike, or whose attention is latent: they stay below what is simulated."""

from itertools import product

import pytest
from msgspec import structs

from moeplan.cost.durations import predict
from moeplan.draft import draft_with_steps
from moeplan.layout import Colocated, Disaggregated, Recompute
from moeplan.layouts.disaggregated import Frame
from moeplan.optimizer.evaluate import evaluate
from moeplan.optimizer.screen import Screen
from moeplan.optimizer.sides import Sides, Sizes
from moeplan.spec.model import GroupedQuery, Latent, Mamba2

MODELS = {
    "windows": GroupedQuery(heads=4, kv_heads=2, head_dim=16, window=256, full_every=2, bias=True, sinks=True),
    "few full layers": GroupedQuery(heads=4, kv_heads=2, head_dim=16, window=1023, full_every=5),
    "chunks": GroupedQuery(heads=4, kv_heads=2, head_dim=16, window=512, full_every=4, chunked=True),
    "latent": Latent(heads=4, q_lora_rank=24, kv_lora_rank=16, nope_head_dim=16, rope_head_dim=8, v_head_dim=16),
}
COLOCATED = (
    (Colocated(pp=4, dp=2, ep=2), "1f1b"),
    (Colocated(tp=2, pp=2, dp=2, ep=2), "gpipe"),
    (Colocated(pp=2, vpp=3, dp=4, ep=4), "interleaved"),
)
DISAGGREGATED = (
    Disaggregated(attention_gpus=4, ffn_gpus=4),
    Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4, depth=2),
    Disaggregated(pairs=3, attention_gpus=3, ffn_gpus=3),
)
MIXED = {
    "experts in every layer but the first": {},
    "experts in every second layer": {"dense_layers": 0, "moe_every": 2},
    "experts in every third layer behind four": {"dense_layers": 4, "moe_every": 3},
    "shared experts of their own": {"moe_every": 2, "shared_experts": 1, "shared_width": 40, "shared_gate": True},
    "mixers in every second layer": {
        "dense_layers": 0,
        "pattern": "ME*-*EM-",
        "mixer": Mamba2(heads=4, head_dim=8, state=16, groups=2),
        "expert_latent": 32,
        "shared_experts": 1,
    },
    "no experts": {"dense_layers": 8, "experts": 0, "top_k": 0, "expert_width": 0},
}
RULES = [Recompute(attention=a, ffn=f) for a in ("none", "full") for f in ("none", "experts")]


def case_of(make_case, name, **more):
    fields = {"num_layers": 8, "dense_layers": 1, "dense_width": 96, "ffn_bias": True, "gated": False} | more
    return make_case(8, per_node=4, seq_len=32_768, attention=MODELS[name], **fields)


def simulated(case, machine, layout, schedule, recompute):
    plan, steps = draft_with_steps(case, layout, schedule=schedule, recompute=recompute)
    return evaluate(structs.replace(plan, durations=predict(case, plan.graph, plan.batch, machine)), steps).predictions


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("layout", "schedule"), COLOCATED)
def test_meshes_are_never_faster_or_smaller_than_their_screen(make_case, machine_of, name, layout, schedule):
    check_screen(case_of(make_case, name), machine_of, layout, schedule)


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize(("layout", "schedule"), COLOCATED)
def test_meshes_of_mixed_layers_are_never_faster_or_smaller(make_case, machine_of, name, layout, schedule):
    case = case_of(make_case, "chunks", **MIXED[name])
    check_screen(case, machine_of, layout if case.model.experts else structs.replace(layout, ep=1), schedule)


def check_screen(case, machine_of, layout, schedule):
    machine = machine_of(case)
    screen = Screen(case, machine)
    for recompute in RULES:
        found = simulated(case, machine, layout, schedule, recompute)
        assert 0 < screen.step_s(layout, recompute) <= found.step_s * (1 + 1e-6)
        assert screen.static_bytes(layout) <= found.static_hbm_bytes[0]
        assert screen.least_bytes(layout, recompute, schedule) <= found.peak_hbm_bytes[0]


@pytest.mark.parametrize(("layout", "schedule"), COLOCATED)
def test_dense_layers_count_in_the_bound(make_case, machine_of, layout, schedule):
    """A model without experts is bounded by all that it computes, not by its head alone."""
    layout = structs.replace(layout, ep=1)
    case = case_of(make_case, "chunks", dense_width=4096, **MIXED["no experts"])
    bound = Screen(case, machine_of(case)).step_s(layout, Recompute())
    assert bound > 0.5 * simulated(case, machine_of(case), layout, schedule, Recompute()).step_s


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", DISAGGREGATED, ids=lambda layout: f"{layout.pairs} pairs")
def test_sides_are_never_faster_or_smaller_than_their_bounds(make_case, machine_of, name, layout):
    check_sides(case_of(make_case, name), machine_of, layout)


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("layout", DISAGGREGATED, ids=lambda layout: f"{layout.pairs} pairs")
def test_sides_of_mixed_layers_are_never_faster_or_smaller(make_case, machine_of, name, layout):
    check_sides(case_of(make_case, "chunks", **MIXED[name]), machine_of, layout)


def check_sides(case, machine_of, layout):
    for recompute, activations in product(RULES, ("kept", "piper")):
        case = structs.replace(case, memory=structs.replace(case.memory, activations=activations))
        machine = machine_of(case)
        sides = Sides(case, machine)
        found = simulated(case, machine, layout, "af-pipe", recompute)
        assert 0 < sides.bound_s(layout, recompute) <= found.step_s * (1 + 1e-6)
        assert sides.least_bytes(layout, recompute) <= max(found.peak_hbm_bytes)


def test_full_layers_in_one_group_make_it_the_slower(make_case, machine_of):
    """Two pairs, every second layer windowed: one group has all full layers, as many as a model without windows."""
    spent = {}
    for window, every in ((256, 2), (0, 1), (256, 99)):
        attention = structs.replace(MODELS["windows"], window=window, full_every=every)
        case = case_of(make_case, "windows", dense_layers=0)
        case = structs.replace(case, model=structs.replace(case.model, attention=attention))
        spent[window, every] = Sides(case, machine_of(case)).attention_s(Frame(2, 1, 1), 2, "none")
    assert spent[256, 2] == spent[0, 1] > spent[256, 99]


def test_the_group_that_has_all_experts_bounds_the_memory(make_case, machine_of):
    """Two pairs and experts in every second layer: the first FFN group has none, the second has them all."""
    case = case_of(make_case, "windows", dense_layers=0, moe_every=2, expert_width=512)
    layout = Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4)
    first, second = simulated(case, machine_of(case), layout, "af-pipe", Recompute()).static_hbm_bytes[1::2]
    bound = Sides(case, machine_of(case)).static_bytes(Sizes(Frame(2, 1, 1), 2, 2), "ffn")
    assert first < bound <= second
    assert bound == pytest.approx(second, rel=0.1)


def test_a_tied_embedding_is_shared_by_both_ends(make_case, machine_of):
    """Its optimizer state is divided over the first attention and the last FFN group: the bound knows."""
    case = make_case(4, num_layers=4, vocab=20_000, tied_embeddings=True, global_batch=8)
    layout = Disaggregated(attention_gpus=2, ffn_gpus=2)
    found = simulated(case, machine_of(case), layout, "af-pipe", Recompute())
    assert Sides(case, machine_of(case)).least_bytes(layout, Recompute()) <= max(found.peak_hbm_bytes)


def test_dense_layers_have_no_shared_experts(make_case, machine_of):
    """Not even where their FFN is narrower than the shared experts are."""
    case = make_case(4, num_layers=4, dense_layers=2, dense_width=8, shared_experts=3, expert_width=512)
    screen = Screen(case, machine_of(case))
    for layout, schedule in ((Colocated(pp=2, dp=2), "1f1b"), (Colocated(pp=4, dp=1), "gpipe")):
        found = simulated(case, machine_of(case), layout, schedule, Recompute())
        assert screen.static_bytes(layout) <= found.static_hbm_bytes[0]
        assert screen.least_bytes(layout, Recompute(), schedule) <= found.peak_hbm_bytes[0]


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize(("pairs", "attention", "ffn"), [(1, 4, 4), (1, 3, 4), (2, 4, 4), (2, 2, 4), (3, 3, 3)])
def test_rows_over_slow_nics_bound_the_step(make_case, machine_of, pairs, attention, ffn, deduplicate):
    """Where the network decides, the bound is that of the network, and no simulated step is faster."""
    layout = Disaggregated(pairs=pairs, attention_gpus=attention, ffn_gpus=ffn, deduplicate=deduplicate)
    case = make_case(8, per_node=2, num_layers=7, experts=12, top_k=3, global_batch=48, seq_len=4096)
    node = structs.replace(case.cluster.node, nics=1, nic_bytes_per_s=1e7)
    slow = structs.replace(case, cluster=structs.replace(case.cluster, node=node))
    machine = machine_of(slow)
    network = structs.replace(machine.calibration.network, half_message_bytes=1.0)
    machine = machine._replace(calibration=structs.replace(machine.calibration, network=network))
    bound_s = Sides(slow, machine).bound_s(layout, Recompute())
    step_s = simulated(slow, machine, layout, "af-pipe", Recompute()).step_s
    assert 0.3 * step_s < bound_s <= step_s
    assert bound_s > 10 * Sides(case, machine_of(case)).bound_s(layout, Recompute())
