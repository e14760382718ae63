"""The process groups of a plan, made once and in the same order on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from moeplan.plan import Plan
from moeplan.program import Op, Program
from moeplan_exec.site import Site

Queue = tuple[int, int, str, str]
"""Transfers from one position to another of one kind and phase: (source, target, kind, phase)."""


@dataclass(frozen=True)
class Groups:
    """What this rank communicates over; groups of one rank are left out."""

    collective: dict[tuple[int, ...], dist.ProcessGroup]
    """By rank list: a position of one copy, or the holders of the same parameters."""
    queue: dict[Queue, dist.ProcessGroup]
    """One per queue of this rank's copy, so that the two directions of a pair do not wait for each other."""


def queue_of(op: Op, *, receiving: bool) -> Queue:
    """The queue that a transfer between two positions belongs to."""
    source, target = (op.peers[0], op.position) if receiving else (op.position, op.peers[0])
    return source, target, op.kind, op.phase


def queues(program: Program) -> list[Queue]:
    """All queues of a program, sorted."""
    sends = (program.ops[s.ops[0]] for s in program.streams if s.name.startswith("send "))
    return sorted(queue_of(op, receiving=False) for op in sends)


def rank_lists(plan: Plan) -> list[tuple[int, ...]]:
    """The distinct rank lists of all collectives, sorted."""
    lists = {group for position in plan.graph.positions for group in position.ranks}
    lists |= {group for replica in plan.graph.replicas for group in replica.groups}
    return sorted(group for group in lists if len(group) > 1)


def make_groups(site: Site, program: Program) -> Groups:
    """The groups that this rank is in; its members call together, others pass."""
    mine = [ranks for ranks in rank_lists(site.plan) if site.rank in ranks]
    collective = {ranks: _new(ranks) for ranks in mine}
    queue = {
        key: _new(site.group(key[0]) + site.group(key[1])) for key in queues(program) if site.position in key[:2]
    }
    return Groups(collective, queue)


def _new(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    group = dist.new_group(sorted(ranks), use_local_synchronization=True)
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"ranks {ranks} have no process group here")
    return group
