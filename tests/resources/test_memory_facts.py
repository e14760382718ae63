"""Memory per rank and stage against published cases, and the buckets that the report names."""

import pytest
from msgspec import structs

from moeplan.cost.durations import loads
from moeplan.draft import dealt, draft
from moeplan.estimator import GIB, estimate
from moeplan.layout import Colocated, Piece, Recompute
from moeplan.layouts import stages
from moeplan.resources import parameters as count
from moeplan.resources.memory import (
    beside,
    held_parameters,
    host_bytes,
    piece_bytes,
    process_groups,
    state_bytes,
    static_bytes,
)
from moeplan.resources.work import Load
from moeplan.spec.case import Case
from moeplan.spec.execution import Execution
from moeplan.spec.model import GroupedQuery
from moeplan.spec.shipped import load_calibration, load_cluster, load_model
from moeplan.spec.workload import Memory, Workload

NOTHING = Recompute()


def held(case, layout, position):
    """(dense parameters with embedding, parameters of experts) of one rank."""
    graph = stages(case, layout)
    found = {True: 0.0, False: 0.0}
    for replica in graph.replicas:
        if position in replica.positions:
            found[replica.parameters == "experts"] += held_parameters(case, graph, replica, position)
    return found[False], found[True]


def static(case, layout):
    graph = stages(case, layout)
    return [static_bytes(case, graph, position) for position in range(len(graph.positions))]


def test_the_fullest_stage_of_deepseek_v3_is_the_first(make_case):
    """NVIDIA-NeMo/Megatron-Bridge on GitHub, pull request 5077: PP 16, EP 64, 1,024 GPUs, layers 4, 14 x 4, 1."""
    case = make_case(1024, model="deepseek-v3")
    layout = Colocated(pp=16, ep=64, dp=64, split=(4, *[4] * 14, 1))
    parameters = [sum(held(case, layout, position)) for position in (0, 1, 15)]
    assert parameters == pytest.approx([3_086_287_104, 1_636_631_552, 1_335_844_096], rel=1e-3)
    sizes = static(case, layout)
    assert [sizes[i] / 1e9 for i in (0, 1, 15)] == pytest.approx([21.18, 18.45, 10.35], rel=1e-3)
    assert max(sizes) == sizes[0]


def test_experts_of_mixtral_are_divided_by_their_own_degrees(make_case):
    """NVIDIA/Megatron-LM on GitHub, issue 4050: TP 2, PP 4, EP 4, ETP 1 on 64 GPUs; TP 1, PP 4, EP 8 on 32."""
    case = make_case(64, model="mixtral-8x7b")
    layout = Colocated(tp=2, pp=4, ep=4, dp=8)
    assert held(case, layout, 0) == (233_635_840, 2_818_572_288)
    assert static(case, layout)[0] == 27_119_419_392
    sizes = static(make_case(32, model="mixtral-8x7b"), Colocated(pp=4, ep=8, dp=8))
    assert [size / 1e9 for size in sizes] == pytest.approx([28.87, 27.89, 27.89, 28.87], abs=0.005)


@pytest.mark.parametrize(("gpus", "offload", "gigabytes"), [(64, 0.0, 66.12), (32, 0.0, 132.24), (32, 1.0, 44.08)])
def test_state_of_235_billion_parameters(make_case, gpus, offload, gigabytes):
    """THUDM/slime on GitHub, issue 280: 18 bytes per parameter, 6 with the optimizer in the host's memory."""
    memory = Memory(zero=0, offload=offload)
    case = make_case(gpus, model="qwen3-235b-a22b", memory=memory)
    sizes = static(case, Colocated(ep=gpus, dp=gpus, pp=1))
    whole = (18 - 12 * offload) * count.total_parameters(case.model) / gpus
    assert whole / 1e9 == pytest.approx(gigabytes, abs=0.02)
    assert sizes[0] > whole
    graph = stages(case, Colocated(ep=gpus, dp=gpus))
    assert (host_bytes(case, graph, 0) > 0) == (offload > 0)


def test_embedding_and_head_are_held_once(make_case):
    """vllm-project/vllm on GitHub, issue 36904: 311,164,928 parameters each of Qwen3-30B-A3B, 5.22 GiB with state."""
    case = make_case(8, model="qwen3-30b-a3b", memory=Memory(zero=0))
    assert count.embedding_parameters(case.model) == count.head_parameters(case.model) == 311_164_928
    sizes = static(case, Colocated(pp=4, dp=2, ep=2))
    assert (sizes[0] - sizes[1]) / GIB == pytest.approx(5.22, abs=0.005)
    assert (sizes[3] - sizes[2]) / GIB == pytest.approx(5.22, abs=0.005)
    assert sizes[1] == sizes[2]


