"""Counts the bytes of all storages that are alive on each rank while one process runs all ranks of a plan.

Real modules on real tensors; when an operation runs, and what is in flight meanwhile, a timeline says, so that nothing
depends on this machine.
"""

import weakref
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moeplan.plan import program_of
from moeplan.program import COMPUTE_KINDS, is_receive
from moeplan_exec import model
from moeplan_exec.autograd import detached
from moeplan_exec.desk import Desk
from moeplan_exec.groups import Groups
from moeplan_exec.hooks import Hooks
from moeplan_exec.interpreter import Interpreter
from moeplan_exec.parcel import empty, part
from moeplan_exec.shelf import Shelf
from moeplan_exec.site import find

CPU = torch.device("cpu")


class Norm(torch.autograd.Function):
    """What the fused kernel of a GPU keeps of a norm: its input, weight, and one fp32 number per vector."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight, torch.ones(*x.shape[:-1], 1))
        return torch.empty_like(x).copy_(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone(), torch.zeros_like(ctx.saved_tensors[1])


class Flash(torch.autograd.Function):
    """What FlashAttention keeps on a GPU: queries, keys, values, output by token, one fp32 number per head."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = torch.zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3], dtype=q.dtype).transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, torch.zeros(q.shape[:3]))
        return out

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.zeros_like(t) for t in ctx.saved_tensors[:3])


class GpuKernels:
    """torch.nn.functional with the attention kernel of a GPU."""

    def __getattr__(self, name):
        return getattr(functional, name)

    def scaled_dot_product_attention(self, q, k, v, **_):
        return Flash.apply(q, k, v)


def balanced(spec, weights, layer, h):
    """`model.route`, but every expert is chosen equally often."""
    gate, choice = model_route(spec, weights, layer, h)
    choice.data.copy_((torch.arange(choice.numel()) % spec.experts).view_as(choice))
    return gate, choice


model_route = model.route


@contextmanager
def gpu_kernels():
    """Kernels that a GPU fuses keep what they keep there; routing is balanced, as predictions take it."""
    before, threads = (model.norm, model.functional, model.route), torch.get_num_threads()
    torch.set_num_threads(1)
    model.norm = lambda spec, x, weight: Norm.apply(x, weight)
    model.functional, model.route = GpuKernels(), balanced
    try:
        yield
    finally:
        model.norm, model.functional, model.route = before
        torch.set_num_threads(threads)


class LiveBytes(TorchDispatchMode):
    """Bytes of storages that operations under this mode have made or read and that are still there."""

    def __init__(self):
        super().__init__()
        self.there, self.bytes, self.base, self.peak = {}, 0, 0, 0

    def see(self, tensor):
        if not isinstance(tensor, torch.Tensor):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.there:
            self.there[key] = weakref.ref(storage, lambda _: self.gone(key, size))
            self.bytes += size

    def gone(self, key, size):
        if self.there.pop(key, None) is not None:
            self.bytes -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for tensor in tree_leaves((args, kwargs)):
            self.see(tensor)
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self.see(tensor)
        self.peak = max(self.peak, self.bytes - self.base)
        return result


class Watched(dict):
    """What a desk keeps; `most` are the most micro-batches of virtual stages in it at once."""

    def __init__(self, stages):
        super().__init__()
        self.stages, self.most = stages, 0

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.most = max(self.most, len({(self.stages[piece], microbatch) for piece, microbatch in self}))


