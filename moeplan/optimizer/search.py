"""The search over mesh layouts: bounds first, memory next, the simulator for what survives.

Candidates are visited in the order of their lower bounds; as soon as a bound exceeds the best simulated step of the
family, the rest cannot win. A layout that two families hold is evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import product
from typing import NamedTuple

from msgspec import structs

from moeplan import collector
from moeplan.cost.durations import NOTHING_AGAIN, Machine, predict
from moeplan.draft import shape_of, spelled
from moeplan.layout import Layout, Mesh
from moeplan.mesh import mesh_of
from moeplan.optimizer.bound import step_bound_s
from moeplan.optimizer.candidate import MOST_ACTIONS, RECOMPUTE, Candidate, degrees, key_of, schedules_of
from moeplan.optimizer.evaluate import evaluate, fitted, usable_bytes
from moeplan.optimizer.ledger import Ledger, Miss, Pruned
from moeplan.optimizer.relaxation import Relaxed
from moeplan.optimizer.remedy import Mend, is_layout, mend
from moeplan.optimizer.room import Room
from moeplan.optimizer.screen import Screen
from moeplan.plan import Duration, Plan, signed
from moeplan.schedule import Steps
from moeplan.schedules import make
from moeplan.spec.case import Case

GAP = 0.03
"""A candidate whose bound is less than this share below the best simulated step is not simulated; the plan says so."""


class Found(NamedTuple):
    """What the search of one family found."""

    family: str
    best: Plan | None
    pruned: tuple[Pruned, ...]
    simulated: int
    allocations: str = ""
    """How the integer programs ended, where the family needs them: `9 optimal`."""
    relaxed: Relaxed | None = None
    """The balanced split at the efficiencies of the best layout, where the family has two sides and something fits."""
    uncopied: Plan | None = None
    """Where the best has copies: the best of one copy, which is the mesh of Piper's paper (PP x EP = GPUs)."""
    mend: Mend | None = None
    """Of the layouts that do not fit and may be faster than the best the one that misses by least, and its remedies."""
    excluded: str = ""
    """Why no layout of the family has the degrees that were set; empty where some have."""