def test_two_experts_on_two_ranks_keep_twice_the_rows_of_a_dense_ffn(make_case):
    """deepspeedai/DeepSpeed on GitHub, issue 3535: top-2 of 2 experts halves the weights, not the activations."""
    case = make_case(2, experts=2, top_k=2)
    layout = Colocated(dp=2, ep=2)
    plan = draft(case, layout, schedule="1f1b")
    load = loads(case, plan.graph, plan.batch, 0)[0]
    assert load.rows == 2 * load.tokens
    assert held(case, layout, 0)[1] == held(case, Colocated(dp=2), 0)[1] / 2


@pytest.mark.parametrize(("degrees", "groups"), [({}, ()), ({"tp": 2, "dp": 4, "ep": 2}, ("tp", "dp", "ep", "edp"))])
def test_communicators_grow_with_the_groups_of_a_rank(make_case, degrees, groups):
    layout = Colocated(**degrees)
    case = make_case(max(1, layout.tp * layout.dp))
    graph = stages(case, layout)
    assert process_groups(graph, 0) == groups
    assert beside(case, graph, 0, 0.0).communicators == len(groups) * case.memory.communicator
    free = structs.replace(case, memory=Memory(communicator=0))
    assert beside(free, graph, 0, 0.0).communicators == 0


def test_zero_divides_optimizer_then_gradients_then_weights(make_case):
    found = []
    for zero in range(4):
        case = make_case(8, memory=Memory(zero=zero))
        found.append(state_bytes(case, stages(case, Colocated(dp=8)), 0))
    whole = count.total_parameters(case.model)
    assert [s.optimizer / whole for s in found] == pytest.approx([8, 1, 1, 1])
    assert [s.gradients / whole for s in found] == pytest.approx([4, 4, 0.5, 0.5])
    assert [s.weights / whole for s in found] == pytest.approx([2, 2, 2, 0.25])
    assert [s.gathered > 0 for s in found] == [False, False, False, True]


def test_fused_activations_are_those_of_the_selective_recomputation_paper(make_case):
    """34 s b h per layer with dropout, 32 without (arXiv 2205.05198, section 4); 4 bytes per head beside."""
    sizes = {"dense_layers": 32, "num_layers": 32, "gated": False, "dense_width": 4 * 64, "experts": 0}
    for dropout, each in ((True, 34), (False, 32)):
        case = structs.replace(
            make_case(1, memory=Memory(dropout=dropout), **sizes), execution=Execution(kernels="fused")
        )
        heads = case.model.attention.heads
        widths = case.model.attention.head_dim * (2 * heads + 2 * case.model.attention.kv_heads)
        kept = sum(
            piece_bytes(case, Piece(kind=kind, layer=0, stage=0), NOTHING, Load(10.0, 0.0)).alive
            for kind in ("attention", "dense")
        )
        assert kept == 10 * ((each - 8) * 64 + 2 * widths + 4 * heads)


@pytest.mark.parametrize(("whole", "each"), [(True, 10 + 24 / 4), (False, 34 / 4)])
def test_without_sequence_parallelism_a_rank_keeps_all_of_norms_residuals_and_masks(whole, each, make_case):
    """(10 + 24 / t) s b h per layer instead of 34 s b h / t (arXiv 2205.05198, equations 2 and 4, without scores)."""
    sizes = {"dense_layers": 32, "num_layers": 32, "gated": False, "dense_width": 4 * 64, "experts": 0}
    attention = GroupedQuery(heads=8, kv_heads=8, head_dim=8)
    case = structs.replace(
        make_case(4, memory=Memory(dropout=True), attention=attention, **sizes), execution=Execution(kernels="fused")
    )
    load = Load(100.0, 0.0, tp=4, whole=whole)
    kept = sum(
        piece_bytes(case, Piece(kind=kind, layer=0, stage=0), NOTHING, load).alive for kind in ("attention", "dense")
    )
    assert kept == pytest.approx(100 * (each * 64 + 4 * 8 / 4))


def test_a_setting_says_whether_tensor_parallel_ranks_divide_their_rows(make_case):
    """Less is divided: more activations, longer norms, whole rows to the next stage; collectives are the same."""
    layout = Colocated(tp=4, pp=2)
    split, whole = (
        structs.replace(
            make_case(8, experts=0, dense_layers=4, dense_width=256), execution=Execution(sequence_parallel=one)
        )
        for one in (True, False)
    )
    told = [estimate(case, load_calibration("h800"), layout) for case in (split, whole)]
    less, more = ([stage.bytes.activations for stage in one.stages] for one in told)
    assert all(a < b for a, b in zip(less, more, strict=True))
    less, more = ({(d.kind, d.phase, d.pieces): d for d in one.plan.durations} for one in told)
    for key, before in less.items():
        assert more[key].communication_s == before.communication_s
        assert more[key].seconds > before.seconds if key[0] == "send" else more[key].seconds >= before.seconds


