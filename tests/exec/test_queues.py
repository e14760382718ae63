"""Queues between positions: never waiting in a send, nothing kept, and no message taken for another."""

import time
import weakref

import pytest
import torch
import torch.distributed as dist
from cases import model, plan_of

from moeplan.errors import ExecutionError
from moeplan.layout import Colocated
from moeplan.plan import program_of
from moeplan_exec.clock import Clock
from moeplan_exec.launch import fork
from moeplan_exec.parcel import Parcel
from moeplan_exec.queues import Incoming, Outgoing
from moeplan_exec.start import join

COLUMNS = ((torch.int64, 1), (torch.float64, 4))


def parcel_of(rows):
    tables = (torch.arange(rows)[:, None], torch.full((rows, 4), float(rows), dtype=torch.float64))
    return Parcel(tables, ((rows,), (rows,)))


def over_a_queue(sender, receiver):
    """Run `sender(outgoing, sends)` on rank 0 and `receiver(incoming, receives)` on rank 1; their results."""
    program = program_of(plan_of(model(num_layers=2), Colocated(pp=2), 2, global_batch=3))
    sends, receives = (
        next([program.ops[n] for n in s.ops] for s in program.streams if s.name.startswith(f"{half} send.F"))
        for half in ("send", "receive")
    )

    def body(start, report):
        device = join(start, "cpu", timeout_s=20, token="")
        group, clock = dist.new_group([0, 1]), Clock(program, start.rank)
        if start.rank == 0:
            return sender(Outgoing([1], group, clock), sends)
        columns = {op.id: COLUMNS for op in receives}
        return receiver(Incoming(receives, columns, [0], group, clock, device), receives)

    return fork(2, body)


def test_a_send_returns_before_anyone_receives_and_its_rows_are_freed_after():
    def sender(outgoing, sends):
        begin = time.monotonic()
        parcels = [parcel_of(rows) for rows in (3, 0, 20000)]
        kept = [weakref.ref(parcel.tables[1]) for parcel in parcels]
        for op in sends:
            outgoing.post(op, parcels.pop(0))
        posted = time.monotonic() - begin
        outgoing.close()
        return posted, [ref() is None for ref in kept]

    def receiver(incoming, receives):
        time.sleep(0.5)
        backwards = [incoming.take(op) for op in reversed(receives)]
        incoming.close()
        return [(parcel.counts, float(parcel.tables[1].sum())) for parcel in reversed(backwards)]

    (posted, freed), received = over_a_queue(sender, receiver)
    assert posted < 0.4
    assert freed == [True] * 3
    assert received == [(((n,), (n,)), 4.0 * n * n) for n in (3, 0, 20000)]


def test_a_message_out_of_order_is_refused():
    def sender(outgoing, sends):
        outgoing.post(sends[1], parcel_of(1))
        outgoing.close()

    def receiver(incoming, receives):
        incoming.take(receives[0])

    with pytest.raises(ExecutionError, match=r"from rank 0: edge 3, micro-batch 1 came where edge 3, micro-batch 0"):
        over_a_queue(sender, receiver)
