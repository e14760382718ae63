"""Where a rank stands in a plan, and where the tokens of a micro-batch lie.

A token's id within a micro-batch of one copy is its sequence's number, counted from the copy's first, times the
sequence length, plus its place in the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from moeplan.batch import sequences
from moeplan.layout import StageGraph, shard_of
from moeplan.plan import Plan
from moeplan.spec.cluster import domain_of
from moeplan.spec.model import ModelSpec


@dataclass(frozen=True)
class Site:
    """One rank of a plan: its position, the copy of the pipeline and its index in the position's group."""

    plan: Plan
    rank: int
    position: int
    copy: int
    index: int
    device: torch.device
    dtype: torch.dtype

    @cached_property
    def graph(self) -> StageGraph:
        """The plan's stage graph."""
        return self.plan.graph

    @cached_property
    def model(self) -> ModelSpec:
        """The plan's model."""
        return self.plan.case.model

    @cached_property
    def seq_len(self) -> int:
        """Tokens per sequence."""
        return self.plan.case.workload.seq_len

    def group(self, position: int) -> tuple[int, ...]:
        """Ranks of `position` in this rank's copy."""
        return self.graph.positions[position].ranks[self.copy]


def find(plan: Plan, rank: int, device: torch.device, dtype: torch.dtype) -> Site:
    """The place of `rank`; the plan's check has shown that there is exactly one."""
    position, copy, index = next(
        (p, c, group.index(rank))
        for p, place in enumerate(plan.graph.positions)
        for c, group in enumerate(place.ranks)
        if rank in group
    )
    return Site(plan, rank, position, copy, index, device, dtype)


def by_node(plan: Plan, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """`ranks` cut into those of each node, or NVLink domain, ascending."""
    found: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        found.setdefault(domain_of(plan.case.cluster, rank), []).append(rank)
    return [*map(tuple, found.values())]


def copy_sequences(site: Site, microbatch: int) -> range:
    """Numbers of the sequences of `microbatch` in this rank's copy of the pipeline."""
    shards = len(site.graph.positions[0].ranks[0]) // site.graph.tp
    first = sequences(site.plan.batch, microbatch, site.copy * shards)
    last = sequences(site.plan.batch, microbatch, (site.copy + 1) * shards - 1)
    return range(first.start, last.stop)


def own_sequences(site: Site, microbatch: int) -> range:
    """Numbers of the sequences that this rank holds where its position deals whole sequences."""
    return sequences(site.plan.batch, microbatch, shard_of(site.graph, site.copy, site.index))


def own_tokens(site: Site, microbatch: int) -> Tensor:
    """Ids of the tokens whose home is this rank, ascending [T]."""
    whole = copy_sequences(site, microbatch)
    if site.graph.positions[site.position].spread == "token":
        return torch.arange(len(whole) * site.seq_len, device=site.device)[site.index :: len(site.group(site.position))]
    own = own_sequences(site, microbatch)
    first, last = own.start - whole.start, own.stop - whole.start
    return torch.arange(first * site.seq_len, last * site.seq_len, device=site.device)


def home_of(site: Site, position: int, microbatch: int, ids: Tensor) -> Tensor:
    """Index in `position` of the home of each token [n]."""
    size = len(site.group(position))
    if site.graph.positions[position].spread == "token":
        return ids % size
    first = copy_sequences(site, microbatch).start
    starts = [
        (sequences(site.plan.batch, microbatch, shard_of(site.graph, site.copy, i)).start - first) * site.seq_len
        for i in range(size)
    ]
    return torch.searchsorted(torch.tensor(starts, device=ids.device), ids.contiguous(), right=True) - 1


def row_of(site: Site, microbatch: int, ids: Tensor) -> Tensor:
    """Row of each token [n] among `own_tokens`; all of them have their home here."""
    if site.graph.positions[site.position].spread == "token":
        return ids // len(site.group(site.position))
    first = own_sequences(site, microbatch).start - copy_sequences(site, microbatch).start
    return ids - first * site.seq_len
