"""Runs a program: walks this position's operations in order, with a handler per operation kind.

The interpreter knows no schedule and no family. What an operation needs has arrived, or is waited for, before it runs:
every operation lists the transfers it depends on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from moeplan.errors import ExecutionError
from moeplan.layout import experts_of
from moeplan.program import Op, Program, is_receive, keeps, text_of
from moeplan_exec import data
from moeplan_exec.all_to_all import begin_parcel
from moeplan_exec.autograd import Gradients, Kept, add_weight_gradients, backward, detached, input_gradients, leaves
from moeplan_exec.chain import edges_of
from moeplan_exec.clock import Clock
from moeplan_exec.desk import Desk, Key
from moeplan_exec.exchange import Arriving, exchange
from moeplan_exec.groups import Groups, queue_of
from moeplan_exec.hooks import Hooks
from moeplan_exec.model import Tensors, forward_of
from moeplan_exec.parameters import piece_shapes
from moeplan_exec.parcel import Parcel
from moeplan_exec.queues import Incoming, Outgoing
from moeplan_exec.shelf import Shelf
from moeplan_exec.site import Site, copy_sequences, own_sequences, own_tokens
from moeplan_exec.under_way import Underway


class Interpreter:
    """One rank's share of a program."""

    def __init__(
        self, site: Site, program: Program, groups: Groups, shelves: Mapping[int, Shelf], hooks: Hooks
    ) -> None:
        self.site, self.program, self.groups, self.shelves, self.hooks = site, program, groups, shelves, hooks
        self.clock = Clock(program, site.rank)
        self.edges = edges_of(site, groups.collective)
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, Incoming] = {}
        self.desk = Desk()
        self.step, self.seed, self.lr = 0, 0, 0.0
        weights = {name: t for shelf in shelves.values() for name, t in shelf.weights.items()}
        self.sums = {name: t for shelf in shelves.values() for name, t in shelf.gradients.items()}
        self.pieces = [
            n for n, piece in enumerate(site.graph.pieces) if site.position in site.graph.stages[piece.stage]
        ]
        self.weights = {n: {name: weights[name] for name in self._names(n)} for n in self.pieces}
        self.forwards = {n: self._forward(n) for n in self.pieces}
        self.handlers: dict[str, Callable[[Op], None]] = {
            "F": self.forward,
            "B": self.backward,
            "I": self.backward_inputs,
            "W": self.backward_weights,
            **dict.fromkeys(("dispatch", "combine", "m2n", "n2m", "send"), self.transfer),
            **dict.fromkeys(("reduce_scatter", "all_reduce", "all_gather"), self.synchronise),
            "optimizer": self.optimize,
        }

    def _names(self, piece: int) -> list[str]:
        shapes = piece_shapes(self.site.model, self.site.graph, piece, self.site.index)
        return [name for part in shapes.values() for name in part]

    def _forward(self, piece: int) -> Callable[..., Tensors]:
        workload = self.site.plan.case.workload
        own = experts_of(self.site.model, self.site.graph, self.site.index)
        size = {"seq_len": workload.seq_len, "batch": workload.global_batch}
        return forward_of(self.site.model, self.site.graph, piece, own=own, **size)

    def run_step(self, step: int, *, seed: int, lr: float) -> float:
        """One optimizer step; the share of the loss that this rank computed."""
        self.step, self.seed, self.lr, self.desk = step, seed, lr, Desk()
        self.open()
        for number in self.program.walks[self.site.position]:
            op = self.program.ops[number]
            for dep in op.deps:
                self.settle(self.program.ops[dep])
            self.hooks.before(op)
            start = time.perf_counter_ns()
            self.handlers[op.kind](op)
            if op.stream not in self.outgoing and op.id not in self.desk.arriving:
                self.clock.record(op, start)
        self.close()
        return float(sum(self.desk.losses))

    def open(self) -> None:
        """Open the queues of this step."""
        for number, stream in enumerate(self.program.streams):
            ops = [self.program.ops[n] for n in stream.ops]
            if stream.position != self.site.position or not stream.name.startswith(("send ", "receive ")):
                continue
            receiving = is_receive(self.program, ops[0])
            peers, group = self.site.group(ops[0].peers[0]), self.groups.queue[queue_of(ops[0], receiving=receiving)]
            if receiving:
                columns = {op.id: self.edges[op.piece].columns(op.phase) for op in ops}
                self.incoming[number] = Incoming(ops, columns, peers, group, self.clock, self.site.device)
            else:
                self.outgoing[number] = Outgoing(peers, group, self.clock)

    def close(self) -> None:
        """Wait for all queues to be empty."""
        for outgoing in self.outgoing.values():
            outgoing.close()
        for incoming in self.incoming.values():
            incoming.close()
        self.outgoing, self.incoming = {}, {}
        left = self.desk.left()
        if left:
            raise ExecutionError(f"step {self.step} ended with {len(left)} things unread, such as {left[0]}")

    def forward(self, op: Op) -> None:
        """F of a piece, for the first time or again (phase R)."""
        key = (op.piece, op.microbatch)
        rule = keeps(self.site.graph.pieces[op.piece], self.site.plan.recompute)
        inputs = self.again(key, rule) if op.phase == "R" else self.fresh(key)
        keep = Kept(leaves(inputs))
        with torch.set_grad_enabled(op.phase == "R" or rule == "activations"):
            outputs = self.forwards[op.piece](self.weights[op.piece], *keep.inputs)
        if op.phase == "R" or rule == "activations":
            keep.outputs = outputs
        if op.phase == "R" or rule != "nothing":
            self.desk.kept[key] = keep
        if op.phase == "F":
            self.hand_on(op, detached(outputs))

    def fresh(self, key: Key) -> Tensors:
        """The inputs of a piece: what has arrived, and what the data adds."""
        kind = self.site.graph.pieces[key[0]].kind
        if kind == "embedding":
            return (self.tokens(own_sequences(self.site, key[1]))[:, :-1],)
        inputs = self.desk.inputs.pop(key)
        if kind != "head":
            return inputs
        labels = self.tokens(copy_sequences(self.site, key[1]))[:, 1:].flatten()
        return (*inputs, labels[own_tokens(self.site, key[1])])

    def again(self, key: Key, rule: str) -> Tensors:
        """The inputs of a piece that is computed again: kept, sent again, or the outputs of the piece before."""
        if rule == "input":
            return self.desk.kept[key].inputs
        before = (key[0] - 1, key[1])
        return self.desk.inputs.pop(key) if key in self.desk.inputs else self.desk.kept[before].outputs

    def tokens(self, numbers: range) -> Tensor:
        """Sequences of this step [n, seq_len + 1]."""
        size = {"seq_len": self.site.seq_len, "vocab": self.site.model.vocab}
        return data.sequences(self.seed, self.step, numbers, **size).to(self.site.device)

    def hand_on(self, op: Op, outputs: Tensors) -> None:
        """Lay the outputs of a piece where the next operation finds them."""
        piece = self.site.graph.pieces[op.piece]
        if piece.kind == "attention" and len(outputs) > 1:
            self.hooks.routed(self.step, piece.layer, own_sequences(self.site, op.microbatch), outputs[2])
        if op.piece + 1 == len(self.site.graph.pieces):
            self.desk.losses.append(outputs[0])
            self.desk.gradients[(op.piece, op.microbatch)] = (torch.ones_like(outputs[0]),)
        elif self.site.graph.edges[op.piece].kind == "local":
            self.desk.inputs[(op.piece + 1, op.microbatch)] = outputs
        else:
            self.desk.outputs[(op.piece, op.microbatch)] = outputs

    def backward(self, op: Op) -> None:
        """B of a piece."""
        key = (op.piece, op.microbatch)
        keep, gradients = self.desk.kept.pop(key), self.desk.gradients.pop(key)
        self.hand_back(op, backward(keep, gradients, self.weights[op.piece], self.sums))

    def backward_inputs(self, op: Op) -> None:
        """I of a piece: the graph stays for its W."""
        keep = self.desk.kept[(op.piece, op.microbatch)]
        keep.gradients = self.desk.gradients.pop((op.piece, op.microbatch))
        self.hand_back(op, input_gradients(keep, keep.gradients, retain=True))

    def backward_weights(self, op: Op) -> None:
        """W of a piece."""
        keep = self.desk.kept.pop((op.piece, op.microbatch))
        add_weight_gradients(keep, keep.gradients, self.weights[op.piece], self.sums)

    def hand_back(self, op: Op, gradients: Gradients) -> None:
        """Lay the gradients of a piece's inputs where the piece before, or the transfer to it, finds them."""
        if op.piece + 1 == len(self.site.graph.pieces):
            gradients = gradients[:1]
        if op.piece > 0:
            self.desk.gradients[(op.piece - 1, op.microbatch)] = gradients

    def transfer(self, op: Op) -> None:
        """Pack what the operation before left, and let it go: to another position, or around this one."""
        edge, key = self.edges[op.piece], (op.piece, op.microbatch)
        if op.phase == "B":
            parcel = edge.pack_back(self.desk.gradients.pop(key), op.microbatch)
        else:
            outputs = detached(self.desk.kept[key].outputs) if op.phase == "R" else self.desk.outputs.pop(key)
            parcel = edge.pack(outputs, op.microbatch, op.phase)
        if op.peers:
            self.hooks.leaving(op, parcel)
            self.outgoing[op.stream].post(op, parcel)
            return
        expected = edge.counts[op.microbatch] if op.phase == "B" else None
        start = time.perf_counter_ns()
        self.desk.arriving[op.id] = (op, start, self.swap(op, parcel, expected))

    def swap(self, op: Op, parcel: Parcel, expected: Sequence[Sequence[int]] | None) -> Arriving | Underway[Parcel]:
        """Start to swap rows inside the position by the algorithm that the plan names."""
        ranks, columns = self.site.group(op.position), self.edges[op.piece].columns(op.phase)
        algorithm = self.site.graph.edges[op.piece].algorithm
        if algorithm == "flat" or ranks not in self.groups.lanes:
            return exchange(parcel, columns, self.groups.collective.get(ranks), expected)
        log = partial(self.clock.phase, op)
        return begin_parcel(parcel, columns, self.groups.lanes[ranks], expected, algorithm=algorithm, log=log)

    def settle(self, op: Op) -> None:
        """Wait for `op` if it is a transfer to this rank, and unpack what it brings."""
        if op.position == self.site.position and is_receive(self.program, op):
            self.unpack(op, self.incoming[op.stream].take(op))
        elif op.id in self.desk.arriving:
            _, start, arriving = self.desk.arriving.pop(op.id)
            self.unpack(op, arriving.wait())
            self.clock.record(op, start)

    def unpack(self, op: Op, parcel: Parcel) -> None:
        """Lay what arrived where the operation that waits for it finds it."""
        edge = self.edges[op.piece]
        if op.phase != "B":
            self.desk.inputs[(op.piece + 1, op.microbatch)] = edge.unpack(parcel, op.microbatch)
            return
        expected = edge.counts.pop(op.microbatch, parcel.counts)
        if parcel.counts != expected:
            raise ExecutionError(f"{text_of(op)}: gradients of {parcel.counts} rows came for {expected} rows")
        self.desk.gradients[(op.piece, op.microbatch)] = edge.unpack_back(parcel, op.microbatch)

    def synchronise(self, op: Op) -> None:
        """A collective over all that hold the same parameters."""
        shelf = self.shelves[op.piece]
        group = self.groups.collective.get(shelf.ranks)
        if group is not None:
            getattr(shelf, op.kind)(group)

    def optimize(self, op: Op) -> None:
        """The optimizer, on this rank's shard of everything that it holds."""
        if self.hooks.summed is not None:
            for shelf in self.shelves.values():
                self.hooks.summed(self.step, shelf.summed(self.groups.collective.get(shelf.ranks)))
        for shelf in self.shelves.values():
            shelf.optimize(self.step + 1, self.lr)
