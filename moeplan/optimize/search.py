"""The search over mesh layouts: bounds first, memory next, the simulator for what survives.

Candidates are visited in the order of their lower bounds; as soon as a bound exceeds the best simulated step of the
family, the rest cannot win. A layout that two families hold is evaluated once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import structs

from moeplan.draft import draft
from moeplan.errors import SpecError
from moeplan.layout import Colocated, Layout, Recompute
from moeplan.optimize.evaluate import evaluate, footprint, usable_bytes
from moeplan.optimize.screen import RECOMPUTE, Screen
from moeplan.plan import Plan
from moeplan.cost.durations import Machine
from moeplan.spec.case import Case


class Candidate(NamedTuple):
    """One point of the search."""

    layout: Layout
    schedule: str
    recompute: Recompute


class Miss(NamedTuple):
    """A layout that does not fit."""

    plan: Plan
    short_bytes: float
    """By how many bytes its fullest rank exceeds the usable HBM."""


class Pruned(NamedTuple):
    """A class of layouts that was not simulated, with one of them."""

    reason: str
    count: int
    witness: str


class Found(NamedTuple):
    """What the search of one family found."""

    family: str
    best: Plan | None
    nearest: Miss | None
    """Where nothing fits: the layout that misses by least."""
    pruned: tuple[Pruned, ...]
    simulated: int


class Search:
    """One search; remembers evaluated candidates, so that families share them."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case, self.machine = case, machine
        self.screen = Screen(case, machine)
        self.drafts: dict[tuple[object, ...], Plan] = {}
        self.plans: dict[tuple[object, ...], Plan] = {}
        self.simulated = 0

    def meshes(self, family: str, layouts: Iterable[Colocated]) -> Found:
        """The best mesh of `layouts`."""
        limit = usable_bytes(self.case)
        ledger = Ledger()
        bounded = []
        for layout in layouts:
            static = self.screen.static_bytes(layout)
            if static > limit:
                ledger.add("parameters alone exceed the usable HBM", layout)
                continue
            bounded += [(self.screen.step_s(layout, rule), i, layout) for i, rule in enumerate(RECOMPUTE)]
        best: Plan | None = None
        nearest: Miss | None = None
        before = self.simulated
        bounded.sort(key=lambda entry: (entry[0], entry[1], degrees(entry[2])))
        for bound_s, rule, layout in bounded:
            if best is not None and bound_s >= best.predictions.step_s:
                ledger.add("lower bound above the best step", layout)
                continue
            plan = self.drafted(Candidate(layout, schedule_of(layout), RECOMPUTE[rule]))
            short = max(footprint(plan).peak) - limit
            if short > 0:
                ledger.add("activations exceed the usable HBM", layout)
                if nearest is None or short < nearest.short_bytes:
                    nearest = Miss(plan, short)
                continue
            plan = self.evaluated(plan)
            if best is None or plan.predictions.step_s < best.predictions.step_s:
                best = plan
        return Found(family, best, nearest, ledger.entries(), self.simulated - before)

    def drafted(self, candidate: Candidate) -> Plan:
        """The plan of `candidate` without predictions; layouts differ in recompute only by that field."""
        key = (degrees(candidate.layout), type(candidate.layout), candidate.schedule)
        if key not in self.drafts:
            self.drafts[key] = draft(self.case, candidate.layout, schedule=candidate.schedule)
        return structs.replace(self.drafts[key], recompute=candidate.recompute)

    def evaluated(self, plan: Plan) -> Plan:
        """`plan` with predictions, from memory where another family has evaluated the same degrees."""
        key = (degrees(plan.layout), plan.schedule.name, plan.recompute.attention, plan.recompute.ffn)
        if key not in self.plans:
            self.plans[key] = evaluate(plan, self.machine)
            self.simulated += 1
        return structs.replace(self.plans[key], layout=plan.layout)


class Ledger:
    """Counts what was pruned, by reason, with the first of each as a witness."""

    def __init__(self) -> None:
        self.reasons: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, layout: Layout) -> None:
        """One more layout pruned for `reason`."""
        count, witness = self.reasons.get(reason, (0, describe(layout)))
        self.reasons[reason] = (count + 1, witness)

    def entries(self) -> tuple[Pruned, ...]:
        """All reasons, most frequent first."""
        rows = [Pruned(reason, count, witness) for reason, (count, witness) in self.reasons.items()]
        return tuple(sorted(rows, key=lambda row: (-row.count, row.reason)))


def degrees(layout: Layout) -> tuple[tuple[str, int], ...]:
    """The degrees of `layout` without its family, for comparison and order."""
    return tuple((name, int(getattr(layout, name))) for name in layout.__struct_fields__)


def describe(layout: Layout) -> str:
    """`tp 1 pp 8 ep 16 dp 16`: the degrees that are not 1 or off, in one line."""
    parts = [f"{name.replace('_', '-')} {value}" for name, value in degrees(layout) if value > 1]
    return " ".join(parts) or "one rank"


def schedule_of(layout: Colocated) -> str:
    """The schedule of a mesh: interleaved where a position has several chunks."""
    return "interleaved" if layout.vpp > 1 else "1f1b"