class Search:
    """One search; remembers evaluated candidates, so that families share them."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case, self.machine = case, machine
        self.screen = Screen(case, machine)
        self.room = Room(case)
        self.steps = cache(make)
        self.durations: dict[tuple[object, ...], tuple[Duration, ...]] = {}
        """By layout and algorithms: else they depend on neither schedule nor recompute."""
        self.bounds: dict[tuple[object, ...], tuple[float, Plan]] = {}
        self.plans: dict[tuple[object, ...], Plan] = {}

    def meshes(self, family: str, layouts: Iterable[Mesh]) -> Found:
        """The best mesh of `layouts`."""
        limit = usable_bytes(self.case)
        ledger = Ledger(self.case.model)
        entries = []
        for layout in layouts:
            mesh = mesh_of(layout)
            shards = mesh.dp * mesh.micro_batch
            if 2 * mesh.pp * mesh.vpp * -(-self.case.workload.global_batch // shards) > MOST_ACTIONS:
                leanest = Candidate(layout, schedules_of(layout)[0], RECOMPUTE[-1])
                ledger.add(f"more than {MOST_ACTIONS:,} actions in a step", leanest)
                continue
            short = self.screen.static_bytes(mesh) - limit
            if short > 0:
                leanest = Candidate(layout, schedules_of(layout)[0], RECOMPUTE[-1])
                ledger.add("parameters alone exceed the usable HBM", leanest, short)
                continue
            for rule, schedule in product(RECOMPUTE, schedules_of(layout)):
                candidate = Candidate(layout, schedule, rule)
                short = self.screen.least_bytes(mesh, rule, schedule) - limit
                bound_s = self.screen.step_s(mesh, rule)
                if short > 0:
                    ledger.add("activations exceed the usable HBM", candidate, short, bound_s)
                else:
                    entries.append((bound_s, candidate))
        return self.best_first(family, entries, ledger)

    def best_first(
        self,
        family: str,
        entries: Iterable[tuple[float, Candidate]],
        ledger: Ledger,
        least_bytes: Callable[[Candidate], float] = lambda candidate: 0.0,
    ) -> Found:
        """The fastest of `entries`, each with a lower bound of its step; `least_bytes` is one of its memory.

        The entry with the least bound is looked at next: first its memory and the longest path through its schedule,
        which gives a better bound, then its simulation. The search ends where no bound is more than GAP below the best
        simulated step. What was simulated for another family is known from the start.
        """
        queue = [(bound_s, key_of(c), 0, c) for bound_s, c in entries]
        heapify(queue)
        known = [self.evaluated(candidate) for _, key, _, candidate in queue if key in self.plans]
        fitting = [plan for plan in known if max(plan.predictions.peak_hbm_bytes) <= usable_bytes(self.case)]
        best = min(fitting, key=lambda plan: plan.predictions.step_s, default=None)
        simulated = 0
        while queue and (best is None or queue[0][0] < best.predictions.step_s * (1 - GAP)):
            bound_s, key, level, candidate = heappop(queue)
            if level:
                plan = self.evaluated(candidate)
                simulated += 1
                if best is None or plan.predictions.step_s < best.predictions.step_s:
                    best = plan
                continue
            limit = usable_bytes(self.case)
            short = least_bytes(candidate) - limit
            short = short if short > 0 else self.room.peak_bytes(candidate) - limit
            if short <= 0:
                heappush(queue, (max(bound_s, self.bounded(candidate)), key, 1, candidate))
                continue
            ledger.add(self.reason(candidate), candidate, short, bound_s)
        for _, _, _, candidate in queue:
            ledger.add(f"cannot be {GAP:.0%} faster than the best", candidate)
        limit_s = best.predictions.step_s if best is not None else None
        nearest = ledger.nearest(lambda miss: self.measured(miss, limit_s), limit_s)
        mended = mend(self.case, nearest, self.bounded, limit_s) if nearest is not None else None
        return Found(family, best, ledger.entries(), simulated, mend=mended)

    def reason(self, candidate: Candidate) -> str:
        """What is too large of `candidate`, whose parameters fit."""
        named = self.case.execution.exchange
        if named != "fastest" and self.room.peak_bytes(candidate, spare=False) <= usable_bytes(self.case):
            return f"buffers of exchange {named} exceed the usable HBM"
        return "activations exceed the usable HBM"

    def measured(self, miss: Miss, faster_than_s: float | None) -> Miss | None:
        """`miss` with what it is short by and the longest path through its schedule, where these were lower bounds.

        None where it is not faster than asked; as it is where nobody could build it.
        """
        if not is_layout(self.case, miss.candidate):
            return miss
        bound_s = miss.bound_s if faster_than_s is None else self.bounded(miss.candidate)
        if faster_than_s is not None and bound_s >= faster_than_s:
            return None
        short_bytes = self.room.peak_bytes(miss.candidate) - usable_bytes(self.case)
        return Miss(miss.candidate, short_bytes, bound_s)

    def bounded(self, candidate: Candidate) -> float:
        """Seconds of the longest path through the schedule of `candidate`."""
        key = key_of(candidate)
        if key not in self.bounds:
            plan = fitted(self.room.outlined(candidate), self.machine, self.room.order(candidate))
            algorithms = tuple(edge.algorithm for edge in plan.graph.edges)
            again = plan.recompute if self.case.memory.mtp else NOTHING_AGAIN
            like = (degrees(candidate.layout), type(candidate.layout), algorithms, again)
            if like not in self.durations:
                self.durations[like] = predict(self.case, plan.graph, plan.batch, self.machine, again)
            plan = structs.replace(plan, durations=self.durations[like])
            self.bounds[key] = (step_bound_s(plan, self.ordered(plan), plan.durations), plan)
        return self.bounds[key][0]

    def evaluated(self, candidate: Candidate) -> Plan:
        """The plan of `candidate`, simulated once whichever families hold its degrees."""
        key = key_of(candidate)
        if key not in self.plans:
            with collector.paused():
                plan = self.bounds[key][1]
                steps = self.ordered(plan)
                self.plans[key] = evaluate(spelled(plan, steps), steps)
        return _under(candidate.layout, self.plans[key])

    def ordered(self, plan: Plan) -> Steps:
        """The steps that the schedule of `plan` makes; plans of equal shape share them."""
        return self.steps(plan.schedule.name, shape_of(plan.layout, plan.graph, plan.batch.microbatches))


def _under(layout: Layout, plan: Plan) -> Plan:
    """`plan` under the name of the family of `layout`, which has its degrees."""
    return signed(structs.replace(plan, layout=layout))
