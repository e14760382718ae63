"""Seconds of each kind of operation: where they come from, and what they depend on."""

import pytest
from msgspec import structs

from moeplan.cost.durations import loads, per_operation, predict
from moeplan.draft import draft
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.plan import program_of
from moeplan.program import COMPUTE_KINDS, is_receive
from moeplan.spec.model import GroupedQuery
from moeplan.units import BytesPerS

PLANS = {
    "one stage": (16, Colocated(dp=16, ep=8), "1f1b"),
    "tensor parallel": (16, Colocated(tp=2, pp=2, dp=4, ep=4), "1f1b"),
    "interleaved": (16, Colocated(pp=2, vpp=2, dp=8, ep=8), "interleaved"),
    "piper": (16, Piper(pp=4, ep=4), "gpipe"),
    "disaggregated": (16, Disaggregated(pairs=2, attention_gpus=8, ffn_gpus=8), "af-pipe"),
    "deduplicated": (16, Disaggregated(attention_gpus=8, ffn_gpus=8, deduplicate=True), "af-pipe"),
    "on two nodes": (24, Disaggregated(attention_gpus=8, ffn_gpus=16, deduplicate=True), "af-pipe"),
}
MODEL = {"num_layers": 5, "dense_layers": 1, "dense_width": 96, "shared_experts": 1, "experts": 16}


@pytest.fixture(params=PLANS)
def plan(request, make_case, machine_of):
    gpus, layout, schedule = PLANS[request.param]
    return priced(make_case(gpus, global_batch=71, **MODEL), layout, schedule, machine_of)


def priced(case, layout, schedule, machine_of, recompute=None):
    plan = draft(case, layout, schedule=schedule, recompute=recompute)
    return structs.replace(plan, durations=predict(case, plan.graph, plan.batch, machine_of(case), plan.recompute))


def by_kind(plan):
    """Durations by (kind, phase, piece)."""
    return {(d.kind, d.phase, piece): d for d in plan.durations for piece in d.pieces}


def test_every_duration_has_a_source_and_no_operation_has_two(plan):
    keys = [(d.kind, d.phase, piece) for d in plan.durations for piece in d.pieces]
    assert len(set(keys)) == len(keys)
    for duration in plan.durations:
        assert duration.source in ("measured", "interpolated", "roofline", "assumed")
        assert 0 <= duration.communication_s <= duration.seconds


def test_every_operation_has_a_duration_and_receives_take_none(plan):
    program = program_of(plan)
    spent = per_operation(program, plan.durations, plan.batch.microbatches)
    assert len(spent) == len(program.ops)
    table = by_kind(plan)
    for op, duration_ns in zip(program.ops, spent, strict=True):
        if is_receive(program, op):
            assert duration_ns == 0
        else:
            entry = table[op.kind, "F" if op.phase == "R" else op.phase, op.piece]
            last = op.microbatch == plan.batch.microbatches - 1
            assert duration_ns == round((entry.last_seconds if last else entry.seconds) * 1e9)


@pytest.mark.parametrize("name", ["one stage", "disaggregated"])
def test_a_recomputed_forward_takes_as_long_as_the_forward(name, make_case, machine_of):
    gpus, layout, schedule = PLANS[name]
    case = make_case(gpus, global_batch=71, **MODEL)
    plan = priced(case, layout, schedule, machine_of, Recompute(attention="full", ffn="experts"))
    program = program_of(plan)
    spent = per_operation(program, plan.durations, plan.batch.microbatches)
    first = {(op.piece, op.microbatch): spent[op.id] for op in program.ops if op.kind == "F" and op.phase == "F"}
    again = {(op.piece, op.microbatch): spent[op.id] for op in program.ops if op.kind == "F" and op.phase == "R"}
    assert again
    assert again == {key: first[key] for key in again}


def test_the_short_last_microbatch_is_shorter(plan):
    """71 sequences do not fill the last micro-batch; what it does never takes longer, and its compute takes less."""
    full, last = (loads(plan.case, plan.graph, plan.batch, m) for m in (0, plan.batch.microbatches - 1))
    ragged = last[0].tokens < full[0].tokens
    for duration in plan.durations:
        if duration.phase == "S":
            assert duration.last_seconds == duration.seconds
        else:
            assert duration.last_seconds <= duration.seconds
            if ragged and duration.kind in COMPUTE_KINDS and duration.seconds - duration.communication_s > 20e-6:
                assert duration.last_seconds < duration.seconds


def test_a_last_microbatch_with_half_the_sequences_does_half_the_work(make_case, machine_of):
    case = make_case(1, global_batch=6, seq_len=4096, hidden=4096, expert_width=4096, vocab=32000)
    plan = priced(case, Colocated(micro_batch=4), "1f1b", machine_of)
    full, last = (loads(case, plan.graph, plan.batch, m)[0] for m in (0, 1))
    assert (last.tokens, last.rows) == (full.tokens / 2, full.rows / 2)
    computed = [d for d in plan.durations if d.kind in COMPUTE_KINDS and d.seconds]
    assert computed
    for duration in computed:
        assert duration.last_seconds == pytest.approx(duration.seconds / 2, rel=0.1)


