"""Transfers inside a position: an uneven all-to-all over its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from moeplan_exec.parcel import Column, Parcel, empty


class Arriving(NamedTuple):
    """A parcel on its way; what is sent is kept until it has left."""

    parcel: Parcel
    leaving: Parcel
    works: tuple[dist.Work, ...]

    def wait(self) -> Parcel:
        """The parcel once it is here."""
        for work in self.works:
            work.wait()
        return self.parcel


def exchange(
    leaving: Parcel,
    columns: Sequence[Column],
    group: dist.ProcessGroup | None,
    expected: Sequence[Sequence[int]] | None,
) -> Arriving:
    """Start to swap `leaving` with all ranks of `group`; None is a group of this rank alone.

    `expected` holds the rows that come back where they are known, else they are asked for first.
    """
    if group is None:
        return Arriving(leaving, leaving, ())
    counts = expected if expected is not None else _ask(leaving, group)
    arriving = empty(columns, counts, leaving.tables[0].device)
    works = [
        dist.all_to_all_single(target, source.contiguous(), list(rows), list(sent), group=group, async_op=True)
        for target, source, rows, sent in zip(
            arriving.tables, leaving.tables, arriving.counts, leaving.counts, strict=True
        )
    ]
    return Arriving(arriving, leaving, tuple(work for work in works if work is not None))


def _ask(leaving: Parcel, group: dist.ProcessGroup) -> list[list[int]]:
    """Rows that each rank of `group` sends here, [table][peer]."""
    sent = torch.tensor(leaving.counts).T.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    counts: list[list[int]] = received.T.tolist()
    return counts
