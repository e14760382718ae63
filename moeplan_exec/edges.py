"""What each kind of edge packs, unpacks, and does with gradients on the way back.

Edges are linear, so they need no autograd: the forward pass copies and sums rows, the backward pass sums and copies
their gradients, with the order kept from the forward pass. An edge lives on the rank that sends and on the one that
receives; inside a position both are the same object. Outputs and inputs are those of the pieces in `model`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moeplan.layout import experts_of, home, rides
from moeplan_exec.parcel import Column, Parcel, counted, grouped
from moeplan_exec.site import Site, home_of, own_tokens, row_of

Gradients = tuple[Tensor | None, ...]
"""One per output or input of a piece; None for integers."""


class Edge:
    """Edge `number`: the rows of a piece on their way to the next one."""

    def __init__(self, site: Site, number: int) -> None:
        self.site, self.number, self.hidden = site, number, site.model.hidden
        self.sent: dict[int, tuple[Tensor, ...]] = {}
        """What the sender keeps of a micro-batch for its gradient."""
        self.counts: dict[int, tuple[tuple[int, ...], ...]] = {}
        """[table][peer] of each forward transfer that has a gradient, at the sender: its gradient has the same rows."""
        self.received: dict[int, tuple[tuple[int, ...], ...]] = {}
        """The same at the receiver."""

    def columns(self, phase: str) -> tuple[Column, ...]:
        """Tables of the rows (F, R) or of their gradient (B)."""
        rows = (self.site.dtype, self.hidden)
        return (rows,) if phase == "B" else ((torch.int64, 1), rows)

    def peers(self, microbatch: int, *, forward: bool) -> int:
        """Position that receives the rows, or their gradient."""
        piece = self.site.graph.pieces[self.number + forward]
        return home(self.site.graph, piece.stage, microbatch)

    def size(self, microbatch: int) -> int:
        """Ranks that may receive a row."""
        return len(self.site.group(self.peers(microbatch, forward=True)))


class Send(Edge):
    """Rows go to the rank with the same index: both positions hold the same tokens."""

    def columns(self, phase: str) -> tuple[Column, ...]:
        """The rows alone: where they belong is known."""
        return ((self.site.dtype, self.hidden),)

    def _alone(self, rows: Tensor, microbatch: int) -> Parcel:
        counts = [0] * self.size(microbatch)
        counts[self.site.index] = len(rows)
        return Parcel((rows,), (tuple(counts),))

    def pack(self, outputs: Sequence[Tensor], microbatch: int, phase: str) -> Parcel:
        """Rows [T, H]."""
        return self._alone(outputs[0], microbatch)

    def unpack(self, parcel: Parcel, microbatch: int) -> tuple[Tensor, ...]:
        """Rows [T, H]."""
        return parcel.tables

    def pack_back(self, gradients: Gradients, microbatch: int) -> Parcel:
        """Gradient of the rows [T, H]."""
        return self._alone(present(gradients[0]), microbatch)

    def unpack_back(self, parcel: Parcel, microbatch: int) -> Gradients:
        """Gradient of the rows [T, H]."""
        return parcel.tables


class Scatter(Edge):
    """A dense FFN elsewhere: each token goes once, to index (token id modulo group size)."""

    def pack(self, outputs: Sequence[Tensor], microbatch: int, phase: str) -> Parcel:
        """(ids [T, 1], rows [T, H]) grouped by peer."""
        ids = own_tokens(self.site, microbatch)
        order, counts = grouped(ids % self.size(microbatch), self.size(microbatch))
        self.sent[microbatch], self.counts[microbatch] = (order,), (counts,)
        return Parcel((ids[order, None], outputs[0][order]), (counts, counts))

    def unpack(self, parcel: Parcel, microbatch: int) -> tuple[Tensor, ...]:
        """(ids [n, 1], rows [n, H])."""
        self.received[microbatch] = parcel.counts[1:]
        return parcel.tables

    def pack_back(self, gradients: Gradients, microbatch: int) -> Parcel:
        """Gradient of the rows [n, H]."""
        return Parcel((present(gradients[1]),), self.received.pop(microbatch))

    def unpack_back(self, parcel: Parcel, microbatch: int) -> Gradients:
        """Gradient of the rows [T, H]."""
        (order,) = self.sent.pop(microbatch)
        return (torch.empty_like(parcel.tables[0]).index_copy_(0, order, parcel.tables[0]),)


class FanOut(Edge):
    """Each token goes to the ranks of its k experts, one row per choice, gate weight beside it.

    Where the residual rides, the row of the first choice brings the residual, unless it is the row itself.
    """

    def __init__(self, site: Site, number: int) -> None:
        super().__init__(site, number)
        self.ride = rides(site.graph, number + 1)
        self.carries = self.ride and site.model.shared_experts > 0
        self.residual: dict[int, Tensor] = {}
        """Residuals that wait at home for the rows to come back."""
        self.residual_gradient: dict[int, Tensor] = {}
        shares = [experts_of(site.model, site.graph, i) for i in range(self.size(0))]
        self.owner = torch.tensor([i for i, share in enumerate(shares) for _ in share], device=site.device)
        self.local = torch.tensor([e - share.start for share in shares for e in share], device=site.device)

    def columns(self, phase: str) -> tuple[Column, ...]:
        """(token id, slot, expert), rows with their gate weight, and residuals where they ride."""
        rows = ((self.site.dtype, self.hidden + 1),) + ((self.site.dtype, self.hidden),) * self.carries
        return rows if phase == "B" else ((torch.int64, 3), *rows)

    def pack(self, outputs: Sequence[Tensor], microbatch: int, phase: str) -> Parcel:
        """(meta [T k, 3], rows [T k, H + 1], residuals [T, H] if they ride), grouped by peer."""
        x, gate, choice, *residual = outputs
        expert = choice.flatten()
        order, counts = grouped(self.owner[expert], self.size(microbatch))
        token, slot = order // choice.shape[1], order % choice.shape[1]
        meta = torch.stack([own_tokens(self.site, microbatch)[token], slot, self.local[expert[order]]], dim=1)
        rows = torch.cat([x[token], gate.reshape(-1, 1)[order]], dim=1)
        self.sent[microbatch] = (order, choice)
        if not self.ride and phase == "F":
            self.residual[microbatch] = residual[0]
        if not self.carries:
            self.counts[microbatch] = (counts,)
            return Parcel((meta, rows), (counts, counts))
        first = token[slot == 0]
        firsts = counted(self.owner[choice[first, 0]], len(counts))
        self.counts[microbatch] = (counts, firsts)
        return Parcel((meta, rows, residual[0][first]), (counts, counts, firsts))

    def unpack(self, parcel: Parcel, microbatch: int) -> tuple[Tensor, ...]:
        """(meta [n, 3], rows [n, H + 1], residuals of first choices if they ride)."""
        self.received[microbatch] = parcel.counts[1:]
        return parcel.tables

    def pack_back(self, gradients: Gradients, microbatch: int) -> Parcel:
        """Gradients of the rows [n, H + 1] and of the residuals that rode with them."""
        tables = tuple(present(g) for g in gradients[1:])
        return Parcel(tables, self.received.pop(microbatch))

    def unpack_back(self, parcel: Parcel, microbatch: int) -> Gradients:
        """Gradients of (rows [T, H], gate weights [T, k], choices, residual [T, H] if it is apart)."""
        order, choice = self.sent.pop(microbatch)
        rows, *carried = parcel.tables
        tokens, k = choice.shape
        x = rows.new_zeros(tokens, self.hidden).index_add_(0, order // k, rows[:, :-1])
        return self.restored(microbatch, order, choice, rows[:, -1], x, carried)

    def restored(
        self, microbatch: int, order: Tensor, choice: Tensor, gates: Tensor, x: Tensor, carried: Sequence[Tensor]
    ) -> Gradients:
        """As of `unpack_back`: `gates` [T k] and `carried` stand in the order of the copies, `x` [T, H] in place."""
        gate = torch.empty_like(gates).index_copy_(0, order, gates).view(choice.shape)
        if self.carries:
            k = choice.shape[1]
            first = (order // k)[order % k == 0]
            return x, gate, None, torch.empty_like(x).index_copy_(0, first, carried[0])
        return (x, gate, None) if self.ride else (x, gate, None, self.residual_gradient.pop(microbatch))


class FanIn(Edge):
    """Rows go to the home of their token and are summed there, with the residual that waits for them."""

    def __init__(self, site: Site, number: int, before: Edge | None) -> None:
        super().__init__(site, number)
        self.before = before if isinstance(before, FanOut) and not before.ride else None
        """The fan-out of the same layer, where it keeps the residual at home."""
        self.rows: dict[int, tuple[Tensor, ...]] = {}

    def pack(self, outputs: Sequence[Tensor], microbatch: int, phase: str) -> Parcel:
        """(ids [n, 1], rows [n, H]) grouped by the home of their tokens."""
        rows, ids = outputs
        target = self.peers(microbatch, forward=True)
        order, counts = grouped(home_of(self.site, target, microbatch, ids[:, 0]), self.size(microbatch))
        self.sent[microbatch], self.counts[microbatch] = (order,), (counts,)
        return Parcel((ids[order], rows[order]), (counts, counts))

    def unpack(self, parcel: Parcel, microbatch: int) -> tuple[Tensor, ...]:
        """Summed rows [T, H]."""
        ids, rows = parcel.tables
        place = row_of(self.site, microbatch, ids[:, 0])
        self.rows[microbatch], self.received[microbatch] = (place,), parcel.counts[1:]
        tokens = len(own_tokens(self.site, microbatch))
        start = self.before.residual.pop(microbatch) if self.before else rows.new_zeros(tokens, self.hidden)
        return (start.index_add(0, place, rows),)

    def pack_back(self, gradients: Gradients, microbatch: int) -> Parcel:
        """The gradient of a sum, copied to each of its rows."""
        (place,) = self.rows.pop(microbatch)
        gradient = present(gradients[0])
        if self.before:
            self.before.residual_gradient[microbatch] = gradient
        return Parcel((gradient[place],), self.received.pop(microbatch))

    def unpack_back(self, parcel: Parcel, microbatch: int) -> Gradients:
        """Gradients of (rows [n, H], ids)."""
        (order,) = self.sent.pop(microbatch)
        return torch.empty_like(parcel.tables[0]).index_copy_(0, order, parcel.tables[0]), None


AnyEdge = Send | Scatter | FanOut | FanIn


def present(gradient: Tensor | None) -> Tensor:
    """The gradient of a table of rows; TypeError where there is none."""
    if gradient is None:
        raise TypeError("a table of rows has no gradient")
    return gradient
