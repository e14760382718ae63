"""Programs to simulate: a chain of stages under any schedule, and operations by hand."""

import random

import pytest

from moeplan.layout import Edge, Piece, Position, Recompute, StageGraph
from moeplan.overlaps import plain
from moeplan.program import COMPUTE_KINDS, Op, Program, Stream, is_receive, lower
from moeplan.schedule import Shape
from moeplan.schedules import make


def chain(positions, stages):
    """One attention piece per stage, stage s at position s % positions, rows sent from each to the next."""
    kinds = ["local" if positions == 1 else "send"] * (stages - 1)
    return StageGraph(
        positions=tuple(Position(name=f"stage {i}", ranks=((i,),), spread="sequence") for i in range(positions)),
        stages=tuple((s % positions,) for s in range(stages)),
        pieces=tuple(Piece(kind="attention", layer=s, stage=s) for s in range(stages)),
        edges=tuple(Edge(kind=kind) for kind in kinds),
        replicas=(),
    )


def program(name, positions, stages, microbatches, recompute="none"):
    return lower(
        chain(positions, stages),
        make(name, Shape(positions, stages, microbatches)),
        microbatches=microbatches,
        overlap=plain.make(),
        recompute=Recompute(attention=recompute),
    )


def durations(lowered, seed, longest=50):
    """Random nanoseconds, zero among them."""
    dice = random.Random(seed)
    return [dice.randrange(longest) for _ in lowered.ops]


def by_hand(*streams):
    """A program of streams (position, name, [(id, kind, deps, peers), ...])."""
    ops = {}
    for number, (position, _, rows) in enumerate(streams):
        for op, kind, deps, peers in rows:
            ops[op] = Op(op, position, number, kind, "F", op, 0, peers, deps)
    shape = tuple(Stream(position, name, tuple(row[0] for row in rows)) for position, name, rows in streams)
    return Program(tuple(ops[i] for i in range(len(ops))), shape, ())


def unit_times(lowered, forward=1, backward=2, transfer=0):
    """Nanoseconds by kind; the sender's half of a transfer takes all of its time."""

    def one(op):
        if op.kind in COMPUTE_KINDS:
            return forward if op.kind == "F" else backward
        return transfer if op.peers and not is_receive(lowered, op) and op.phase != "S" else 0

    return [one(op) for op in lowered.ops]


@pytest.fixture(scope="session")
def programs():
    """The functions above, by name."""

    class Programs:
        chain = staticmethod(chain)
        program = staticmethod(program)
        durations = staticmethod(durations)
        by_hand = staticmethod(by_hand)
        unit_times = staticmethod(unit_times)

    return Programs
