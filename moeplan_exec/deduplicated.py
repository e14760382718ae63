"""An M2N over which the copies of a token for one node cross once, and the N2M that brings back one row for them.

Two tiers: one row per token and node goes to the rank of the target group that lies on the sender's rail, with what is
to be known of all copies for that node; that rank hands the copies to the ranks of its group on the same node.
Gradients come back the same way: those of a row's copies are summed in the node and cross once. So do the results: the
rank that took a row in sums the results of its copies and sends one row to the token's next home, and hands the
gradient of that row to all of them. The second tier is a collective over the group's ranks on one node. It runs where
what arrives is pulled and where what leaves is packed, which all ranks of a position do in the same order; traces show
it as time between two operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from moeplan.spec.cluster import domain_of
from moeplan_exec.edges import FanIn, FanOut, Gradients, present
from moeplan_exec.exchange import exchange
from moeplan_exec.parcel import Column, Parcel, counted, grouped
from moeplan_exec.site import Site, by_node, own_tokens

Counts = tuple[tuple[int, ...], ...]


class Relayed(NamedTuple):
    """What a rank keeps of a micro-batch that it took in for its node, for the results and the gradients."""

    arrived: Counts
    """[table][sender] of gate weights, rows and residuals."""
    handed: Counts
    """[table][rank of the node] of copies and residuals."""
    ids: Tensor
    """The tokens of the rows [pairs]."""
    row: Tensor
    """The row of each copy [copies], in the order in which they were handed on."""
    order: Tensor
    """The copies [copies] in the order in which they were handed on."""
    carried: Tensor
    """The residuals [first choices] in the order in which they were handed on."""

    def summed(self, copies: Tensor) -> Tensor:
        """What came back of each copy [copies, H], in the order in which they were handed on, summed [pairs, H]."""
        return copies.new_zeros(len(self.ids), copies.shape[1]).index_add_(0, self.row, copies)


class Deduplicated(FanOut):
    """Each token goes once to every node that holds one of its k experts, and is copied there."""

    def __init__(self, site: Site, number: int, groups: Mapping[tuple[int, ...], dist.ProcessGroup]) -> None:
        super().__init__(site, number)
        ranks = site.group(self.peers(0, forward=True))
        nodes, cluster = by_node(site.plan, ranks), site.plan.case.cluster
        local = sum(domain_of(cluster, rank) == domain_of(cluster, site.rank) for rank in range(site.rank))
        rail = {rank: node[local % len(node)] for node in nodes for rank in node}
        self.rail = self._by_expert([ranks.index(rail[rank]) for rank in ranks])
        """[expert]: index of the rank that takes in the copies for it from this rank."""
        here = next((node for node in nodes if site.rank in node), ())
        self.mate = self._by_expert([here.index(rank) if rank in here else -1 for rank in ranks])
        """[expert]: which of the group's ranks on this node holds it; -1 for experts of other nodes."""
        self.mates, self.group = len(here), groups.get(here)
        self.relayed: dict[int, Relayed] = {}

    def _by_expert(self, by_index: Sequence[int]) -> Tensor:
        return torch.tensor(by_index, device=self.site.device)[self.owner]

    def columns(self, phase: str) -> tuple[Column, ...]:
        """(token id, slot, expert) and gate weight of each copy, rows, and residuals where they ride."""
        tables = ((self.site.dtype, 1),) + ((self.site.dtype, self.hidden),) * (1 + self.carries)
        return tables if phase == "B" else ((torch.int64, 3), *tables)

    def pack(self, outputs: Sequence[Tensor], microbatch: int, phase: str) -> Parcel:
        """(meta [T k, 3], gates [T k, 1], rows [pairs, H], residuals [T, H] if they ride), grouped by peer."""
        x, gate, choice, *residual = outputs
        expert, size = choice.flatten(), self.size(microbatch)
        order, copies = grouped(self.rail[expert], size)
        expert, token, slot = expert[order], order // choice.shape[1], order % choice.shape[1]
        peer = self.rail[expert]
        once, first = starts(peer, token), slot == 0
        meta = torch.stack([own_tokens(self.site, microbatch)[token], slot, expert], dim=1)
        tables = (meta, gate.reshape(-1, 1)[order], x[token[once]], *(r[token[first]] for r in residual))
        pairs, firsts = counted(peer[once], size), counted(peer[first], size)
        self.sent[microbatch] = (order, choice, token[once])
        self.counts[microbatch] = (copies, pairs, firsts)[: 2 + self.carries]
        return Parcel(tables, (copies, *self.counts[microbatch]))

    def unpack(self, parcel: Parcel, microbatch: int) -> tuple[Tensor, ...]:
        """The copies for this rank, from all senders by way of this node's ranks, as a `FanOut` brings them."""
        meta, gate, rows, *residual = parcel.tables
        token, slot, expert = meta.unbind(dim=1)
        once, mate = starts(token), self.mate[expert]
        row = once.cumsum(0) - 1
        order, copies = grouped(mate, self.mates)
        firsts = order[slot[order] == 0]
        carried = (slot == 0).cumsum(0)[firsts] - 1
        meta = torch.stack([token, slot, self.local[expert]], dim=1)[order]
        tables = (meta, torch.cat([rows[row], gate], dim=1)[order], *(r[carried] for r in residual))
        handed = (copies, counted(mate[firsts], self.mates))[: 1 + self.carries]
        self.relayed[microbatch] = Relayed(parcel.counts[1:], handed, token[once], row[order], order, carried)
        leaving = Parcel(tables, (copies, *handed))
        return super().unpack(exchange(leaving, super().columns("F"), self.group, None).wait(), microbatch)

    def pack_back(self, gradients: Gradients, microbatch: int) -> Parcel:
        """Gradients of the gates [copies, 1], rows [pairs, H] and residuals that this rank took in."""
        kept = self.relayed.pop(microbatch)
        leaving = super().pack_back(gradients, microbatch)
        rows, *residual = exchange(leaving, super().columns("B"), self.group, kept.handed).wait().tables
        gates = torch.empty_like(rows[:, -1:]).index_copy_(0, kept.order, rows[:, -1:])
        carried = (torch.empty_like(r).index_copy_(0, kept.carried, r) for r in residual)
        return Parcel((gates, kept.summed(rows[:, :-1]), *carried), kept.arrived)

    def unpack_back(self, parcel: Parcel, microbatch: int) -> Gradients:
        """As of `FanOut`."""
        order, choice, token = self.sent.pop(microbatch)
        gates, rows, *carried = parcel.tables
        x = rows.new_zeros(len(choice), self.hidden).index_add_(0, token, rows)
        return self.restored(microbatch, order, choice, gates[:, 0], x, carried)

    def collect(self, rows: Tensor, microbatch: int) -> tuple[Tensor, Tensor]:
        """Results [pairs, H] of the rows that this rank took in, and their tokens; `rows` [n, H] are its copies'."""
        kept = self.relayed[microbatch]
        leaving = Parcel((rows,), self.received[microbatch][:1])
        (copies,) = exchange(leaving, self._alone(), self.group, kept.handed[:1]).wait().tables
        return kept.summed(copies), kept.ids

    def spread(self, gradient: Tensor, microbatch: int) -> Tensor:
        """Gradient [n, H] of the copies of this rank; `gradient` [pairs, H] is that of what it collected."""
        kept = self.relayed[microbatch]
        leaving = Parcel((gradient[kept.row],), kept.handed[:1])
        (copies,) = exchange(leaving, self._alone(), self.group, self.received[microbatch][:1]).wait().tables
        return copies

    def _alone(self) -> tuple[Column]:
        return ((self.site.dtype, self.hidden),)


class Collected(FanIn):
    """One row for each token and node goes home: the sum over the copies that came in as one row by `before`."""

    def __init__(self, site: Site, number: int, before: Deduplicated) -> None:
        super().__init__(site, number, before)
        self.relay = before

    def pack(self, outputs: Sequence[Tensor], microbatch: int, phase: str) -> Parcel:
        """(ids [pairs, 1], rows [pairs, H]) grouped by the home of their tokens."""
        rows, ids = self.relay.collect(outputs[0], microbatch)
        return super().pack((rows, ids[:, None]), microbatch, phase)

    def unpack_back(self, parcel: Parcel, microbatch: int) -> Gradients:
        """As of `FanIn`."""
        gradient, _ = super().unpack_back(parcel, microbatch)
        return self.relay.spread(present(gradient), microbatch), None


def starts(*keys: Tensor) -> Tensor:
    """Whether each place [n] is the first of a run with equal keys [n]."""
    first = torch.ones(len(keys[0]), dtype=torch.bool, device=keys[0].device)
    first[1:] = torch.stack([key[1:] != key[:-1] for key in keys]).any(dim=0)
    return first
