"""The parameters of one replica on one rank, flat, with their gradients and their share of the optimizer.

Weights and gradients are views into one buffer each, padded so that all ranks of the group own equal shards: gradients
are summed straight into this rank's shard, updated there, and the new weights gathered straight back. Training in bf16
keeps gradients, moments and a master copy of the shard in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moeplan.layout import Replica
from moeplan_exec.adam import moments_of, update
from moeplan_exec.parameters import Initialise, Shapes, first_values, replica_shapes
from moeplan_exec.site import Site

_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Older releases of torch know the same collectives by their old names only."""


class Shelf:
    """What this rank holds of one replica."""

    def __init__(self, site: Site, replica: Replica, seed: int, initialise: Initialise | None) -> None:
        self.ranks = next(tuple(sorted(group)) for group in replica.groups if site.rank in group)
        self.sharded = replica.sharded and len(self.ranks) > 1
        self.shapes = replica_shapes(site.model, site.graph, replica, site.index)
        padded = -(-sum(map(prod, self.shapes.values())) // len(self.ranks)) * len(self.ranks)
        wide = torch.promote_types(site.dtype, torch.float32)
        self.values = torch.zeros(padded, dtype=site.dtype, device=site.device)
        self.sums = torch.zeros(padded, dtype=wide, device=site.device)
        self.shard = self._shard_of(padded, site.rank)
        self.weights = {name: view.requires_grad_() for name, view in views(self.values, self.shapes).items()}
        self.gradients = views(self.sums, self.shapes)
        for name, view in views(self.values, self.shapes).items():
            view.copy_(first_values(seed, name, self.shapes[name], initialise))
        self.master = self.values[self.shard].to(wide)
        self.moments = moments_of(self.master)

    def _shard_of(self, padded: int, rank: int) -> slice:
        if not self.sharded:
            return slice(0, padded)
        size = padded // len(self.ranks)
        start = self.ranks.index(rank) * size
        return slice(start, start + size)

    def reduce_scatter(self, group: dist.ProcessGroup) -> None:
        """Sum the gradients of all holders into this rank's shard."""
        summed = torch.empty_like(self.sums[self.shard])
        _scatter(summed, self.sums, group=group)
        self.sums[self.shard] = summed

    def all_reduce(self, group: dist.ProcessGroup) -> None:
        """Sum the gradients of all holders."""
        dist.all_reduce(self.sums, group=group)

    def optimize(self, step: int, lr: float) -> None:
        """One Adam step on the shard; gradients are zero afterwards."""
        update(self.master, self.sums[self.shard], self.moments, step=step, lr=lr)
        self.values[self.shard].copy_(self.master)
        self.sums.zero_()

    def all_gather(self, group: dist.ProcessGroup) -> None:
        """Collect the new weights of all shards."""
        _gather(self.values, self.values[self.shard].clone(), group=group)

    def summed(self, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
        """Copies of the whole summed gradients by name, between their reduction and the optimizer."""
        whole = self.sums.clone()
        if self.sharded and group is not None:
            _gather(whole, self.sums[self.shard].clone(), group=group)
        return views(whole, self.shapes)


def views(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """`flat` cut into tensors of `shapes`, one after another."""
    result, start = {}, 0
    for name, shape in shapes.items():
        result[name] = flat[start : start + prod(shape)].view(shape).detach()
        start += prod(shape)
    return result
