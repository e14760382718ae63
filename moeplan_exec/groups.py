"""The process groups of a plan, made once and in the same order on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.distributed as dist

from moeplan.layout import Edge, StageGraph
from moeplan.plan import Plan
from moeplan.program import Op, Program
from moeplan.tiers import members
from moeplan_exec.lanes import Lanes, make_lanes
from moeplan_exec.site import Site, by_node

Queue = tuple[int, int, str, str]
"""Transfers from one position to another of one kind and phase: (source, target, kind, phase)."""


@dataclass(frozen=True)
class Groups:
    """What this rank communicates over; groups of one rank are left out."""

    collective: dict[tuple[int, ...], dist.ProcessGroup]
    """By rank list: a position of one copy, its ranks on one node, or the holders of the same parameters."""
    queue: dict[Queue, dist.ProcessGroup]
    """One per queue of this rank's copy, so that the two directions of a pair do not wait for each other."""
    lanes: dict[tuple[int, ...], Lanes] = field(default_factory=dict)
    """By rank list: positions of one copy whose rows go by nodes."""


def queue_of(op: Op, *, receiving: bool) -> Queue:
    """The queue that a transfer between two positions belongs to."""
    source, target = (op.peers[0], op.position) if receiving else (op.position, op.peers[0])
    return source, target, op.kind, op.phase


def queues(program: Program) -> list[Queue]:
    """All queues of a program, sorted."""
    sends = (program.ops[s.ops[0]] for s in program.streams if s.name.startswith("send "))
    return sorted(queue_of(op, receiving=False) for op in sends)


def rank_lists(plan: Plan) -> list[tuple[int, ...]]:
    """The distinct rank lists of all collectives, sorted; a process group numbers its ranks in ascending order."""
    lists = {group for position in plan.graph.positions for group in position.ranks}
    lists |= {group for replica in plan.graph.replicas for group in replica.groups}
    lists |= {node for group in _copied_in_nodes(plan.graph) for node in by_node(plan, group)}
    return sorted({tuple(sorted(group)) for group in lists if len(group) > 1})


def _copied_in_nodes(graph: StageGraph) -> list[tuple[int, ...]]:
    """Groups whose rows arrive once per node and are copied there."""
    once = Edge(kind="m2n", algorithm="deduplicated")
    pieces = [graph.pieces[i + 1] for i, edge in enumerate(graph.edges) if edge == once]
    return [group for piece in pieces for p in graph.stages[piece.stage] for group in graph.positions[p].ranks]


def make_groups(site: Site, program: Program) -> Groups:
    """The groups that this rank is in; all ranks make all groups, since their names are numbers in order of making."""
    collective = {ranks: dist.new_group(list(ranks)) for ranks in rank_lists(site.plan)}
    queue: dict[Queue, dist.ProcessGroup] = {}
    for key in queues(program):
        for copy in range(len(site.graph.positions[0].ranks)):
            ranks = [rank for position in key[:2] for rank in site.graph.positions[position].ranks[copy]]
            group = dist.new_group(sorted(ranks))
            if site.rank in ranks:
                queue[key] = group
    lanes = {members(tiers): make_lanes(tiers, site.rank) for tiers in site.plan.tiers}
    return Groups(
        {ranks: group for ranks, group in collective.items() if site.rank in ranks},
        queue,
        {ranks: found for ranks, found in lanes.items() if found is not None},
    )
