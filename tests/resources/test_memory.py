"""HBM bytes: static ones by hand, activations against a plain fold over the schedule text."""

import pytest

from moeplan.cost.durations import loads
from moeplan.draft import draft
from moeplan.layout import Colocated, Disaggregated, Piece, Piper, Recompute, pieces_of, rides
from moeplan.layouts import stages
from moeplan.plan import steps_of
from moeplan.resources import parameters as count
from moeplan.resources.memory import peak_activation_bytes, piece_bytes, static_bytes, tracks
from moeplan.resources.memory.kept import piece_parts
from moeplan.resources.memory.need import needs
from moeplan.resources.traffic import edge_bytes
from moeplan.resources.work import Load
from moeplan.spec.model import GroupedQuery, Latent
from moeplan.spec.workload import Memory

WEIGHTS = Memory(bytes_per_parameter=2.0, weight_bytes=2.0, optimizer_bytes=0.0)
NOTHING = Recompute()
RULES = [Recompute(attention=a, ffn=f) for a in ("none", "full") for f in ("none", "experts", "full")]


def static(case, layout):
    graph = stages(case, layout)
    return [static_bytes(case, graph, position) for position in range(len(graph.positions))]


def activations(case, layout, schedule, recompute=NOTHING):
    plan = draft(case, layout, schedule=schedule, recompute=recompute)
    at = loads(case, plan.graph, plan.batch, 0)
    return peak_activation_bytes(case, plan.graph, tracks(steps_of(plan)), recompute, at)


@pytest.mark.parametrize(("model", "gigabytes"), [("mixtral-8x7b", 93.41), ("qwen3-30b-a3b", 61.06)])
def test_weights_count_all_experts(make_case, model, gigabytes):
    """All parameters are resident, not only the active ones: 2 bytes each in bf16."""
    case = make_case(1, model=model, memory=WEIGHTS)
    (held,) = static(case, Colocated())
    assert held == 2 * count.total_parameters(case.model)
    assert held / 1e9 == pytest.approx(gigabytes, abs=0.005)
    assert held > 3 * 2 * count.active_parameters(case.model)


@pytest.mark.parametrize("per_parameter", [18.0, 16.0])
def test_bytes_per_parameter_on_one_rank(make_case, per_parameter):
    case = make_case(1, memory=Memory(bytes_per_parameter=per_parameter))
    assert static(case, Colocated()) == [per_parameter * count.total_parameters(case.model)]


