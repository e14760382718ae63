"""What a program is: operations on streams with their dependencies, lowered once and read by simulator and executor.

`lower` knows no schedule and no family by name. Per position it walks the schedule's steps and expands each action into
the operations of its pieces and edges; a transfer between two positions becomes a send at one and a receive at the
other. Receives of one queue (source position, phase, kind) stand in the sender's order, so that waits cannot cross.
Operations carry no times: durations travel beside the program, one per operation id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan import collector
from moeplan.errors import ScheduleError, SpecError
from moeplan.layout import Piece, Recompute, StageGraph, home, pieces_of
from moeplan.overlap import Overlap, check_overlap, streams_of
from moeplan.schedule import Action, Steps, check

OP_KINDS = (
    *("F", "B", "I", "W"),
    *("dispatch", "combine", "m2n", "n2m", "send", "receive"),
    *("all_reduce", "all_gather", "reduce_scatter", "optimizer", "migrate", "checkpoint"),
)
COMPUTE_KINDS = ("F", "B", "I", "W")


class Op(NamedTuple):
    """One operation of one position."""

    id: int
    position: int
    stream: int
    """Number in `Program.streams`."""
    kind: str
    """One of OP_KINDS: F, B, I, W of a piece, or the kind of the edge or collective."""
    phase: str
    """F forward, R recomputed forward, B backward, S synchronisation after the last backward."""
    piece: int
    """Piece number; for a transfer the piece before the edge, for a collective of phase S the replica; -1 for none."""
    microbatch: int
    """-1 for an operation of the whole step."""
    peers: tuple[int, ...]
    """Other positions that take part."""
    deps: tuple[int, ...]
    """Operations that end before this one starts, besides the one before it on its stream."""


class Stream(NamedTuple):
    """Operations of one position that run one after another."""

    position: int
    name: str
    """forward, backward, collective, sync, or the name of a queue to or from another position."""
    ops: tuple[int, ...]


class Program(NamedTuple):
    """All operations of one step."""

    ops: tuple[Op, ...]
    streams: tuple[Stream, ...]
    walks: tuple[tuple[int, ...], ...]
    """[position]: the order in which a position starts its operations, receives left out: they are pulled."""


def text_of(op: Op) -> str:
    """A short name for logs, traces and tests: `12F3`, `m2n.B 7:0`."""
    if op.kind in COMPUTE_KINDS and op.phase != "R":
        return f"{op.piece}{op.kind}{op.microbatch}"
    return f"{op.kind}.{op.phase} {op.piece}:{op.microbatch}"


def receives(stream: Stream) -> bool:
    """Whether `stream` is a queue from another position."""
    return stream.name.startswith("receive ")


def is_receive(program: Program, op: Op) -> bool:
    """Whether `op` is the receiving half of a transfer between two positions."""
    return receives(program.streams[op.stream])


def lower(graph: StageGraph, steps: Steps, *, microbatches: int, overlap: Overlap, recompute: Recompute) -> Program:
    """The program of one step: `steps` checked, then expanded; ScheduleError where they are not a legal order."""
    check(steps, graph.stages, microbatches)
    _check_rules(graph, overlap, recompute)
    lowering = _Lowering(graph, overlap, recompute)
    with collector.paused():
        for position, row in enumerate(steps):
            for step in row:
                lowering.step(position, step)
        lowering.synchronise(len(steps))
        return lowering.program(len(steps))


def _check_rules(graph: StageGraph, overlap: Overlap, recompute: Recompute) -> None:
    """SpecError where the overlap misses an item, or FFN rows would have to be fetched again from other ranks."""
    inside = [edge.kind for edge in graph.edges if edge.kind in ("dispatch", "combine")]
    check_overlap(overlap, sorted({piece.kind for piece in graph.pieces} | set(inside)))
    if recompute.ffn == "full" and any(edge.kind == "m2n" for edge in graph.edges):
        raise SpecError("recompute: ffn full would dispatch again from other ranks; ffn may be none or experts here")


class _Lowering:
    """The state of one lowering; lives for one call of `lower`."""

    def __init__(self, graph: StageGraph, overlap: Overlap, recompute: Recompute) -> None:
        self.graph, self.recompute = graph, recompute
        self.stream = streams_of(overlap)
        self.stage_pieces = [pieces_of(graph, s) for s in range(len(graph.stages))]
        self.here = 0
        """Position of the step that is being expanded."""
        self.facts: list[tuple[int, int, str, str, int, int, tuple[int, ...]]] = []
        """Of each operation all but its id and its dependencies, in the order of `Op`."""
        self.deps: list[list[int]] = []
        self.streams: dict[tuple[int, str], tuple[int, list[int]]] = {}
        """Number and operations of each stream."""
        self.walks: dict[int, list[int]] = {}
        self.done: dict[tuple[str, int, int], int] = {}
        """(phase, piece, micro-batch) -> operation that computed it."""
        self.sent: dict[tuple[str, int, int], int] = {}
        """(phase, edge, micro-batch) -> operation that completes the transfer on the sender's side."""
        self.arrivals: list[tuple[int, tuple[str, int, int]]] = []
        """Compute operations that wait for a transfer."""
        self.last_compute: dict[int, list[int]] = {}
        """Last operation inside the position of each action of the step before: the next step starts after them."""
        self.last_backward: dict[int, int] = {}

    def add(  # noqa: PLR0913
        self,
        position: int,
        stream: str,
        kind: str,
        phase: str,
        piece: int,
        microbatch: int,
        peers: tuple[int, ...] = (),
        deps: Sequence[int] = (),
    ) -> int:
        """A new operation at the end of its stream, and of the walk unless it is a receive."""
        number = len(self.facts)
        key = (position, stream)
        found = self.streams.get(key)
        if found is None:
            found = self.streams[key] = (len(self.streams), [])
        found[1].append(number)
        self.facts.append((position, found[0], kind, phase, piece, microbatch, peers))
        self.deps.append(list(deps))
        if not stream.startswith("receive "):
            self.walks.setdefault(position, []).append(number)
        return number

    def step(self, position: int, step: Sequence[Action]) -> None:
        """One action, or the two of an overlapped pair, which both follow the step before and not each other."""
        self.here = position
        before, self.last_compute[position] = self.last_compute.get(position, []), []
        for action in step:
            first = len(self.facts)
            self.forward(action) if action.kind == "F" else self.backward(action)
            mine = [n for n in range(first, len(self.facts)) if not self.facts[n][-1]]
            self.deps[mine[0]].extend(before)
            self.last_compute[position].append(mine[-1])
            if action.kind != "F":
                self.last_backward[position] = mine[-1]

    def compute(self, action: Action, piece: int, phase: str, deps: Sequence[int] = ()) -> int:
        """An operation of one piece."""
        kind = "F" if phase in "FR" else action.kind
        stream = self.stream[(self.graph.pieces[piece].kind, phase)]
        number = self.add(self.here, stream, kind, phase, piece, action.microbatch, deps=deps)
        self.done[(kind + phase, piece, action.microbatch)] = number
        return number

    def transfer(self, action: Action, edge: int, phase: str, after: int) -> int:
        """The rows of `edge` (F, R) or their gradient (B) leave `action`'s position once `after` has ended."""
        towards = edge + 1 if phase != "B" else edge
        here, stage = self.here, self.graph.pieces[towards].stage
        there = here if stage == action.stage else home(self.graph, stage, action.microbatch)
        kind = self.graph.edges[edge].kind
        key = (phase, edge, action.microbatch)
        if here == there:
            stream = self.stream[(kind, phase)]
            self.sent[key] = self.add(here, stream, kind, phase, edge, action.microbatch, deps=[after])
            return self.sent[key]
        name = f"{kind}.{phase}"
        sent = self.add(here, f"send {name} {there}", kind, phase, edge, action.microbatch, (there,), [after])
        self.sent[key] = self.add(
            there, f"receive {name} {here}", kind, phase, edge, action.microbatch, (here,), [sent]
        )
        return sent

    def forward(self, action: Action) -> None:
        """F of each piece of the stage in chain order, with the transfers that leave them."""
        number = -1
        for piece in self.stage_pieces[action.stage]:
            arrived = piece > 0 and self.graph.edges[piece - 1].kind != "local"
            number = self.compute(action, piece, "F", deps=[number] if number >= 0 and not arrived else ())
            if arrived:
                self.arrivals.append((number, ("F", piece - 1, action.microbatch)))
            if piece < len(self.graph.edges) and self.graph.edges[piece].kind != "local":
                self.transfer(action, piece, "F", number)

    def backward(self, action: Action) -> None:
        """B (or I) of each piece in reverse, after its recomputed forward where it is not kept; W moves no rows."""
        for piece in reversed(self.stage_pieces[action.stage]):
            if action.kind == "W":
                self.compute(action, piece, "B", deps=[self.done[("IB", piece, action.microbatch)]])
                continue
            deps = [self.done[("FF", piece, action.microbatch)]]
            again = self.again(action, piece, self.gradient_inside(action, piece))
            if again is not None:
                deps.append(again)
            after = piece < len(self.graph.edges)
            if after and self.graph.edges[piece].kind == "local" and self.graph.pieces[piece + 1].stage == action.stage:
                deps.append(self.done[(action.kind + "B", piece + 1, action.microbatch)])
            number = self.compute(action, piece, "B", deps=deps)
            if after and self.graph.edges[piece].kind != "local":
                self.arrivals.append((number, ("B", piece, action.microbatch)))
            if piece > 0 and self.graph.edges[piece - 1].kind != "local":
                self.transfer(action, piece - 1, "B", number)

    def again(self, action: Action, piece: int, after: Sequence[int]) -> int | None:
        """The recomputed forward of `piece`, which follows `after`; None where its activations are kept."""
        kept = keeps(self.graph.pieces[piece], self.recompute)
        if kept == "activations":
            return None
        done = self.done.get(("FR", piece, action.microbatch))
        if done is not None:
            return done
        deps = list(after)
        if kept == "nothing":
            source = self.again(action, piece - 1, after)
            if source is None:
                source = self.done[("FF", piece - 1, action.microbatch)]
            if self.graph.edges[piece - 1].kind == "local":
                deps.append(source)
            else:
                deps.append(self.transfer(action, piece - 1, "R", source))
        return self.compute(action, piece, "R", deps=deps)

    def gradient_inside(self, action: Action, piece: int) -> list[int]:
        """The operation that brings the gradient of `piece` from inside the position: nothing is recomputed before it.

        A gradient from another position is not waited for: recomputing fills the time until it comes.
        """
        if piece + 1 == len(self.graph.pieces) or self.graph.pieces[piece + 1].stage != action.stage:
            return []
        if self.graph.edges[piece].kind == "local":
            return [self.done[(action.kind + "B", piece + 1, action.microbatch)]]
        return [self.sent[("B", piece, action.microbatch)]]

    def synchronise(self, positions: int) -> None:
        """After the last backward: gradients summed, optimizer, sharded parameters gathered."""
        for stage in ("reduce", "optimizer", "gather"):
            for position in range(positions):
                if stage == "optimizer":
                    self.add(position, "sync", "optimizer", "S", -1, -1, deps=[self.last_backward[position]])
                    continue
                for number, replica in enumerate(self.graph.replicas):
                    if position not in replica.positions or all(len(group) == 1 for group in replica.groups):
                        continue
                    if stage == "gather" and not replica.sharded:
                        continue
                    kind = "all_gather" if stage == "gather" else "reduce_scatter" if replica.sharded else "all_reduce"
                    peers = tuple(p for p in replica.positions if p != position)
                    deps = [self.last_backward[p] for p in replica.positions] if stage == "reduce" else ()
                    self.add(position, "sync", kind, "S", number, -1, peers, deps)

    def program(self, positions: int) -> Program:
        """The finished program: compute operations linked to the transfers they wait for."""
        for number, key in self.arrivals:
            self.deps[number].append(self.sent[key])
        rows = enumerate(zip(self.facts, self.deps, strict=True))
        ops = tuple([Op._make((number, *facts, tuple(deps))) for number, (facts, deps) in rows])
        streams = tuple(Stream(p, name, tuple(ops_)) for (p, name), (_, ops_) in self.streams.items())
        return Program(ops, streams, tuple(tuple(self.walks.get(p, ())) for p in range(positions)))


