"""Transfers between positions: queues in the sender's order, each with a process group and a thread of its own.

A message is a header (edge, micro-batch, rows per table) and the tables that are not empty. The thread of an outgoing
queue posts messages and frees them once they have left, so that the interpreter never waits in a send. The thread of an
incoming queue has the next header posted at all times and posts the rows when it has read one. Works of gloo tell
nobody that they are done but the one who waits for them: hence threads.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist

from moeplan.errors import ExecutionError
from moeplan.program import Op
from moeplan_exec.clock import Clock
from moeplan_exec.parcel import Column, Parcel, empty, part
from moeplan_exec.worker import Worker

HEADER_TAG = 0
AHEAD = 2
"""Messages that may lie in a queue before anyone asks for them."""


class Outgoing:
    """A queue of this rank to the ranks `peers` of another position, open for one step."""

    def __init__(self, peers: Sequence[int], group: dist.ProcessGroup, clock: Clock) -> None:
        self.peers, self.group, self.clock = peers, group, clock
        self.messages: queue.SimpleQueue[tuple[Op, Parcel] | None] = queue.SimpleQueue()
        self.worker = Worker(self._post_all)

    def post(self, op: Op, parcel: Parcel) -> None:
        """Send `parcel` after all that were posted before; returns at once."""
        self.messages.put((op, parcel))

    def close(self) -> None:
        """Wait until everything has left."""
        self.messages.put(None)
        self.worker.join()

    def _post_all(self) -> None:
        while True:
            message = self.messages.get()
            if message is None:
                return
            self._deliver(*message)
            del message

    def _deliver(self, op: Op, parcel: Parcel) -> None:
        start = time.perf_counter_ns()
        for work in self._post(op, parcel):
            work.wait()
        self.clock.record(op, start)

    def _post(self, op: Op, parcel: Parcel) -> list[dist.Work]:
        works = []
        for index, rank in enumerate(self.peers):
            header = torch.tensor([op.piece, op.microbatch, *(rows[index] for rows in parcel.counts)])
            works.append(dist.isend(header, rank, group=self.group, tag=HEADER_TAG))
            works += [
                dist.isend(table.contiguous(), rank, group=self.group, tag=tag)
                for tag, table in enumerate(part(parcel, index), start=HEADER_TAG + 1)
                if len(table)
            ]
        return [work for work in works if work is not None]


class Incoming:
    """A queue from the ranks `peers` of another position to this rank, open for one step."""

    def __init__(
        self,
        ops: Iterable[Op],
        columns: Mapping[int, Sequence[Column]],
        peers: Sequence[int],
        group: dist.ProcessGroup,
        clock: Clock,
        device: torch.device,
    ) -> None:
        self.ops, self.columns, self.peers, self.group = list(ops), columns, peers, group
        self.clock, self.device = clock, device
        self.mailbox: dict[int, Parcel] = {}
        self.arrived: queue.Queue[tuple[Op, Parcel] | BaseException] = queue.Queue(AHEAD)
        self.worker = Worker(self._receive_all)

    def take(self, op: Op) -> Parcel:
        """The parcel of `op`; those that the sender sent before wait in the mailbox."""
        while op.id not in self.mailbox:
            message = self.arrived.get()
            if isinstance(message, BaseException):
                raise message
            self.mailbox[message[0].id] = message[1]
        return self.mailbox.pop(op.id)

    def close(self) -> None:
        """Wait until everything has arrived."""
        self.worker.join()

    def _receive_all(self) -> None:
        try:
            headers = self._post_headers(self.ops[0])
            for op, following in zip(self.ops, [*self.ops[1:], None], strict=True):
                counts = self._read(op, headers)
                headers = self._post_headers(following) if following else []
                self.arrived.put((op, self._receive(op, counts)))
        except BaseException as error:
            self.arrived.put(error)
            raise

    def _post_headers(self, op: Op) -> list[tuple[torch.Tensor, dist.Work]]:
        posted = []
        for rank in self.peers:
            header = torch.empty(2 + len(self.columns[op.id]), dtype=torch.int64)
            work = dist.irecv(header, rank, group=self.group, tag=HEADER_TAG)
            if work is not None:
                posted.append((header, work))
        return posted

    def _read(self, op: Op, headers: Sequence[tuple[torch.Tensor, dist.Work]]) -> list[list[int]]:
        """Rows [table][peer] that the headers of `op` announce; ExecutionError where they belong to another one."""
        rows = []
        for rank, (header, work) in zip(self.peers, headers, strict=True):
            work.wait()
            edge, microbatch, *counts = header.tolist()
            if (edge, microbatch) != (op.piece, op.microbatch):
                raise ExecutionError(
                    f"{op.kind}.{op.phase} from rank {rank}: edge {edge}, micro-batch {microbatch} came"
                    f" where edge {op.piece}, micro-batch {op.microbatch} was due"
                )
            rows.append(counts)
        return [list(table) for table in zip(*rows, strict=True)]

    def _receive(self, op: Op, counts: Sequence[Sequence[int]]) -> Parcel:
        start = time.perf_counter_ns()
        parcel = empty(self.columns[op.id], counts, self.device)
        works = [
            dist.irecv(table, rank, group=self.group, tag=tag)
            for index, rank in enumerate(self.peers)
            for tag, table in enumerate(part(parcel, index), start=HEADER_TAG + 1)
            if len(table)
        ]
        for work in works:
            if work is not None:
                work.wait()
        self.clock.record(op, start)
        return parcel