def test_capacity_pads_what_experts_keep(make_case):
    piece, kept = Piece(kind="experts", layer=0, stage=0), []
    for capacity in (0.0, 1.5):
        case = structs.replace(make_case(1), execution=Execution(capacity=capacity))
        graph = stages(case, Colocated())
        (load,) = loads(case, graph, dealt(case, Colocated(), graph), 0)
        kept.append(piece_bytes(case, piece, NOTHING, load).alive)
    assert kept[1] == 1.5 * kept[0]


def test_an_estimate_tells_the_device_beside_its_tensors(make_case):
    case = make_case(8)
    told = estimate(case, load_calibration("h800"), Colocated(dp=8, ep=4))
    row = told.to_dict()["positions"][0]
    parts = ("peak_gib", "reserve_gib", "communicators_gib", "context_gib")
    assert row["device_gib"] == pytest.approx(sum(row[part] for part in parts))
    assert row["communicators_gib"] * GIB == pytest.approx(3 * 616e6)


def test_deepseek_of_16_billion_with_four_sequences_is_at_the_limit_of_an_h100(make_case):
    """pytorch/torchtitan on GitHub, issue 1789: 8 GPUs, sequences of 4,096, EP 8, local batch 4 ran out of memory."""
    case = make_case(8, model="deepseek-v2-lite", seq_len=4096, global_batch=32)
    told = estimate(case, load_calibration("h100"), Colocated(dp=8, ep=8, micro_batch=4))
    assert sum(told.stages[0].bytes) > 0.95 * case.cluster.gpu.hbm_bytes * case.memory.usable


def test_a_measured_run_of_qwen3_on_16_gpus(make_case):
    """modelscope/ms-swift, examples/megatron: PP 2, EP 8, sequences of 8,192, all recomputed: 60 GiB were measured."""
    case = make_case(16, model="qwen3-30b-a3b", seq_len=8192, global_batch=16)
    layout, rule = Colocated(pp=2, ep=8, dp=8), Recompute(attention="full", ffn="full")
    assert [size / 1e9 for size in static(case, layout)] == pytest.approx([38.39, 38.39], abs=0.01)
    told = estimate(case, load_calibration("h800"), layout, recompute=rule)
    peak = max(sum(stage.bytes) for stage in told.stages) / GIB
    assert 35.8 < peak < 80
    assert peak == pytest.approx(60, abs=15)


@pytest.mark.parametrize("kernels", ["eager", "fused"])
def test_a_gate_of_the_output_keeps_itself_and_the_product(kernels):
    """Qwen3-Next's full attention: 16 heads of 256, twice in two bytes."""
    model, piece = load_model("qwen3-next-80b-a3b"), Piece(kind="attention", layer=3, stage=0)
    kept = []
    for gated in (False, True):
        attention = structs.replace(model.attention, output_gate=gated)
        case = Case(
            model=structs.replace(model, attention=attention),
            cluster=load_cluster("laptop"),
            workload=Workload(seq_len=64, global_batch=1),
            execution=Execution(kernels=kernels),
        )
        kept.append(piece_bytes(case, piece, NOTHING, Load(64.0, 640.0)).alive)
    assert kept[1] - kept[0] == 64 * 2 * 2 * 16 * 256


def test_weights_in_8_bits_are_one_of_the_two_copies(make_case):
    """Transformer Engine has one by rows and one by columns: an 8-bit weight is the first of them itself."""
    held = []
    for weight in (2.0, 1.0):
        case = structs.replace(
            make_case(1, memory=Memory(weight_bytes=weight)), execution=Execution(linear="fp8", kernels="fused")
        )
        held.append(state_bytes(case, stages(case, Colocated()), 0).workspaces)
    plain = structs.replace(make_case(1), execution=Execution(kernels="fused"))
    placeholders = state_bytes(plain, stages(plain, Colocated()), 0).workspaces
    assert held[0] - placeholders == 2 * (held[1] - placeholders) > 0


def test_a_module_for_a_further_token_keeps_a_layer_and_what_it_joins(make_case):
    """On the last stage alone, for every micro-batch that is alive there: one, in 1F1B."""
    layout, kept = Colocated(pp=2, dp=2, ep=2), []
    for trained in (False, True):
        case = make_case(4, mtp_layers=1, seq_len=1024, memory=Memory(mtp=trained))
        told = estimate(case, load_calibration("h800"), layout)
        kept.append([stage.bytes.activations + stage.bytes.routing for stage in told.stages])
        load = loads(case, told.plan.graph, told.plan.batch, 0)[1]
    layer = sum(
        piece_bytes(case, Piece(kind=kind, layer=1, stage=1), NOTHING, load).alive for kind in ("attention", "experts")
    )
    assert kept[1][0] == kept[0][0]
    assert kept[1][1] - kept[0][1] == pytest.approx(layer + 2 * 2 * 64 * 1024)
