"""The search over mesh layouts: bounds first, memory next, the simulator for what survives.

Candidates are visited in the order of their lower bounds; as soon as a bound exceeds the best simulated step of the
family, the rest cannot win. A layout that two families hold is evaluated once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import product
from typing import NamedTuple

from msgspec import structs

from moeplan import collector
from moeplan.cost.durations import Machine, predict
from moeplan.draft import draft_with_steps, written
from moeplan.layout import Disaggregated, Layout, Mesh, Recompute
from moeplan.mesh import mesh_of
from moeplan.optimize.bound import step_bound_s
from moeplan.optimize.evaluate import evaluate, footprint, usable_bytes
from moeplan.optimize.relaxation import Relaxed
from moeplan.optimize.screen import RECOMPUTE, Screen
from moeplan.plan import Duration, Plan, signed
from moeplan.schedule import Steps
from moeplan.spec.case import Case

GAP = 0.03
"""A candidate whose bound is less than this share below the best simulated step is not simulated; the plan says so."""


MOST_ACTIONS = 1_000_000
"""Orders longer than this are not simulated: it would take minutes each."""


class Candidate(NamedTuple):
    """One point of the search."""

    layout: Layout
    schedule: str
    recompute: Recompute


class Miss(NamedTuple):
    """A layout that does not fit."""

    layout: Layout
    short_bytes: float
    """By how many bytes, at least, its fullest rank exceeds the usable HBM."""


class Pruned(NamedTuple):
    """A class of layouts that was not simulated, with one of them."""

    reason: str
    layouts: int
    witness: str


class Found(NamedTuple):
    """What the search of one family found."""

    family: str
    best: Plan | None
    nearest: Miss | None
    """Where nothing fits: the layout that misses by least."""
    pruned: tuple[Pruned, ...]
    simulated: int
    allocations: str = ""
    """How the integer programs ended, where the family needs them: `9 optimal`."""
    relaxed: Relaxed | None = None
    """The balanced split at the efficiencies of the best layout, where the family has two sides and something fits."""


class Search:
    """One search; remembers evaluated candidates, so that families share them."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case, self.machine = case, machine
        self.screen = Screen(case, machine)
        self.order = cache(written)
        self.durations: dict[tuple[object, ...], tuple[Duration, ...]] = {}
        """By layout: they depend on neither schedule nor recompute."""
        self.drafts: dict[tuple[object, ...], tuple[Plan, Steps]] = {}
        self.bounds: dict[tuple[object, ...], tuple[float, Plan]] = {}
        self.plans: dict[tuple[object, ...], Plan] = {}

    def meshes(self, family: str, layouts: Iterable[Mesh]) -> Found:
        """The best mesh of `layouts`."""
        limit = usable_bytes(self.case)
        ledger = Ledger()
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
                if short > 0:
                    ledger.add("activations exceed the usable HBM", candidate, short)
                    continue
                entries.append((self.screen.step_s(mesh, rule), candidate))
        return self.best_first(family, entries, ledger)

    def best_first(self, family: str, entries: Iterable[tuple[float, Candidate]], ledger: Ledger) -> Found:
        """The fastest of `entries`, each with a lower bound of its step.

        The entry with the least bound is looked at next: first its memory and the longest path through its schedule,
        which gives a better bound, then its simulation. The search ends where no bound is more than GAP below the best
        simulated step.
        """
        queue = [(bound_s, key_of(c), 0, c) for bound_s, c in entries]
        heapify(queue)
        best: Plan | None = None
        simulated = 0
        while queue and (best is None or queue[0][0] < best.predictions.step_s * (1 - GAP)):
            bound_s, key, level, candidate = heappop(queue)
            if level:
                plan = self.evaluated(candidate)
                simulated += 1
                if best is None or plan.predictions.step_s < best.predictions.step_s:
                    best = plan
                continue
            short = max(footprint(*self.drafted(candidate)).peak) - usable_bytes(self.case)
            if short <= 0:
                heappush(queue, (max(bound_s, self.bounded(candidate)), key, 1, candidate))
                continue
            ledger.add("activations exceed the usable HBM", candidate, short)
        for _, _, _, candidate in queue:
            ledger.add(f"cannot be {GAP:.0%} faster than the best", candidate)
        return Found(family, best, ledger.nearest, ledger.entries(), simulated)

    def drafted(self, candidate: Candidate) -> tuple[Plan, Steps]:
        """The plan of `candidate` without predictions, and its steps; candidates with one layout share both."""
        key = (degrees(candidate.layout), type(candidate.layout), candidate.schedule)
        if key not in self.drafts:
            self.drafts[key] = draft_with_steps(
                self.case, candidate.layout, schedule=candidate.schedule, order=self.order
            )
        plan, steps = self.drafts[key]
        return structs.replace(plan, recompute=candidate.recompute), steps

    def bounded(self, candidate: Candidate) -> float:
        """Seconds of the longest path through the schedule of `candidate`."""
        key = key_of(candidate)
        if key not in self.bounds:
            plan, steps = self.drafted(candidate)
            like = (degrees(candidate.layout), type(candidate.layout))
            if like not in self.durations:
                self.durations[like] = predict(self.case, plan.graph, plan.batch, self.machine)
            plan = structs.replace(plan, durations=self.durations[like])
            self.bounds[key] = (step_bound_s(plan, steps, plan.durations), plan)
        return self.bounds[key][0]

    def evaluated(self, candidate: Candidate) -> Plan:
        """The plan of `candidate`, simulated once whichever families hold its degrees."""
        key = key_of(candidate)
        if key not in self.plans:
            with collector.paused():
                self.plans[key] = evaluate(self.bounds[key][1], self.drafted(candidate)[1])
        return _under(candidate.layout, self.plans[key])


