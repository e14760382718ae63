"""Lowering: properties of the programs of plans of every family, and small programs by hand."""

import pytest

from moeplan.draft import draft
from moeplan.errors import ScheduleError
from moeplan.layout import Colocated, Disaggregated, Edge, Piece, Piper, Position, Recompute, StageGraph
from moeplan.overlaps import plain
from moeplan.plan import program_of, steps_of
from moeplan.program import (
    COMPUTE_KINDS,
    OP_KINDS,
    Stream,
    is_receive,
    longest_path,
    lower,
    order,
    previous,
    text_of,
)
from moeplan.schedule import from_text
from moeplan.spec.case import Case
from moeplan.spec.cluster import ClusterSpec, Gpu, Node, Tree
from moeplan.spec.model import GroupedQuery, ModelSpec
from moeplan.spec.workload import Workload
from moeplan.units import Bytes, BytesPerS, FlopPerS, Seconds

MODEL = ModelSpec(
    name="tiny",
    num_layers=5,
    hidden=32,
    vocab=64,
    attention=GroupedQuery(heads=4, kv_heads=2, head_dim=8),
    experts=8,
    top_k=2,
    expert_width=16,
    dense_layers=1,
    dense_width=48,
    shared_experts=1,
)
LAYOUTS = (
    (Colocated(pp=2, ep=2, dp=4), 8, "1f1b"),
    (Colocated(pp=1, ep=2, dp=2), 2, "1f1b"),
    (Colocated(pp=2, vpp=2, ep=2, dp=2), 4, "interleaved"),
    (Piper(pp=4, ep=2), 8, "gpipe"),
    (Disaggregated(pairs=2, attention_gpus=2, ffn_gpus=4), 6, "af-pipe"),
    (Disaggregated(pairs=1, attention_gpus=4, ffn_gpus=4), 8, "af-pipe"),
    (Disaggregated(pairs=1, attention_gpus=3, ffn_gpus=1, dp=2, depth=2), 8, "interleaved"),
)
RECOMPUTES = tuple(Recompute(attention=a, ffn=f) for a in ("none", "full") for f in ("none", "experts", "full"))


def cluster(gpus):
    return ClusterSpec(
        name="one node",
        nodes=1,
        gpu=Gpu(
            name="x", hbm_bytes=Bytes(2e9), hbm_bytes_per_s=BytesPerS(1e9), peak_flop_per_s={"bf16": FlopPerS(1e9)}
        ),
        node=Node(
            gpus=gpus,
            nics=0,
            link_bytes_per_s=BytesPerS(1e9),
            link_latency_s=Seconds(1e-6),
            nic_bytes_per_s=BytesPerS(1e9),
            nic_latency_s=Seconds(1e-6),
        ),
        network=Tree(nodes_per_leaf=1, uplink_bytes_per_s=BytesPerS(1e9), hop_latency_s=Seconds(1e-6)),
    )


CASES = [
    pytest.param((*case, recompute), id=f"{case[0].__class__.__name__}-{case[2]}-{recompute.attention}-{recompute.ffn}")
    for case in LAYOUTS
    for recompute in RECOMPUTES
    if not (isinstance(case[0], Disaggregated) and recompute.ffn == "full")
]


@pytest.fixture(scope="module", params=CASES)
def plan(request):
    layout, gpus, schedule, recompute = request.param
    case = Case(model=MODEL, cluster=cluster(gpus), workload=Workload(seq_len=8, global_batch=11))
    return draft(case, layout, schedule=schedule, recompute=recompute)


def named(program):
    """Operations by (kind, phase, piece, micro-batch), receives and the synchronisation left out."""
    return {
        (op.kind, op.phase, op.piece, op.microbatch): op.id
        for op in program.ops
        if op.phase != "S" and not is_receive(program, op)
    }


def test_ids_streams_and_walks_hold_every_operation_once(plan):
    program = program_of(plan)
    assert [op.id for op in program.ops] == list(range(len(program.ops)))
    assert sorted(n for stream in program.streams for n in stream.ops) == list(range(len(program.ops)))
    walked = sorted(n for walk in program.walks for n in walk)
    assert walked == [op.id for op in program.ops if not is_receive(program, op)]
    for number, stream in enumerate(program.streams):
        assert all(program.ops[n].stream == number and program.ops[n].position == stream.position for n in stream.ops)
    for position, walk in enumerate(program.walks):
        assert all(program.ops[n].position == position for n in walk)
    for op in program.ops:
        assert op.kind in OP_KINDS
        assert all(0 <= dep < len(program.ops) and dep != op.id for dep in op.deps)


def test_an_order_exists_and_follows_dependencies_and_streams(plan):
    program = program_of(plan)
    place = {number: i for i, number in enumerate(order(program))}
    assert len(place) == len(program.ops)
    for op, before in zip(program.ops, previous(program), strict=True):
        assert all(place[dep] < place[op.id] for dep in (*op.deps, *([before] if before >= 0 else [])))