def test_deduplication_shortens_transfers_between_the_sides_only(make_case, machine_of):
    """Experts on two nodes and 8 choices per token: what several choices of one node share crosses once."""
    case = make_case(24, top_k=8, seq_len=4096, global_batch=8, **MODEL)
    plans = [
        priced(case, Disaggregated(attention_gpus=8, ffn_gpus=16, deduplicate=d), "af-pipe", machine_of)
        for d in (False, True)
    ]
    twice, once = map(by_kind, plans)
    edges = plans[1].graph.edges
    assert twice.keys() == once.keys()
    shorter = {key for key in twice if once[key].seconds < 0.9 * twice[key].seconds}
    experts = {key for key in twice if key[0] in ("m2n", "n2m") and edges[key[2]].algorithm == "deduplicated"}
    assert shorter == experts
    assert all(once[key] == twice[key] for key in twice.keys() - experts)


def test_slower_links_lengthen_communication_only(plan, machine_of):
    """Every edge of the cluster's graph at half its bandwidth: compute stays as it is to the last bit."""
    case, cluster = plan.case, plan.case.cluster
    half = {name: BytesPerS(getattr(cluster.node, name) / 2) for name in ("link_bytes_per_s", "nic_bytes_per_s")}
    uplink = BytesPerS(cluster.network.uplink_bytes_per_s / 2)
    slow = machine_of(
        case,
        node=structs.replace(cluster.node, **half),
        network=structs.replace(cluster.network, uplink_bytes_per_s=uplink),
    )
    before = plan.durations
    after = predict(case, plan.graph, plan.batch, slow)
    assert len(before) == len(after)
    moved = 0
    for one, two in zip(before, after, strict=True):
        assert (one.kind, one.phase, one.pieces) == (two.kind, two.phase, two.pieces)
        if one.kind in COMPUTE_KINDS or one.kind == "optimizer":
            assert two.seconds - two.communication_s == pytest.approx(one.seconds - one.communication_s, rel=1e-12)
            assert (two.communication_s > one.communication_s) == (one.communication_s > 0)
        elif one.seconds:
            assert one.seconds < two.seconds < 2 * one.seconds
            moved += 1
    assert moved


def test_faster_gpus_shorten_compute_only(plan, machine_of):
    case, gpu = plan.case, plan.case.cluster.gpu
    fast = structs.replace(gpu, peak_flop_per_s={k: v.__class__(v * 4) for k, v in gpu.peak_flop_per_s.items()})
    fast = structs.replace(fast, hbm_bytes_per_s=BytesPerS(gpu.hbm_bytes_per_s * 4))
    faster = structs.replace(case, cluster=structs.replace(case.cluster, gpu=fast))
    after = predict(faster, plan.graph, plan.batch, machine_of(faster))
    for one, two in zip(plan.durations, after, strict=True):
        if one.kind in COMPUTE_KINDS or one.kind == "optimizer":
            assert two.seconds - two.communication_s <= one.seconds - one.communication_s
        else:
            assert two == one


def test_windowed_and_full_layers_have_durations_of_their_own(make_case, machine_of):
    """Alternating layers of one stage: two entries, the windowed one sooner done; without windows one entry."""
    attention = GroupedQuery(heads=4, kv_heads=2, head_dim=16, window=128, full_every=2)
    times = {}
    for window in (128, 0):
        case = make_case(8, seq_len=8192, num_layers=4, attention=structs.replace(attention, window=window))
        plan = priced(case, Colocated(dp=8, ep=8), "1f1b", machine_of)
        layers = {i: piece.layer for i, piece in enumerate(plan.graph.pieces) if piece.kind == "attention"}
        for phase in "FB":
            times[window, phase] = {
                tuple(layers[i] for i in d.pieces): d.seconds
                for d in plan.durations
                if d.phase == phase and d.kind == phase and set(d.pieces) <= set(layers)
            }
    for phase in "FB":
        assert set(times[128, phase]) == {(0, 2), (1, 3)}
        assert set(times[0, phase]) == {(0, 1, 2, 3)}
        assert times[128, phase][0, 2] < times[128, phase][1, 3] == times[0, phase][0, 1, 2, 3]


def one_microbatch(plan, phase):
    return sum(d.seconds * len(d.pieces) for d in plan.durations if d.phase == phase)


