"""How sure a step is: one sigma of its logarithm, from where its seconds come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp, sqrt
from typing import NamedTuple

from msgspec import structs

from moeplan.analytic.form import WHATEVER
from moeplan.batch import Batch
from moeplan.cost.beside import together
from moeplan.cost.compute import in_step, weakest
from moeplan.cost.edges import alike_edges, edge_in_step
from moeplan.cost.pieces import alike, price
from moeplan.cost.pricing import Machine, Pricing, loads
from moeplan.plan import Plan
from moeplan.spec.calibration import Pattern, source_of

SPREAD = {"measured": 0.05, "interpolated": 0.07, "roofline": 0.25, "assumed": 0.08}
"""One sigma of the logarithm of seconds by where they come from. Passes over HBM are the least sure; what is assumed
lies near what was measured on a sister. Chosen so that intervals hold the published steps as often as they should."""
LESS_SURE, UNSURE = ("expert", "host"), 0.6
"""The same of dispatch and combine, and of launches, whatever their source: routing and frameworks decide them."""
SHARED = 0.12
"""One sigma of what a step spends on nothing that is counted here, or saves; chosen as `SPREAD`."""
TENSOR: tuple[Pattern, ...] = ("all_reduce", "all_gather", "reduce_scatter")
"""Patterns of tensor parallelism."""
SIGMAS = 1.645
"""Of a normal distribution, nine of ten lie within."""


class Second(NamedTuple):
    """A part of the step."""

    name: str
    seconds: float
    source: str


def sigma(parts: Iterable[Second]) -> float:
    """One sigma of the logarithm of a sum of `parts`: sigma^2 = 0.12^2 + sum (share spread)^2 over sources.

    Parts of one source err apart from those of another, and all of one source alike.
    """
    spread = SPREAD | {"less sure": UNSURE}
    seconds = dict.fromkeys(spread, 0.0)
    for part in parts:
        seconds["less sure" if part.name in LESS_SURE else part.source] += part.seconds
    total = sum(seconds.values())
    shares = {source: spent / total for source, spent in seconds.items()} if total else {}
    return sqrt(SHARED**2 + sum((share * spread[source]) ** 2 for source, share in shares.items()))


def interval(step_s: float, spread: float) -> tuple[float, float]:
    """Between what nine of ten steps are expected: step e^(-1.645 sigma) to step e^(1.645 sigma) [s]."""
    return step_s * exp(-SIGMAS * spread), step_s * exp(SIGMAS * spread)


def spread_of_plan(plan: Plan, machine: Machine) -> float:
    """`sigma` of the simulated step of `plan`: transfers in their share of it that shows, compute in the rest.

    Bubbles are as sure as the work that others wait for. Left out: what is recomputed, and what ends a step.
    """
    pricing, told = Pricing(plan.case, plan.graph, machine, plan.recompute), plan.predictions
    shown = told.exposed_communication_s / told.step_s if told.step_s else 0.0
    work, travel = list(_work(pricing, plan.batch)), list(_travel(pricing, plan.batch))
    return sigma([*_scaled(work, 1 - shown), *_scaled(travel, shown)])


def sure(plan: Plan, machine: Machine) -> Plan:
    """`plan` whose predictions say how sure they are."""
    told = structs.replace(plan.predictions, spread=spread_of_plan(plan, machine))
    return structs.replace(plan, predictions=told)


def _scaled(parts: list[Second], total: float) -> list[Second]:
    """`parts` in the same proportions, adding up to `total`."""
    seconds = sum(part.seconds for part in parts)
    return [part._replace(seconds=part.seconds * total / seconds) for part in parts] if seconds else []


def _work(pricing: Pricing, batch: Batch) -> Iterator[Second]:
    """What all ranks compute for a micro-batch."""
    case, graph, machine, _ = pricing
    at = loads(case, graph, batch, 0)
    for what, numbers in alike(case, graph).items():
        ranks = len(numbers) * sum(map(len, graph.positions[what.position].ranks))
        for direction in "FB":
            priced = price(pricing, what, at[what.position], direction)
            spent = in_step(priced.parts, machine.calibration.constants)
            waiting = together(spent) - (sum(spent) - spent.host)
            for name, seconds in spent._replace(host=waiting)._asdict().items():
                yield Second(name, ranks * seconds, WHATEVER.get(name) or priced.sources.get(name, "roofline"))


def _travel(pricing: Pricing, batch: Batch) -> Iterator[Second]:
    """Rows of all ranks on their way, within pieces and between them."""
    case, graph, machine, _ = pricing
    inside = weakest(source_of(machine.calibration.node, name) for name in TENSOR)
    at = loads(case, graph, batch, 0)
    for what, numbers in alike(case, graph).items():
        ranks = len(numbers) * sum(map(len, graph.positions[what.position].ranks))
        inside_s = sum(price(pricing, what, at[what.position], direction).inside_s for direction in "FB")
        yield Second("tensor", ranks * inside_s, inside)
    for (kind, _, here, *_), numbers in alike_edges(graph).items():
        ranks = len(numbers) * sum(map(len, graph.positions[here].ranks))
        for direction in "FB":
            cost = edge_in_step(pricing, numbers[0], direction, at)
            yield Second("hops" if kind == "send" else "expert", ranks * cost.seconds, cost.source)
