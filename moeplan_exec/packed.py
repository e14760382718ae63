"""All tables of a parcel as one run of bytes for each peer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moeplan_exec.parcel import Column, Parcel, part


def raw(rows: Tensor) -> Tensor:
    """`rows` [n, ...] as their bytes [n, bytes of a row]."""
    return rows.detach().reshape(len(rows), rows.shape[1:].numel()).contiguous().view(torch.uint8)


def bytes_of(counts: Sequence[Sequence[int]], columns: Sequence[Column]) -> list[int]:
    """Bytes for each peer of tables with `counts` [table][peer] rows."""
    return [sum(sizes) for sizes in _sizes(counts, columns)]


def packed(parcel: Parcel) -> Tensor:
    """The bytes of `parcel` [n], peer after peer and table after table."""
    peers = range(len(parcel.counts[0]))
    return torch.cat([raw(table).flatten() for peer in peers for table in part(parcel, peer)])


def unpacked(data: Tensor, columns: Sequence[Column], counts: Sequence[Sequence[int]]) -> Parcel:
    """The parcel whose bytes are `data` [n]."""
    pieces = iter(data.split_with_sizes([size for sizes in _sizes(counts, columns) for size in sizes]))
    by_peer = [[next(pieces) for _ in columns] for _ in counts[0]]
    tables = [
        torch.cat(of_table).view(dtype).view(-1, width)
        for of_table, (dtype, width) in zip(zip(*by_peer, strict=True), columns, strict=True)
    ]
    return Parcel(tuple(tables), tuple(tuple(rows) for rows in counts))


def _sizes(counts: Sequence[Sequence[int]], columns: Sequence[Column]) -> list[list[int]]:
    """[peer][table]: bytes."""
    widths = [width * dtype.itemsize for dtype, width in columns]
    return [[n * width for n, width in zip(rows, widths, strict=True)] for rows in zip(*counts, strict=True)]
