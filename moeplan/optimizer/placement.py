"""Which of the given nodes each block of ranks sits on: the order of hosts that makes the busiest link least busy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from moeplan.cost.durations import Machine, predict
from moeplan.cost.flows import Flows, flows
from moeplan.hostlist import compress
from moeplan.optimizer.evaluate import evaluate
from moeplan.optimizer.placement_milp import solve
from moeplan.optimizer.placement_search import search
from moeplan.optimizer.slots import RoutesError, Score, Slots, between_switches, slots_of
from moeplan.plan import Plan, place, steps_of, tiers_in, world_size
from moeplan.spec.calibration import Calibration
from moeplan.spec.cluster import ClusterSpec, hosts_of, pick
from moeplan.topology.graph import build
from moeplan.topology.inside import Floats, Integers
from moeplan.topology.links import Edge
from moeplan.topology.routes import Fabric
from moeplan.topology.units import sorted_by_place

SAME = 1e-9
"""Relative difference that is rounding."""


class Busy(NamedTuple):
    """One link in one direction, and bytes over bandwidth of a step."""

    link: str
    seconds: float


class Placed(NamedTuple):
    """An order of hosts for a layout, beside the one that was given."""

    cluster: ClusterSpec
    """Whose job has the nodes in that order."""
    given: Score
    by_name: Score
    """With the hosts in the order of their names."""
    found: Score
    given_busy: tuple[Busy, ...]
    """The busiest link, then the busiest of those between switches."""
    found_busy: tuple[Busy, ...]
    status: str

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host i has the ranks from i times the GPUs of a node on."""
        return hosts_of(self.cluster)


def place_plan(plan: Plan, *, exact: bool = False, time_limit_s: float = 10.0) -> Placed:
    """The order of the nodes of `plan` that makes the busiest link least busy; the given one where none is better.

    Of orders with the same busiest link the one with the least bytes over bandwidth of all links. What groups send
    counts together, as if all at the same time. Found by swaps from several orders, those by name and by place among
    them; with `exact` also by the integer program, whose proof or bound is the status. Seconds are of links at full
    bandwidth: a measure of contention, no prediction.
    """
    cluster, sent = plan.case.cluster, flows(plan)
    return place_hosts(cluster, sent, exact=exact, time_limit_s=time_limit_s)


def place_hosts(cluster: ClusterSpec, sent: Flows, *, exact: bool = False, time_limit_s: float = 10.0) -> Placed:
    """As `place_plan`, of ranks that send each other `sent`."""
    hosts = hosts_of(cluster)
    named = by_name(hosts)
    try:
        found, status = _searched(cluster, sent, named, time_limit_s if exact else 0.0)
    except RoutesError:
        found, status = sorted_by_place(cluster), "by place"
    looked = {order: _looked(cluster, order, sent) for order in {hosts, named, found}}
    best = min((hosts, named, found), key=lambda order: looked[order][0].rank)
    placed = cluster if best == hosts else pick(cluster, compress(best))
    (given, given_busy), (after, after_busy) = looked[hosts], looked[best]
    return Placed(placed, given, looked[named][0], after, given_busy, after_busy, status)


def _searched(cluster: ClusterSpec, sent: Flows, named: Sequence[str], proof_s: float) -> tuple[tuple[str, ...], str]:
    """The best order found, and how sure that is; an integer program may take `proof_s` seconds, or none if 0."""
    hosts, nearby, slots = hosts_of(cluster), sorted_by_place(cluster), slots_of(cluster, sent)
    if slots.width == 1:
        return nearby, "all orders are alike"
    order, _ = search(slots, [_classes(slots, hosts, order) for order in (hosts, named, nearby)])
    status = "search"
    if proof_s:
        proven = solve(slots, order, proof_s)
        order = min((order, proven.order), key=lambda one: slots.score(one).rank)
        bound = f"search; integer program: {proven.status}, at least {proven.bound_s:.4g} s"
        status = proven.status if proven.status == "optimal" else bound
    return _on_nodes(slots, order, hosts, nearby), status


def replaced(plan: Plan, calibration: Calibration) -> Plan:
    """`plan` on the best order of its nodes, priced again; as it is where its step would not be shorter."""
    placed = place_plan(plan)
    if placed.cluster == plan.case.cluster:
        return plan
    case = structs.replace(plan.case, cluster=placed.cluster)
    machine = Machine(Fabric(build(placed.cluster)), calibration)
    moved = structs.replace(
        plan,
        case=case,
        placement=place(placed.cluster, world_size(plan)),
        tiers=tiers_in(plan.graph, placed.cluster),
        durations=predict(case, plan.graph, plan.batch, machine, plan.recompute),
    )
    moved = evaluate(moved, steps_of(plan))
    return moved if moved.predictions.step_s <= plan.predictions.step_s * (1 + SAME) else plan


def by_name(hosts: Sequence[str]) -> tuple[str, ...]:
    """`hosts` in the order of their names, numbers by their value."""
    return tuple(sorted(hosts, key=lambda host: [(part.isdigit(), part.zfill(18)) for part in _PARTS.findall(host)]))


_PARTS = re.compile(r"\d+|\D+")


def _classes(slots: Slots, hosts: Sequence[str], order: Sequence[str]) -> Integers:
    """The class of the node of each slot where hosts stand in `order`; `hosts` is that of the slots."""
    at = {host: i for i, host in enumerate(hosts)}
    return slots.classes[[at[host] for host in order]]


def _on_nodes(slots: Slots, order: Integers, hosts: Sequence[str], nearby: Sequence[str]) -> tuple[str, ...]:
    """The hosts of an order of classes; those of one class by their places."""
    at = {host: i for i, host in enumerate(hosts)}
    left: dict[int, list[str]] = {}
    for host in nearby:
        left.setdefault(int(slots.classes[at[host]]), []).append(host)
    return tuple(left[int(one)].pop(0) for one in order)


def _looked(cluster: ClusterSpec, order: tuple[str, ...], sent: Flows, most: int = 4) -> tuple[Score, tuple[Busy, ...]]:
    """The true loads of all links with the hosts in `order`, looked up anew; the busiest, also between switches."""
    fabric = Fabric(build(pick(cluster, compress(order))))
    seconds = fabric.loads(*sent) / fabric.bandwidth_bytes_per_s
    ranked = np.argsort(-seconds, kind="stable")
    listed = dict.fromkeys([*ranked[:1].tolist(), *ranked[between_switches(fabric)[ranked]][:most].tolist()])
    busy = tuple(Busy(_told(fabric.edges[e], order), float(seconds[e])) for e in listed if seconds[e] > 0)
    return Score(float(seconds.max(initial=0.0)), _total(fabric, seconds)), busy


def _total(fabric: Fabric, seconds: Floats) -> float:
    """The sum over the links that leave GPUs and NICs, whatever that says of those inside."""
    return float(seconds[~fabric.inside_node].sum())


def _told(edge: Edge, order: Sequence[str]) -> str:
    def name(vertex: tuple[str | int, ...]) -> str:
        kind, *numbers = vertex
        if kind == "nic":
            return f"NIC {numbers[1]} of {order[int(numbers[0])]}"
        return " ".join([str(kind), ".".join(map(str, numbers))]).strip()

    return f"{name(edge[0])} -> {name(edge[1])}"