class Rank(Interpreter):
    """One rank whose transfers wait for the timeline instead of a network."""

    def __init__(self, plan, program, rank):
        site = find(plan, rank, CPU, torch.bfloat16)
        shelves = {
            number: Shelf(site, replica, 0, None)
            for number, replica in enumerate(plan.graph.replicas)
            if any(rank in group for group in replica.groups)
        }
        super().__init__(site, program, Groups({}, {}), shelves, Hooks())
        self.desk = Desk(kept=Watched([piece.stage for piece in plan.graph.pieces]))
        self.leaving, self.arriving, self.arrived, self.live = {}, {}, {}, LiveBytes()
        held = [vars(self), *map(vars, self.edges.values()), *map(vars, shelves.values())]
        for tensor in tree_leaves([list(values.values()) for values in held]):
            self.live.see(tensor)
        self.live.base = self.live.bytes

    def run(self, op):
        """A compute operation, once what it waits for is unpacked."""
        with self.live:
            for dep in op.deps:
                if dep in self.arrived:
                    self.unpack(self.program.ops[dep], self.arrived.pop(dep))
            self.handlers[op.kind](op)

    def pack(self, op):
        """What the operation before a transfer left, ready to go."""
        edge, key = self.edges[op.piece], (op.piece, op.microbatch)
        with self.live:
            if op.phase == "B":
                self.leaving[op.id] = edge.pack_back(self.desk.gradients.pop(key), op.microbatch)
            else:
                outputs = detached(self.desk.kept[key].outputs) if op.phase == "R" else self.desk.outputs.pop(key)
                self.leaving[op.id] = edge.pack(outputs, op.microbatch, op.phase)

    def room_for(self, op, parcels):
        """Tables into which `parcels`, one of each sender, will be written."""
        rows = [
            [parcel.counts[table][self.site.index] for parcel in parcels] for table in range(len(parcels[0].counts))
        ]
        with self.live:
            self.arriving[op.id] = empty(self.edges[op.piece].columns(op.phase), rows, CPU)

    def land(self, op, parcels):
        """`parcels` have come."""
        parcel = self.arriving.pop(op.id)
        for number, table in enumerate(parcel.tables):
            torch.cat([part(sent, self.site.index)[number] for sent in parcels], out=table)
        self.arrived[op.id] = parcel


class Measured(NamedTuple):
    peak: int
    """Bytes beside weights, gradients and optimizer."""
    live: int
    """Most live micro-batches of virtual stages."""


def events(program, timeline):
    """(what, operation) in the order of time: run, and pack, leave and land of a transfer."""
    found = []
    for op in program.ops:
        start, end = timeline.start_ns[op.id], timeline.end_ns[op.id]
        if op.kind in COMPUTE_KINDS:
            found.append((start, 3, op.id, "run"))
        elif op.phase != "S" and not is_receive(program, op):
            found.append((max(timeline.end_ns[dep] for dep in op.deps), 1, op.id, "pack"))
            found += [(start, 2, op.id, "leave"), (end, 0, op.id, "land")]
    return [(what, program.ops[number]) for _, _, number, what in sorted(found)]


class World:
    """All ranks of a plan in this process."""

    def __init__(self, plan, program):
        self.plan, self.program = plan, program
        self.ranks = {r: Rank(plan, program, r) for p in plan.graph.positions for group in p.ranks for r in group}
        self.halves = {op.deps[0]: op for op in program.ops if is_receive(program, op)}

    def do(self, what, op):
        """One event at every rank that takes part."""
        there = self.halves.get(op.id, op)
        positions = self.plan.graph.positions
        for senders, receivers in zip(positions[op.position].ranks, positions[there.position].ranks, strict=True):
            at = [self.ranks[r] for r in senders]
            if what in ("run", "pack"):
                for rank in at:
                    getattr(rank, what)(op)
                continue
            parcels = [rank.leaving[op.id] for rank in at]
            alone = op is there and len(at) == 1
            for rank in (self.ranks[r] for r in receivers):
                if what == "leave" and not alone:
                    rank.room_for(there, parcels)
                elif what == "land" and alone:
                    rank.arrived[op.id] = parcels[0]
                elif what == "land":
                    rank.land(there, parcels)
            if what == "land":
                for rank in at:
                    del rank.leaving[op.id]


def measured(plan, timeline_of):
    """What the first rank of each position has alive in a step that runs as `timeline_of(program)` says."""
    program = program_of(plan)
    with gpu_kernels():
        world = World(plan, program)
        for what, op in events(program, timeline_of(program)):
            world.do(what, op)
    first = [world.ranks[place.ranks[0][0]] for place in plan.graph.positions]
    assert not any(rank.desk.left() for rank in world.ranks.values())
    return [Measured(rank.live.peak, rank.desk.kept.most) for rank in first]
