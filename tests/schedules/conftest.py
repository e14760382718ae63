"""Orders lowered over a chain of stages, for closed forms of their makespans."""

import pytest

from moeplan.layout import Edge, Piece, Position, Recompute, StageGraph
from moeplan.overlaps import plain
from moeplan.program import is_receive, longest_path, lower


def lowered(steps, stages, microbatches, transfer="send"):
    """The program of `steps`: one piece per stage, stage s at position s % positions, attention and FFN in turn."""
    positions = len(steps)
    graph = StageGraph(
        positions=tuple(Position(name=str(i), ranks=((i,),), spread="sequence") for i in range(positions)),
        stages=tuple((s % positions,) for s in range(stages)),
        pieces=tuple(Piece(kind=("attention", "experts")[s % 2], layer=s // 2, stage=s) for s in range(stages)),
        edges=(Edge(kind="local" if positions == 1 else transfer),) * (stages - 1),
        replicas=(),
    )
    return lower(graph, steps, microbatches=microbatches, overlap=plain.make(), recompute=Recompute())


def times(program, forward=1, backward=2, transfer=0):
    """Nanoseconds of each operation; the sender's half of a transfer takes all of its time."""
    length = {"F": forward, "B": backward, "optimizer": 0}
    return [length.get(op.kind, 0 if is_receive(program, op) else transfer) for op in program.ops]


@pytest.fixture(scope="session")
def simulated():
    """(program, start_ns, end_ns) of an order under unit times."""

    def run(steps, stages, microbatches, **lengths):
        program = lowered(steps, stages, microbatches)
        duration = times(program, **lengths)
        end = longest_path(program, duration)
        return program, [e - d for e, d in zip(end, duration, strict=True)], end

    return run