@pytest.mark.parametrize(("dp", "ep"), [(2, 1), (4, 2), (8, 8)])
@pytest.mark.parametrize("per_parameter", [18.0, 16.0])
def test_optimizer_state_is_divided_over_the_holders(make_case, dp, ep, per_parameter):
    """Dense parameters have dp holders, experts dp / ep: 12 bytes of each are divided, the others are not."""
    case = make_case(dp, memory=Memory(bytes_per_parameter=per_parameter))
    experts = case.model.num_layers * case.model.experts * count.expert_parameters(case.model)
    dense = count.total_parameters(case.model) - experts
    rest = per_parameter - 12
    expected = dense * (rest + 12 / dp) + experts / ep * (rest + 12 / (dp // ep))
    assert static(case, Colocated(dp=dp, ep=ep)) == [pytest.approx(expected)]


def test_optimizer_state_that_is_not_sharded_is_held_whole(make_case):
    case = make_case(4, memory=Memory(optimizer_shards=1))
    assert static(case, Colocated(dp=4)) == [18 * count.total_parameters(case.model)]
    halves = make_case(4, memory=Memory(optimizer_shards=2))
    assert static(halves, Colocated(dp=4)) == [12 * count.total_parameters(case.model)]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_more_shards_than_ranks_divide_no_more_than_the_ranks(make_case, zero):
    """Experts have dp / ep = 2 holders, all else has 4: what 4 or 1000 shards would divide, two ranks do."""
    layout = Colocated(dp=4, ep=2)
    all_ranks = make_case(4, memory=Memory(zero=zero))
    for shards in (4, 1000):
        assert static(make_case(4, memory=Memory(zero=zero, optimizer_shards=shards)), layout) == static(
            all_ranks, layout
        )


def test_stages_hold_their_layers_and_the_ends_the_vocabulary(make_case):
    case = make_case(3, memory=WEIGHTS, num_layers=8)
    model = case.model
    layer = count.layer_parameters(model, 0)
    ends = count.embedding_parameters(model), 0, count.head_parameters(model) + count.norm_parameters(model)
    expected = [2 * (n * layer + end) for n, end in zip((3, 3, 2), ends, strict=True)]
    assert static(case, Colocated(pp=3)) == expected


def test_attention_and_experts_are_held_apart(make_case):
    """Both sides hold the norm before the experts; the last FFN group holds the head."""
    case = make_case(6, memory=WEIGHTS)
    model, layers = case.model, case.model.num_layers
    norm = count.norm_parameters(model)
    attention = layers * (count.attention_parameters(model) + count.router_parameters(model) + norm)
    experts = layers * (model.experts // 4 * count.expert_parameters(model) + norm)
    ends = count.embedding_parameters(model), count.head_parameters(model) + norm
    expected = [2 * (attention + ends[0]), 2 * (experts + ends[1])]
    assert static(case, Disaggregated(attention_gpus=2, ffn_gpus=4)) == expected


def kept_by(plan, stage, load):
    """Parts of the pieces of a stage, in chain order."""
    graph = plan.graph
    return [
        piece_parts(plan.case, graph.pieces[i], plan.recompute, load, ride=rides(graph, i))
        for i in pieces_of(graph, stage)
    ]


def passing(plan, stage, load):
    """Bytes of rows in flight around a stage: two of the largest edge of its pieces."""
    return around(plan, pieces_of(plan.graph, stage), load)


def around(plan, numbers, load):
    """Two of the largest edge that joins one of `numbers` to another piece."""
    graph = plan.graph
    edges = {e for i in numbers for e in (i - 1, i) if 0 <= e < len(graph.edges)}
    sizes = [edge_bytes(plan.case.model, graph, e, "F", load, dtype=plan.case.workload.dtype) for e in edges]
    return 2 * max(sizes)


def needed(plan, stage, load):
    """Most that a backward of a stage has beside what is kept: pieces go back one by one, from the last."""
    rule, parts, numbers = plan.recompute, kept_by(plan, stage, load), pieces_of(plan.graph, stage)
    most, gone = passing(plan, stage, load), 0.0
    for place in reversed(range(len(parts))):
        again = rule.attention == rule.ffn == "full" and plan.graph.pieces[numbers[place]].kind in ("experts", "dense")
        before = parts[place - 1].again if again and place else 0.0
        arriving = around(plan, [numbers[place]], load) if parts[place].again else 0.0
        most = max(most, max(parts[place].transient, parts[place].again + arriving) + before - gone)
        gone += parts[place].alive
    return most


def live_microbatches(case, schedule):
    """Micro-batches that each of four stages keeps at its peak: what is kept over what one of them keeps."""
    layout = Colocated(pp=4)
    plan = draft(case, layout, schedule=schedule)
    load = loads(case, plan.graph, plan.batch, 0)[0]
    live = []
    for stage, found in enumerate(activations(case, layout, schedule)):
        one = sum(part.alive for part in kept_by(plan, stage, load))
        live.append((found - needed(plan, stage, load)) / one)
    return pytest.approx(live, abs=0.05)  # rows that leave or wait are a few per cent of what is kept


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 9])
def test_1f1b_keeps_fewer_microbatches_alive_at_later_stages(make_case, microbatches):
    """min(m, p - i) at stage i: with four or more, the first of four stages keeps four times what the last does."""
    case = make_case(4, num_layers=8, global_batch=microbatches)
    assert [min(microbatches, 4 - i) for i in range(4)] == live_microbatches(case, "1f1b")


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 9])
def test_gpipe_keeps_all_microbatches_alive_everywhere(make_case, microbatches):
    case = make_case(4, num_layers=8, global_batch=microbatches)
    assert [microbatches] * 4 == live_microbatches(case, "gpipe")


PLANS = [
    pytest.param(*row, id=f"{i} {row[1].__class__.__name__} {row[2]}")
    for i, row in enumerate(
        (
            (8, Colocated(pp=4, dp=2, ep=2), "1f1b"),
            (8, Colocated(pp=4, dp=2, ep=2), "gpipe"),
            (8, Colocated(tp=2, pp=2, dp=2, ep=4), "1f1b"),
            (4, Colocated(pp=2, vpp=3, dp=2, ep=2), "interleaved"),
            (8, Piper(pp=2, ep=4, micro_batch=2), "1f1b"),
            (6, Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=4), "af-pipe"),
            (7, Disaggregated(pairs=1, attention_gpus=3, ffn_gpus=4, depth=2), "af-pipe"),
        )
    )
]


