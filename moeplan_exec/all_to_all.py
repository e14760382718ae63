"""An all-to-all of rows by any algorithm, with gradients, at once or in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from moeplan_exec.halo import halo, halo_chunked
from moeplan_exec.lanes import Lanes, Log, silent
from moeplan_exec.packed import bytes_of, packed, raw, unpacked
from moeplan_exec.parcel import Column, Parcel
from moeplan_exec.two_level import two_level
from moeplan_exec.under_way import Underway

Counts = Sequence[int]
Algorithm = Callable[[Tensor, Counts, Counts, Lanes, Log], Tensor]


def flat(rows: Tensor, sent: Counts, received: Counts, lanes: Lanes, log: Log = silent) -> Tensor:
    """The same by `all_to_all_single`, for comparison; logged as "flat"."""
    start = time.perf_counter_ns()
    arriving = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(arriving, rows.contiguous(), list(received), list(sent), group=lanes.everyone)
    log("flat", start, time.perf_counter_ns())
    return arriving


ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    "flat": flat,
    "two_level": two_level,
    "halo": halo,
    "halo_chunked": halo_chunked,
}


class _AllToAll(torch.autograd.Function):
    """Its gradient is the same exchange with counts swapped."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        rows: Tensor,
        sent: Counts,
        received: Counts,
        lanes: Lanes,
        algorithm: str,
        log: Log,
    ) -> Tensor:
        ctx.route = (received, sent, lanes, algorithm, log)  # type: ignore[attr-defined]
        return _run(rows, sent, received, lanes, algorithm, log)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.route[2].settle()  # type: ignore[attr-defined]
        back = _run(gradients[0], *ctx.route)  # type: ignore[attr-defined]
        return (back, None, None, None, None, None)


def all_to_all(
    rows: Tensor, sent: Counts, received: Counts, lanes: Lanes, *, algorithm: str = "halo", log: Log = silent
) -> Tensor:
    """What all ranks of `lanes` send to this one, in order of their ranks: [sum(received), ...], of any element type.

    `rows` [sum(sent), ...] are in order of the ranks that they go to; sent[i] and received[i] belong to the i-th rank.
    The same bits whatever the algorithm is; the gradient of `rows` is the same exchange with counts swapped.
    """
    lanes.settle()
    result: Tensor = _AllToAll.apply(rows, tuple(sent), tuple(received), lanes, algorithm, log)  # type: ignore[no-untyped-call]
    return result


def _run(rows: Tensor, sent: Counts, received: Counts, lanes: Lanes, algorithm: str, log: Log) -> Tensor:
    """As bytes, which every backend knows."""
    shape, dtype = rows.shape[1:], rows.dtype
    arrived = ALGORITHMS[algorithm](raw(rows), sent, received, lanes, log)
    return arrived.view(dtype).reshape(len(arrived), *shape)


def _ask(sent: Sequence[Counts], lanes: Lanes, algorithm: str) -> list[list[int]]:
    """Rows that each rank sends here, [table][rank]; `sent` go to each."""
    ones = (1,) * len(lanes.ranks)
    received = _run(torch.tensor(sent).T, ones, ones, lanes, algorithm, silent)
    counts: list[list[int]] = received.T.tolist()
    return counts


def begin(
    rows: Tensor, sent: Counts, received: Counts, lanes: Lanes, *, algorithm: str = "halo", log: Log = silent
) -> Underway[Tensor]:
    """As `all_to_all`, but in a thread of its own, and without a gradient."""
    return Underway(lambda: _run(rows, sent, received, lanes, algorithm, log), lanes)


def begin_parcel(
    leaving: Parcel,
    columns: Sequence[Column],
    lanes: Lanes,
    expected: Sequence[Counts] | None,
    *,
    algorithm: str = "halo",
    log: Log = silent,
) -> Underway[Parcel]:
    """Start to swap all tables of `leaving` at once, as `exchange` does table by table; one message for all of them.

    `expected` holds the rows that come back, [table][rank], where they are known; else they are asked for first, by
    the same algorithm. Tables of bytes lie in memory twice meanwhile.
    """

    def work() -> Parcel:
        counts = expected if expected is not None else _ask(leaving.counts, lanes, algorithm)
        sizes = (bytes_of(leaving.counts, columns), bytes_of(counts, columns))
        return unpacked(_run(packed(leaving), *sizes, lanes, algorithm, log), columns, counts)

    return Underway(work, lanes)