def test_walks_can_be_followed_one_operation_at_a_time(plan):
    """A position that starts its operations in walk order and waits for each to end never waits for ever."""
    program = program_of(plan)
    walks = [Stream(position, "walk", walk) for position, walk in enumerate(program.walks)]
    receives = [stream for stream in program.streams if stream.name.startswith("receive ")]
    one_by_one = program._replace(streams=(*walks, *receives))
    assert len(order(one_by_one)) == len(program.ops)


def test_every_transfer_has_one_send_and_one_receive(plan):
    program = program_of(plan)
    receives = [op for op in program.ops if is_receive(program, op)]
    for op in receives:
        (dep,) = op.deps
        send = program.ops[dep]
        assert (send.kind, send.phase, send.piece, send.microbatch) == (op.kind, op.phase, op.piece, op.microbatch)
        assert (send.peers, op.peers) == ((op.position,), (send.position,))
    sends = [s.ops for s in program.streams if s.name.startswith("send ")]
    assert sorted(n for ops in sends for n in ops) == sorted(op.deps[0] for op in receives)


def test_receives_of_a_queue_stand_in_the_order_of_its_sends(plan):
    program = program_of(plan)
    queues = {(s.position, s.name): s.ops for s in program.streams}
    for (position, name), ops in queues.items():
        if name.startswith("receive "):
            _, kind, source = name.split()
            assert [program.ops[n].deps[0] for n in ops] == list(queues[(int(source), f"send {kind} {position}")])


def test_every_edge_that_moves_rows_moves_them_once_per_microbatch_and_pass(plan):
    program, graph = program_of(plan), plan.graph
    again = plan.recompute.ffn == "full"
    expected = []
    for m in range(plan.batch.microbatches):
        for number, edge in enumerate(graph.edges):
            if edge.kind != "local":
                repeated = again and graph.pieces[number + 1].kind == "experts"
                expected += [(edge.kind, phase, number, m) for phase in ("F", "B", *(("R",) if repeated else ()))]
    found = [
        (op.kind, op.phase, op.piece, op.microbatch)
        for op in program.ops
        if op.phase != "S" and op.kind not in COMPUTE_KINDS and not is_receive(program, op)
    ]
    assert sorted(found) == sorted(expected)


def test_recomputed_pieces_run_once_more_per_microbatch(plan):
    program, pieces, recompute = program_of(plan), plan.graph.pieces, plan.recompute
    repeated = {
        number
        for number, piece in enumerate(pieces)
        if (piece.kind == "attention" and recompute.attention == "full")
        or (piece.kind in ("experts", "dense") and recompute.ffn != "none")
    }
    expected = sorted((number, m) for number in repeated for m in range(plan.batch.microbatches))
    assert sorted((op.piece, op.microbatch) for op in program.ops if op.kind == "F" and op.phase == "R") == expected


def test_microbatches_pass_the_chain_forwards_then_backwards(plan):
    program = program_of(plan)
    end, ids = longest_path(program, [1] * len(program.ops)), named(program)
    last = len(plan.graph.pieces) - 1
    for m in range(plan.batch.microbatches):
        forward = [end[ids[("F", "F", piece, m)]] for piece in range(last + 1)]
        backward = [end[ids[("B", "B", piece, m)]] for piece in range(last, -1, -1)]
        assert forward + backward == sorted(set(forward + backward))
        for number, edge in enumerate(plan.graph.edges):
            if edge.kind != "local":
                assert forward[number] < end[ids[(edge.kind, "F", number, m)]] < forward[number + 1]
                up = backward[last - number - 1]
                assert up < end[ids[(edge.kind, "B", number, m)]] < backward[last - number]
        for piece in range(last + 1):
            again = ids.get(("F", "R", piece, m))
            assert again is None or forward[piece] < end[again] < backward[last - piece]


def test_gradients_are_summed_after_the_last_backward_and_before_the_optimizer(plan):
    program = program_of(plan)
    end = longest_path(program, [1] * len(program.ops))
    for position in range(len(plan.graph.positions)):
        sync = [op for op in program.ops if op.position == position and op.phase == "S"]
        backwards = [end[op.id] for op in program.ops if op.position == position and op.kind == "B"]
        kinds = [op.kind for op in sync]
        assert kinds.count("optimizer") == 1
        assert all(end[op.id] > max(backwards) for op in sync)
        summed = [
            number
            for number, replica in enumerate(plan.graph.replicas)
            if position in replica.positions and any(len(group) > 1 for group in replica.groups)
        ]
        gathered = [number for number in summed if plan.graph.replicas[number].sharded]
        assert [op.piece for op in sync] == [*summed, -1, *gathered]


def test_the_program_follows_the_edited_text(plan):
    """Micro-batches 0 and 1 change places at every position: a legal order, and another program."""
    trade = {0: 1, 1: 0}
    steps = steps_of(plan)
    edited = tuple(
        tuple(tuple(a._replace(microbatch=trade.get(a.microbatch, a.microbatch)) for a in step) for step in row)
        for row in steps
    )
    options = {"microbatches": plan.batch.microbatches, "overlap": plan.overlap, "recompute": plan.recompute}
    before, after = (lower(plan.graph, rows, **options) for rows in (steps, edited))
    assert before != after
    assert sorted(map(text_of, before.ops)) == sorted(map(text_of, after.ops))
    for was, now in zip(before.ops, after.ops, strict=True):
        assert now == was._replace(microbatch=trade.get(was.microbatch, was.microbatch))