def keeps(piece: Piece, recompute: Recompute) -> str:
    """What a piece keeps from its forward for its backward: activations, its input, or nothing."""
    return kind_keeps(piece.kind, recompute)


def kind_keeps(kind: str, recompute: Recompute) -> str:
    """As `keeps`, of all pieces of `kind`."""
    if kind == "attention":
        return "input" if recompute.attention == "full" else "activations"
    if kind in ("experts", "dense"):
        return {"none": "activations", "experts": "input", "full": "nothing"}[recompute.ffn]
    return "activations"


def order(program: Program) -> list[int]:
    """Operation ids so that each follows its dependencies and its stream; ScheduleError on a cycle."""
    before = previous(program)
    waiting = [len(op.deps) + (before[op.id] >= 0) for op in program.ops]
    after: list[list[int]] = [[] for _ in program.ops]
    for op in program.ops:
        for dep in op.deps:
            after[dep].append(op.id)
        if before[op.id] >= 0:
            after[before[op.id]].append(op.id)
    ready = [op.id for op in program.ops if waiting[op.id] == 0]
    for number in ready:
        for later in after[number]:
            waiting[later] -= 1
            if waiting[later] == 0:
                ready.append(later)
    if len(ready) < len(program.ops):
        stuck = next(op for op in program.ops if waiting[op.id] > 0)
        raise ScheduleError(
            f"program: {len(program.ops) - len(ready)} operations wait for each other, {text_of(stuck)} among them"
        )
    return ready


def previous(program: Program) -> list[int]:
    """The operation before each one on its stream, -1 for the first."""
    result = [-1] * len(program.ops)
    for stream in program.streams:
        for earlier, later in zip(stream.ops, stream.ops[1:], strict=False):
            result[later] = earlier
    return result


def longest_path(program: Program, duration_ns: Sequence[int]) -> list[int]:
    """End of each operation in nanoseconds if nothing were shared: the lower bound of any simulation.

    end(op) = duration(op) + max over its dependencies and the operation before it on its stream of their ends.
    """
    before = previous(program)
    end = [0] * len(program.ops)
    ops = program.ops
    for number in order(program):
        start = end[before[number]] if before[number] >= 0 else 0
        for dep in ops[number].deps:
            if end[dep] > start:
                start = end[dep]
        end[number] = start + duration_ns[number]
    return end