def when(steps, stages):
    """{action: (start, end)} with F 1, B 2 and transfers 1 / 256 long, tried again until nothing changes."""
    times, before = {}, None
    while before != times:
        before = dict(times)
        for row in steps:
            clock = 0.0
            for (action,) in row:
                stage, kind, microbatch = action
                maker = (stage - 1, "F", microbatch) if kind == "F" else (stage + 1, "B", microbatch)
                there = times.get(maker, (0.0, 0.0))[1] + 1 / 256 if 0 <= maker[0] < stages else 0.0
                start = max(clock, there)
                clock = start + (1.0 if kind == "F" else 2.0)
                times[action] = (start, clock)
    return times


def waiting(row, times, stages, number, at):
    """(stage, kind) of the actions after `number` whose rows have left their maker by `at`."""
    for (action,) in row[number + 1 :]:
        stage, kind, microbatch = action
        maker = (stage - 1, "F", microbatch) if kind == "F" else (stage + 1, "B", microbatch)
        if maker in times and times[maker][1] <= at:
            yield stage, kind


def slow_peaks(plan):
    """The fold, one action at a time: a dictionary of what is alive, what waits, and the largest sum seen."""
    at, steps, stages = loads(plan.case, plan.graph, plan.batch, 0), steps_of(plan), len(plan.graph.stages)
    sizes, times, peaks = needs(plan.case, plan.graph, plan.recompute, at), when(steps, stages), []
    for row in steps:
        alive, peak, ended, before, left = {}, 0.0, -1.0, -1.0, 0.0
        for number, (action,) in enumerate(row):
            stage, kind, microbatch = action
            need, (start, end) = sizes[stage], times[action]
            late = start + (0.5 if kind == "F" else need.late) * (end - start)
            came = [
                sum(sizes[s].arriving[k == "B"] for s, k in waiting(row, times, stages, number, moment))
                for moment in (start, late)
            ]
            if kind == "F":
                alive[stage, microbatch] = sum(p.alive for p in kept_by(plan, stage, at[plan.graph.stages[stage][0]]))
                first, later = 0.0, need.passing
            else:
                first, later = sum(need.first), sum(need.later)
                maker = times.get((stage + 1, "B", microbatch))
                again = need.again and maker and number and maker[1] <= before
                first += need.arriving[1] * bool(again)
            early = kind == "B" and need.again
            first += left if number and (early or start < ended + 1 / 256) else 0.0
            peak = max(peak, sum(alive.values()) + max(first + came[0], later + came[1]))
            alive.pop((stage, microbatch) if kind == "B" else None, None)
            ended, before, left = end, late, need.leaving[kind == "B"]
        assert alive == {}
        peaks.append(peak)
    return peaks


@pytest.mark.parametrize("recompute", RULES, ids=lambda rule: f"{rule.attention}-{rule.ffn}")
@pytest.mark.parametrize(("gpus", "layout", "schedule"), PLANS)
def test_the_fold_equals_one_action_at_a_time(make_case, gpus, layout, schedule, recompute):
    case = make_case(gpus, num_layers=7, global_batch=22, dense_layers=1, dense_width=96, shared_experts=1)
    plan = draft(case, layout, schedule=schedule, recompute=recompute)
    assert activations(case, layout, schedule, recompute) == pytest.approx(slow_peaks(plan))


@pytest.mark.parametrize(("gpus", "layout", "schedule"), PLANS)
@pytest.mark.parametrize("side", ["attention", "ffn"])
def test_more_recomputed_is_less_kept(make_case, gpus, layout, schedule, side):
    case = make_case(gpus, num_layers=6, global_batch=64)
    for piece in stages(case, layout).pieces:
        rules = ("none", "experts", "full") if side == "ffn" else ("none", "full")
        kept = [piece_bytes(case, piece, Recompute(**{side: rule}), Load(64.0, 128.0)).alive for rule in rules]
        assert kept == sorted(kept, reverse=True)
        mine = ("attention",) if side == "attention" else ("experts", "dense")
        assert (kept[-1] < kept[0]) == (piece.kind in mine)
    assert sum(activations(case, layout, schedule, Recompute(attention="full", ffn="experts"))) < sum(
        activations(case, layout, schedule)
    )