def _under(layout: Layout, plan: Plan) -> Plan:
    """`plan` under the name of the family of `layout`, which has its degrees."""
    return signed(structs.replace(plan, layout=layout))


class Ledger:
    """Counts what was pruned, by reason, with the first of each as a witness."""

    def __init__(self) -> None:
        self.reasons: dict[str, tuple[int, str]] = {}
        self.nearest: Miss | None = None
        """Of the layouts that do not fit, the one that misses by least."""

    def add(self, reason: str, candidate: Candidate, short_bytes: float = 0.0) -> None:
        """One more candidate pruned for `reason`; `short_bytes` where it does not fit."""
        if short_bytes > 0 and (self.nearest is None or short_bytes < self.nearest.short_bytes):
            self.nearest = Miss(candidate.layout, short_bytes)
        count, witness = self.reasons.get(reason, (0, ""))
        witness = witness or tell(candidate)
        self.reasons[reason] = (count + 1, witness)

    def entries(self) -> tuple[Pruned, ...]:
        """All reasons, most frequent first."""
        rows = [Pruned(reason, count, witness) for reason, (count, witness) in self.reasons.items()]
        return tuple(sorted(rows, key=lambda row: (-row.layouts, row.reason)))


def degrees(layout: Layout) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """The degrees of `layout` without its family, for comparison and order; a mesh in those of the colocated one."""
    one = layout if isinstance(layout, Disaggregated) else mesh_of(layout)
    return tuple((name, getattr(one, name)) for name in one.__struct_fields__)


def key_of(candidate: Candidate) -> tuple[object, ...]:
    """What decides the cost of `candidate`, whatever its family; of equal costs the smallest key wins."""
    recompute = candidate.recompute
    return (RECOMPUTE.index(recompute), degrees(candidate.layout), candidate.schedule)


def describe(layout: Layout) -> str:
    """`pp 8 ep 16 dp 16`: the degrees that are not 1, and always the GPUs of both sides, in one line; NICs follow."""
    parts = []
    for name in layout.__struct_fields__:
        value = getattr(layout, name)
        if name == "split":
            parts += [f"split {'-'.join(map(str, value))}"] if value else []
        elif (value > 1 and "nics" not in name) or name in ("attention_gpus", "ffn_gpus"):
            parts.append(f"{name.replace('_', '-')} {int(value)}")
    return " ".join(parts) or "one rank"


def tell(candidate: Candidate) -> str:
    """A candidate in one line: degrees, schedule, and what it computes again."""
    rule = candidate.recompute
    return f"{describe(candidate.layout)}, {candidate.schedule}, recompute {rule.attention}/{rule.ffn}"


def has(layout: Layout, fixed: Mapping[str, object]) -> bool:
    """Whether `layout` has the degrees `fixed`."""
    return all(getattr(layout, name, None) == value for name, value in fixed.items())


def schedules_of(layout: Mesh) -> tuple[str, ...]:
    """The schedules of a mesh: interleaved where a position has several chunks; one position needs no second order."""
    if layout.vpp > 1:
        return ("interleaved",)
    return ("1f1b", "gpipe") if layout.pp > 1 else ("1f1b",)
