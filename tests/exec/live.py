"""Counts the bytes of all storages that are alive on a rank of a real run, and the micro-batches that it keeps."""

import weakref

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moeplan.plan import program_of, world_size
from moeplan_exec import interpreter, model
from moeplan_exec.desk import Desk
from moeplan_exec.hooks import Hooks
from moeplan_exec.launch import fork
from moeplan_exec.run import Options, run_rank


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


class LiveBytes(TorchDispatchMode):
    """Bytes of storages that operations of this thread have made or read and that are still there."""

    def __init__(self):
        super().__init__()
        self.there, self.bytes, self.base, self.peak, self.counting = {}, 0, 0, 0, False

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
        if self.counting:
            self.peak = max(self.peak, self.bytes - self.base)
        return result


class Watched(dict):
    """What a desk keeps; `most` are the most micro-batches of virtual stages in it at once."""

    most, stages = 0, ()

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        Watched.most = max(Watched.most, len({(Watched.stages[piece], microbatch) for piece, microbatch in self}))


class WatchedDesk(Desk):
    def __init__(self):
        super().__init__(kept=Watched())


def measured(plan):
    """(peak bytes beside weights, gradients and optimizer; most live micro-batches) of every rank in its second step.

    All ranks run here, on CPU, in bf16; kernels that a GPU fuses keep what they keep there.
    """
    program = program_of(plan)
    options = Options(steps=2, dtype="bf16", timeout_s=60, trace=False)

    def body(start, report):
        model.norm = lambda spec, x, weight: Norm.apply(x, weight)
        model.functional, interpreter.Desk = GpuKernels(), WatchedDesk
        Watched.stages = [piece.stage for piece in plan.graph.pieces]
        live, steps = LiveBytes(), []
        here = next(p for p, place in enumerate(plan.graph.positions) if any(start.rank in g for g in place.ranks))

        def before(op):
            if op.id == program.walks[here][0]:
                steps.append(live.bytes)
                live.base, live.counting = live.bytes, len(steps) == options.steps
            live.counting = live.counting and op.phase != "S"

        with live:
            run_rank(plan, options, start, hooks=Hooks(before=before))
        return live.peak, Watched.most

    return fork(world_size(plan), body)