def test_what_an_experts_piece_keeps_by_hand(make_case):
    """Of each row: itself with its gate, its sorted copy, four inner values, outputs before and after the gate.

    Beside it six integers of where it belongs; or the row and four of them, or the last alone. A backward needs the
    gradient that came, those of both factors of the gate weight, the residual's, and all that is computed again.
    """
    case = make_case(1)
    model, rows = case.model, 1000.0
    piece = Piece(kind="experts", layer=0, stage=0)
    whole = 2 * (4 * model.hidden + 1 + 4 * model.expert_width) + 6 * 8
    for rule, each in {"none": whole, "experts": 2 * (model.hidden + 1) + 4 * 8, "full": 8}.items():
        kept = piece_bytes(case, piece, Recompute(ffn=rule), Load(500.0, rows, local_experts=0.0))
        waiting = 500 * 2 * model.hidden
        assert kept == (rows * each, rows * (3 * 2 * model.hidden + whole - each) + waiting)


def test_many_experts_of_few_rows_need_their_gradients_most(make_case):
    """All weight gradients of a piece are there at once, in the element type, before they are summed."""
    case = make_case(1)
    few, many = (
        piece_bytes(case, Piece(kind="experts", layer=0, stage=0), NOTHING, Load(5.0, 10.0, local_experts=n)).transient
        for n in (100.0, 101.0)
    )
    assert many - few == 2 * count.expert_parameters(case.model)


def test_what_latent_attention_keeps_by_hand(make_case):
    """Input, norm, residual; both narrow vectors before and after their norms; q, k of 192, v and output of 128.

    4 bytes per head and norm, and the tables of the rotary embedding, one for each of 64 places.
    """
    case = make_case(1, model="deepseek-v3")
    each = 3 * 7168 + 2 * (1536 + 512) + 128 * (192 + 192 + 128 + 128)
    dense, moe = (Piece(kind="attention", layer=layer, stage=0) for layer in (0, 3))
    kept = piece_bytes(case, dense, NOTHING, Load(10.0, 0.0)).alive
    assert kept == 10 * (2 * each + 4 * 128 + 4) + 4 * 64 * 64
    routing = 2 * (7168 + 256 + 8 * 2 + 1) + 8 * 3 * 8 + 4
    shared = 2 * (7168 + 4 * 2048)
    assert piece_bytes(case, moe, NOTHING, Load(10.0, 0.0)).alive == kept + 10 * (routing + shared)


def test_windows_and_biases_keep_nothing_more(make_case):
    case = make_case(1, model="gpt-oss-20b")
    plain = make_case(1, model="gpt-oss-20b", attention=GroupedQuery(heads=64, kv_heads=8, head_dim=64), ffn_bias=False)
    for layer in (0, 1):
        piece = Piece(kind="attention", layer=layer, stage=0)
        kept = [piece_bytes(each, piece, NOTHING, Load(64.0, 0.0)).alive for each in (case, plain)]
        assert kept[0] == kept[1]


def test_without_a_gate_two_inner_values_are_kept(make_case):
    case, bare = make_case(1), make_case(1, gated=False)
    piece = Piece(kind="experts", layer=0, stage=0)
    gated, plain = (piece_bytes(c, piece, NOTHING, Load(5.0, 10.0)).alive for c in (case, bare))
    assert gated - plain == 2 * 10 * 2 * case.model.expert_width


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tensor_parallel_ranks_hold_what_cannot_be_divided_whole(make_case, tp):
    """Narrow projections, norms and router on every rank; the other matrices once over all ranks."""
    attention = Latent(heads=4, q_lora_rank=24, kv_lora_rank=16, nope_head_dim=16, rope_head_dim=8, v_head_dim=16)
    case = make_case(tp, attention=attention, memory=WEIGHTS)
    model, layers = case.model, case.model.num_layers
    whole = layers * (64 * 24 + 64 * 24 + 24 + 16 + 2 * 64 + 64 * 8) + 64
    experts = layers * model.experts * count.expert_parameters(model)
    (held,) = static(case, Colocated(tp=tp))
    divided = count.total_parameters(model) - whole - experts
    assert held == pytest.approx(2 * (whole + divided / tp + experts))


PIPER = {
    "model": "piper-1.7t",
    "vocab": 1,
    "seq_len": 4096,
    "global_batch": 32 * 32,
    "memory": Memory(bytes_per_parameter=16.0, optimizer_shards=1, activations="piper"),
}
FULL = Recompute(attention="full", ffn="full")


