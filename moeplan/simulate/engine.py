"""The simulation of a program: one SimPy process per stream, integer nanoseconds, integer operation ids."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import index
from typing import Any

from simpy import Environment, Event
from simpy.events import Timeout

from moeplan.errors import ScheduleError, SpecError
from moeplan.program import Program, Stream, receives, text_of
from moeplan.simulate.instant import Turns
from moeplan.simulate.links import Demand, Links
from moeplan.simulate.timeline import Timeline


def run(
    program: Program,
    duration_ns: Sequence[int],
    *,
    transfers: Mapping[int, Demand] | None = None,
    exclusive: Iterable[Sequence[int]] = (),
) -> Timeline:
    """Start and end of each operation.

    An operation starts when its dependencies and the one before it on its stream have ended, and takes `duration_ns`.
    Nothing else is shared, so that the ends are those of `longest_path`, except:

    * operations in `transfers` take their demand's latency, then its work at their max-min fair share of the links;
    * streams of one group of `exclusive` (`compute_streams`) run one operation at a time, in the order in which
      operations become ready, smaller ids first.

    ScheduleError where operations wait for each other, SpecError where the durations are not the program's.
    """
    simulation = _Simulation(program, duration_ns, transfers or {}, exclusive)
    simulation.run()
    simulation.check()
    return Timeline(simulation.start_ns, simulation.end_ns)


def compute_streams(program: Program) -> list[tuple[int, ...]]:
    """The streams of each position that share its compute: forward and backward, by number."""
    found: dict[int, tuple[int, ...]] = {}
    for number, stream in enumerate(program.streams):
        if stream.name in ("forward", "backward"):
            found[stream.position] = (*found.get(stream.position, ()), number)
    return list(found.values())


class _Simulation:
    """The state of one simulation; lives for one call of `run`."""

    def __init__(
        self,
        program: Program,
        duration_ns: Sequence[int],
        transfers: Mapping[int, Demand],
        exclusive: Iterable[Sequence[int]],
    ) -> None:
        self.program, self.transfers = program, transfers
        self.duration_ns = list(map(index, duration_ns))
        if len(self.duration_ns) != len(program.ops) or min(self.duration_ns, default=0) < 0:
            raise SpecError(
                f"simulation: {len(program.ops)} durations of at least 0 ns are due, one per operation, not"
                f" {len(self.duration_ns)} from {min(self.duration_ns, default=0)} ns"
            )
        self.env = Environment()
        self.links = Links(self.env)
        self.start_ns = [-1] * len(program.ops)
        self.end_ns = [-1] * len(program.ops)
        self.awaited: dict[int, Event] = {}
        """Events of operations that some stream waits for; past operations have none."""
        self.arrivals = _instant_receives(program, self.duration_ns)
        """Receives that take no time, with the send at whose end they end: they need no process."""
        turns = {stream: turn for group in exclusive for turn in (Turns(self.env),) for stream in group}
        for number, stream in enumerate(program.streams):
            if stream.ops and stream.ops[0] not in self.arrivals:
                self.env.process(self.walk(stream, turns.get(number)))

    def run(self) -> None:
        """Let all streams run to their ends."""
        self.env.run()
        for receive, send in self.arrivals.items():
            self.start_ns[receive] = self.end_ns[receive] = self.end_ns[send]

    def walk(self, stream: Stream, turns: Turns | None) -> Generator[Event, Any, None]:
        """The process of one stream: its operations one after another."""
        env, ops, end_ns, awaited, transfers = self.env, self.program.ops, self.end_ns, self.awaited, self.transfers
        arrivals = self.arrivals
        for number in stream.ops:
            for dep in ops[number].deps:
                dep = arrivals.get(dep, dep)
                if end_ns[dep] < 0:
                    yield awaited.get(dep) or awaited.setdefault(dep, Event(env))
            if turns is not None:
                yield turns.take(number)
            self.start_ns[number] = int(env.now)
            if number in transfers:
                yield from self.carry(transfers[number])
            elif self.duration_ns[number]:
                yield Timeout(env, self.duration_ns[number])
            end_ns[number] = int(env.now)
            if number in awaited:
                awaited.pop(number).succeed()
            if turns is not None:
                turns.leave()

    def carry(self, demand: Demand) -> Generator[Event, Any, None]:
        """The part of a stream's process that is one transfer over shared links."""
        if demand.latency_ns:
            yield Timeout(self.env, demand.latency_ns)
        if demand.work_ns:
            yield self.links.carry(demand)

    def check(self) -> None:
        """ScheduleError unless every operation has ended: SimPy ends without a word when all processes wait."""
        stuck = [(s, next(n for n in s.ops if self.end_ns[n] < 0)) for s in self.program.streams if self.is_stuck(s)]
        if stuck:
            left = sum(end < 0 for end in self.end_ns)
            waits = "; ".join(f"position {s.position}, {s.name}: {self.waits(n)}" for s, n in stuck)
            raise ScheduleError(f"simulation: {left} operations never ran: {waits}")

    def is_stuck(self, stream: Stream) -> bool:
        """Whether `stream` has not come to its end."""
        return bool(stream.ops) and self.end_ns[stream.ops[-1]] < 0

    def waits(self, number: int) -> str:
        """`number` and the operations it waits for, by name."""
        ops = self.program.ops
        missing = [text_of(ops[dep]) for dep in ops[number].deps if self.end_ns[dep] < 0]
        return f"{text_of(ops[number])} waits for {', '.join(missing)}"


def _instant_receives(program: Program, duration_ns: Sequence[int]) -> dict[int, int]:
    """Receives on streams where each takes no time and waits for its send alone; a queue's sends end in its order."""
    found: dict[int, int] = {}
    for stream in program.streams:
        if receives(stream) and not any(duration_ns[n] for n in stream.ops):
            sends = [program.ops[n].deps for n in stream.ops]
            if all(len(deps) == 1 for deps in sends) and len({program.ops[deps[0]].stream for deps in sends}) == 1:
                found.update((n, deps[0]) for n, deps in zip(stream.ops, sends, strict=True))
    return found