@pytest.mark.parametrize("hidden", [(), ("parameters",), ("gradients", "parameters")])
def test_weights_in_shards_are_gathered_for_every_forward_and_backward(hidden, make_case, machine_of):
    """ZeRO-3 on one stage: forward + gather, backward + gather + scatter, or the longer of both where one is hidden."""
    case = make_case(16, global_batch=64, **MODEL)
    memory, execution = case.memory, structs.replace(case.execution, hidden=hidden)
    once, each = (
        priced(structs.replace(case, memory=structs.replace(memory, zero=zero), **more), layout, "1f1b", machine_of)
        for layout in [Colocated(dp=16, ep=8)]
        for zero, more in ((2, {}), (3, {"execution": execution}))
    )
    moved = [d for d in each.durations if d.phase == "S" and d.kind != "optimizer"]
    assert moved
    assert not any(d.seconds or d.last_seconds for d in moved)
    gather = one_kind(once, "all_gather")
    scatter = one_microbatch(once, "S") - gather - one_kind(once, "optimizer")
    assert min(gather, scatter) > 0
    ahead, back = (one_microbatch(once, phase) for phase in "FB")
    behind = ("parameters" in hidden) * gather + ("gradients" in hidden) * scatter
    before = gather + scatter - behind
    assert one_microbatch(each, "F") == pytest.approx(max(ahead, gather) if hidden else ahead + gather)
    assert one_microbatch(each, "B") == pytest.approx(max(back, behind) + before)


def one_kind(plan, kind):
    return sum(d.seconds * len(d.pieces) for d in plan.durations if d.kind == kind)


def test_in_a_pipeline_weights_are_gathered_once(make_case, machine_of):
    """As PyTorch's FSDP does where they stay gathered between micro-batches."""
    case, layout = make_case(16, global_batch=64, **MODEL), Colocated(pp=2, dp=8, ep=8)
    two, three = (
        priced(structs.replace(case, memory=structs.replace(case.memory, zero=zero)), layout, "1f1b", machine_of)
        for zero in (2, 3)
    )
    assert one_microbatch(three, "F") == one_microbatch(two, "F")


@pytest.mark.parametrize(
    ("layout", "schedule"),
    [(Colocated(dp=16, ep=8), "1f1b"), (Colocated(tp=2, pp=2, dp=4, ep=4), "1f1b")],
    ids=["one stage", "two stages"],
)
def test_what_travels_behind_compute_takes_what_outlasts_it(layout, schedule, make_case, machine_of):
    """At least 6 %, and what four fifths of one micro-batch's backward (gradients) or forward (weights) do not hide."""
    case = make_case(16, global_batch=64, seq_len=512, **MODEL)
    hides = structs.replace(case, execution=structs.replace(case.execution, hidden=("gradients", "parameters")))
    waits, behind = (priced(c, layout, schedule, machine_of) for c in (case, hides))
    graph = waits.graph
    spent = [
        {
            phase: sum(
                d.seconds * sum(graph.stages[graph.pieces[p].stage][0] == position for p in d.pieces)
                for d in waits.durations
                if d.phase == phase and d.kind in (phase, "dispatch", "combine")
            )
            for phase in "FB"
        }
        for position in range(len(graph.positions))
    ]
    seen = 0
    for before, after in zip(waits.durations, behind.durations, strict=True):
        phase = {"reduce_scatter": "B", "all_reduce": "B", "all_gather": "F"}.get(before.kind)
        if phase is None:
            assert after == before
            continue
        window = min(spent[p][phase] for p in graph.replicas[before.pieces[0]].positions)
        assert after.seconds == pytest.approx(max(0.0, before.seconds - 0.8 * window) + 0.06 * before.seconds)
        seen += 1
    assert seen


@pytest.mark.parametrize("recompute", [Recompute(), Recompute(attention="full", ffn="full")], ids=["kept", "again"])
def test_a_module_for_a_further_token_takes_a_layer_a_head_and_a_product(recompute, make_case, machine_of):
    """Of DeepSeek-V3's kind: what the head takes more is what a layer takes, once more where it is computed again."""
    case = make_case(16, global_batch=64, seq_len=4096, mtp_layers=2, **MODEL)
    trained = structs.replace(case, memory=structs.replace(case.memory, mtp=True))
    plain, further = (priced(c, Colocated(pp=2, dp=8, ep=8), "1f1b", machine_of, recompute) for c in (case, trained))
    before, after = by_kind(plain), by_kind(further)
    head = len(plain.graph.pieces) - 1
    assert {key for key in before if after[key] != before[key] and key[1] in "FB"} == {(p, p, head) for p in "FB"}
    layer = {  # attention, experts, their dispatch (behind attention) and combine of the last layer
        phase: sum(
            before[kind, phase, piece].seconds
            for kind, piece in ((phase, head - 2), (phase, head - 1), ("dispatch", head - 2), ("combine", head - 1))
        )
        for phase in "FB"
    }
    layer["B"] += (layer["F"] - before["combine", "F", head - 1].seconds) * (recompute != Recompute())
    for phase in "FB":
        more = (after[phase, phase, head].seconds - before[phase, phase, head].seconds) / 2
        product = more - layer[phase] - before[phase, phase, head].seconds
        assert 0 < product < 0.5 * before[phase, phase, head - 2].seconds