def piper_stage(i, *, kept):
    """Bytes of stage i: 16 per parameter (4 d^2 + 2 E d f / EP), and 32 - i micro-batches of one sequence.

    Kept: attention 12 s d, experts 2 s k (2 f + d). Recomputed: the input of attention 2 s d, and both once.
    """
    s, d, f, k, experts, ep = 4096, 5120, 20480, 2, 256, 32
    static = 16 * (4 * d * d + 2 * experts * d * f / ep)
    whole = 12 * s * d + 2 * s * k * (2 * f + d)
    return static, static + ((32 - i) * whole if kept else (32 - i) * 2 * s * d + whole)


def test_the_largest_model_of_piper_as_its_terms_say(make_case):
    """Piper (arXiv 2605.05049), 1.7 T parameters on PP 32 x EP 32: stage 0 decides whether it fits into 64 GB.

    28.5 GB static, 60.7 GB with what 32 micro-batches keep, 30.9 GB where all is computed again.
    """
    case, layout = make_case(1024, **PIPER), Colocated(pp=32, dp=32, ep=32)
    held = static(case, layout)
    assert held[0] / 1e9 == pytest.approx(28.5, rel=0.01)
    for recompute, gigabytes in ((NOTHING, 60.7), (FULL, 30.9)):
        alive = activations(case, layout, "1f1b", recompute)
        assert (held[0] + alive[0]) / 1e9 == pytest.approx(gigabytes, rel=0.01)
        for i in (0, 1, 16, 30):
            fixed, peak = piper_stage(i, kept=recompute is NOTHING)
            assert held[i] == pytest.approx(fixed, rel=0.01)
            assert alive[i] == pytest.approx(peak - fixed, rel=1e-9)


@pytest.mark.parametrize("gated", [True, False])
def test_terms_of_piper_by_piece(make_case, gated):
    """Elements by rule: attention 6 d per token; experts m f + d per row, kept, its row, or nothing; the ends none."""
    case = make_case(1, gated=gated, memory=Memory(activations="piper"))
    d, inner, load = case.model.hidden, (2 + gated) * case.model.expert_width, Load(5.0, 10.0)

    def found(kind, recompute):
        return piece_bytes(case, Piece(kind=kind, layer=0, stage=0), recompute, load)

    assert found("attention", NOTHING) == (12 * 5 * d, 0)
    assert found("attention", Recompute(attention="full")) == (2 * 5 * d, 12 * 5 * d)
    whole = 2 * 10 * (inner + d)
    for rule, kept in {"none": (whole, 0), "experts": (2 * 10 * d, whole), "full": (0, whole)}.items():
        assert found("experts", Recompute(ffn=rule)) == kept
    assert {found(kind, FULL) for kind in ("embedding", "join", "head")} == {(0, 0)}


def test_terms_of_piper_are_less_than_what_is_kept(make_case):
    """Row buffers, gradients and the ends are not in them."""
    layout = Colocated(pp=2, dp=2, ep=2)
    kept, piper = (
        activations(make_case(4, memory=Memory(activations=name)), layout, "1f1b") for name in ("kept", "piper")
    )
    assert all(less < more for less, more in zip(piper, kept, strict=True))


def test_shared_experts_of_their_own_width_keep_their_own_inner_values(make_case):
    """Four inner values per token and unit of width, by two experts or one twice as wide; and their sum's residual."""
    piece, load = Piece(kind="attention", layer=3, stage=0), Load(64.0, 0.0)
    fields = ({}, {"shared_experts": 2}, {"shared_experts": 1, "shared_width": 192}, {"shared_experts": 3})
    none, two, wide, three = (piece_bytes(make_case(1, **changes), piece, NOTHING, load).alive for changes in fields)
    assert two == wide
    assert three - two == 2 * 64 * 4 * 96
    assert two - none == 2 * 64 * (2 * 4 * 96 + make_case(1).model.hidden)


def test_a_layer_between_those_with_experts_keeps_nothing_of_a_router(make_case):
    case = make_case(1, moe_every=2, dense_width=48)
    dense, moe = (
        piece_bytes(case, Piece(kind="attention", layer=n, stage=0), NOTHING, Load(64.0, 0.0)) for n in (0, 1)
    )
    gates, places = 2 * (2 * case.model.top_k + 1), 3 * 8 * case.model.top_k
    assert moe.alive - dense.alive == 64 * (2 * (64 + case.model.experts) + gates + places + 4)