def stages(*kinds, positions):
    """A chain with one attention piece per stage; `kinds` of the edges, `positions` of the stages."""
    return StageGraph(
        positions=tuple(
            Position(name=str(i), ranks=((i,),), spread="sequence") for i in range(max(map(max, positions)) + 1)
        ),
        stages=positions,
        pieces=tuple(Piece(kind="attention", layer=s, stage=s) for s in range(len(positions))),
        edges=tuple(Edge(kind=kind) for kind in kinds),
        replicas=(),
    )


def by_text(graph, microbatches, *texts, recompute="none"):
    steps = tuple(from_text(text, where="row") for text in texts)
    return lower(
        graph,
        steps,
        microbatches=microbatches,
        overlap=plain.make(),
        recompute=Recompute(attention=recompute),
    )


def test_names_of_operations():
    program = by_text(stages("send", positions=((0,), (1,))), 1, "0F0 0B0", "1F0 1B0", recompute="full")
    names = {text_of(op) for op in program.ops}
    assert names == {"0F0", "0B0", "1F0", "1B0", "F.R 0:0", "F.R 1:0", "send.F 0:0", "send.B 0:0", "optimizer.S -1:-1"}


def test_an_illegal_order_is_refused():
    with pytest.raises(ScheduleError, match="position 1, step 0: 1B0 waits for 1F0"):
        by_text(stages("send", positions=((0,), (1,))), 1, "0F0 0B0", "1B0 1F0")


def test_without_pairs_each_step_follows_the_one_before():
    program = by_text(stages(positions=((0,),)), 2, "0F0 0F1 0B1 0B0")
    end = longest_path(program, [1] * len(program.ops))
    assert [end[n] for n in program.walks[0]] == [1, 2, 3, 4, 5]


def test_a_pair_runs_at_once_and_the_next_step_waits_for_both():
    program = by_text(stages(positions=((0,),)), 4, "0F0 0F1 0F2&0B0 0B1 0F3&0B2 0B3")
    duration = [{"0F2": 9, "0B0": 2, "0F3": 2, "0B2": 9}.get(text_of(op), 1) for op in program.ops]
    end = dict(zip(map(text_of, program.ops), longest_path(program, duration), strict=True))
    assert (end["0F2"], end["0B0"], end["0B1"]) == (11, 4, 12)
    assert (end["0F3"], end["0B2"], end["0B3"]) == (14, 21, 22)


def test_receives_keep_the_order_of_the_sender_where_the_consumer_takes_another():
    program = by_text(stages("send", positions=((0,), (1,))), 2, "0F0 0F1 0B0 0B1", "1F1 1F0 1B1 1B0")
    queues = {s.name: [program.ops[n].microbatch for n in s.ops] for s in program.streams}
    assert queues["receive send.F 0"] == queues["send send.F 1"] == [0, 1]
    assert queues["receive send.B 1"] == queues["send send.B 0"] == [1, 0]
    assert len(order(program)) == len(program.ops)


def test_split_backwards_send_after_the_input_gradient():
    program = by_text(stages("send", positions=((0,), (1,))), 1, "0F0 0I0 0W0", "1F0 1I0 1W0")
    end = dict(zip(map(text_of, program.ops), longest_path(program, [1] * len(program.ops)), strict=True))
    assert end["0I0"] == end["1I0"] + 3
    assert end["1W0"] == end["1I0"] + 1
    assert end["0W0"] == end["0I0"] + 1


def test_copies_of_a_stage_send_to_the_home_of_each_microbatch():
    program = by_text(stages("send", positions=((0, 1), (1, 0))), 2, "0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1")
    sends = {
        text_of(op): (op.position, *op.peers) for op in program.ops if program.streams[op.stream].name[:4] == "send"
    }
    assert sends == {"send.F 0:0": (0, 1), "send.F 0:1": (1, 0), "send.B 0:0": (1, 0), "send.B 0:1": (0, 1)}


def test_longest_path_by_hand():
    program = by_text(stages("send", positions=((0,), (1,))), 1, "0F0 0B0", "1F0 1B0")
    length = {"0F0": 3, "send.F 0:0": 2, "1F0": 5, "1B0": 7, "send.B 0:0": 4, "0B0": 6}
    duration = [0 if is_receive(program, op) else length.get(text_of(op), 0) for op in program.ops]
    assert max(longest_path(program, duration)) == sum(length.values())


def test_operations_that_wait_for_each_other_have_no_order():
    program = by_text(stages(positions=((0,),)), 1, "0F0 0B0")
    crossed = program._replace(streams=(Stream(0, "forward", (1, 0)), program.streams[-1]))
    with pytest.raises(ScheduleError, match="3 operations wait for each other, 0F0 among them"):
        order(crossed)
