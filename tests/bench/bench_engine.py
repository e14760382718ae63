"""Operations per second of the engine: python tests/bench/bench_engine.py"""

import random
import time

from moeplan.layout import Edge, Piece, Position, Recompute, StageGraph
from moeplan.overlaps import plain
from moeplan.program import COMPUTE_KINDS, is_receive, longest_path, lower
from moeplan.schedule import Shape
from moeplan.schedules import make
from moeplan.simulate import Demand, compute_streams, run

LAYERS, POSITIONS, MICROBATCHES, DEPTH = 94, 4, 32, 2.0


def af_pipe():
    """The program of 94 layers on two attention and two FFN groups, attention and experts recomputed."""
    stages = 2 * LAYERS
    graph = StageGraph(
        positions=tuple(Position(name=str(i), ranks=((i,),), spread="sequence") for i in range(POSITIONS)),
        stages=tuple((s % POSITIONS,) for s in range(stages)),
        pieces=tuple(Piece(kind=("attention", "experts")[s % 2], layer=s // 2, stage=s) for s in range(stages)),
        edges=tuple(Edge(kind=("m2n", "n2m")[s % 2]) for s in range(stages - 1)),
        replicas=(),
    )
    steps = make("af-pipe", Shape(POSITIONS, stages, MICROBATCHES, depth=DEPTH))
    recompute = Recompute(attention="full", ffn="experts")
    return lower(graph, steps, microbatches=MICROBATCHES, overlap=plain.make(), recompute=recompute)


def rate(title, operations, work):
    """Print the best of three."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    print(f"{title:28} {operations / min(seconds):10,.0f} operations/s")


def main():
    program, dice = af_pipe(), random.Random(0)
    sends = [op for op in program.ops if op.peers and not is_receive(program, op)]
    duration_ns = [dice.randrange(1000, 3000) if op.kind in COMPUTE_KINDS else 0 for op in program.ops]
    for op in sends:
        duration_ns[op.id] = dice.randrange(500, 1500)
    transfers = {
        op.id: Demand(100, duration_ns[op.id] - 100, (op.position, POSITIONS + op.peers[0]), (1.0, 1.0)) for op in sends
    }
    count = len(program.ops)
    print(f"{count:,} operations, {len(sends):,} transfers")
    rate("longest path", count, lambda: longest_path(program, duration_ns))
    rate("engine", count, lambda: run(program, duration_ns))
    rate("engine, exclusive compute", count, lambda: run(program, duration_ns, exclusive=compute_streams(program)))
    rate("engine, shared links", count, lambda: run(program, duration_ns, transfers=transfers))


if __name__ == "__main__":
    main()
