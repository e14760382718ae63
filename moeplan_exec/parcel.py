"""What travels over an edge: a few tables whose rows are grouped by the rank they go to or came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Column = tuple[torch.dtype, int]
"""Element type and width of a table."""


class Parcel(NamedTuple):
    """Tables of one transfer between this rank and all its peers."""

    tables: tuple[Tensor, ...]
    """Each [rows, width], rows grouped by peer."""
    counts: tuple[tuple[int, ...], ...]
    """[table][peer]: rows for, or from, each peer."""


def part(parcel: Parcel, peer: int) -> list[Tensor]:
    """The rows of each table that belong to `peer`."""
    parts = []
    for table, counts in zip(parcel.tables, parcel.counts, strict=True):
        start = sum(counts[:peer])
        parts.append(table[start : start + counts[peer]])
    return parts


def empty(columns: Sequence[Column], counts: Sequence[Sequence[int]], device: torch.device) -> Parcel:
    """A parcel to receive into."""
    tables = tuple(
        torch.empty(sum(rows), width, dtype=dtype, device=device)
        for (dtype, width), rows in zip(columns, counts, strict=True)
    )
    return Parcel(tables, tuple(tuple(rows) for rows in counts))


def grouped(peers: Tensor, size: int) -> tuple[Tensor, tuple[int, ...]]:
    """The order that groups rows by their peer, keeping rows of one peer in place, and the rows of each peer."""
    return peers.argsort(stable=True), counted(peers, size)


def counted(peers: Tensor, size: int) -> tuple[int, ...]:
    """The rows of each peer."""
    return tuple(peers.bincount(minlength=size).tolist())
