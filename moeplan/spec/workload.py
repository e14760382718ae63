"""What is trained per step, and how many bytes one parameter costs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.model import Size
from moeplan.spec.record import Record
from moeplan.units import Bytes


class Workload(Record):
    """One optimizer step."""

    seq_len: Size
    """Tokens per sequence."""
    global_batch: Size
    """Sequences per step."""
    dtype: Literal["bf16", "fp32", "fp64"] = "bf16"


class Memory(Record):
    """Bytes per parameter and the share of HBM that may be planned with."""

    bytes_per_parameter: Annotated[float, msgspec.Meta(ge=0, le=64)] = 18.0
    """Weight, gradient and optimizer state together; the gradient is what the other two leave (18 = 2 + 4 + 12)."""
    weight_bytes: Annotated[float, msgspec.Meta(ge=0, le=16)] = 2.0
    """Held beside gathered ones; 0 where the fp32 main parameters are all there is between steps (PyTorch FSDP)."""
    optimizer_bytes: Annotated[float, msgspec.Meta(ge=0, le=32)] = 12.0
    """Master weight and two Adam moments, divided over the ranks that hold the same parameter."""
    main_bytes: Annotated[float, msgspec.Meta(ge=0, le=16)] = 4.0
    """Of `optimizer_bytes`, those of the master weight; the rest are moments."""
    optimizer_shards: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Ranks over which the optimizer state is divided; 0 means all that hold the same parameter."""
    zero: Annotated[int, msgspec.Meta(ge=0, le=3)] = 1
    """What ranks with the same parameters divide: 1 optimizer state, 2 gradients too, 3 weights too (FSDP); 0 nothing.

    With 3, the layer that runs and the one fetched for it are there in whole, or, where the pipeline has several
    positions, all layers and their gradients from the first to the last micro-batch (torchtitan's default).
    """
    offload: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of the optimizer state that the host's memory holds."""
    usable: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """Share of HBM that tensors may fill; the rest is kept for what is counted beside them: `reserve`, `communicator`
    and `context` (assumed)."""
    reserve: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05
    """What the allocator holds more than it has given out, over what it has: 0.03-0.09 for Megatron-LM on B200, by
    SimuMax's tables of max_allocated and reserved (docs, b200_release_v1.2_summary)."""
    communicator: Bytes = Bytes(616e6)
    """Of each process group of several ranks, on every rank in it: 544-688 MB were measured (NVIDIA/nccl on GitHub,
    issue 964)."""
    context: Bytes = Bytes(1e9)
    """The driver's context and loaded kernels (assumed)."""
    mtp: bool = False
    """Whether the model's multi-token-prediction modules are trained too: on the last stage, with copies of the
    embedding's gradient, state and weights where that is another one."""
    dropout: bool = False
    """Whether dropout after attention and after an FFN keeps its mask, 1 byte per element."""
    activations: Literal["kept", "piper"] = "kept"
    """What counts as activations: all that autograd keeps, or the terms of Piper (arXiv 2605.05049)."""


def gradient_bytes(memory: Memory) -> float:
    """Bytes of gradient per parameter: what weight and optimizer state leave."""
    return memory.bytes_per_parameter - memory.weight_bytes - memory.optimizer_bytes


def bytes_of_one(memory: Memory, ranks: int) -> float:
    """Bytes of one parameter and what belongs to it on each of `ranks` that hold the same: what ZeRO divides over all
    of them, or over `optimizer_shards`; without what is gathered while layers run."""
    shards = memory.optimizer_shards or ranks
    parts = (memory.optimizer_bytes * (1 - memory.offload), gradient_bytes(memory), memory.weight_bytes)
    return sum(part / (shards if memory.zero >= level else 1) for level, part in enumerate(parts, 1))


def check_memory(memory: Memory) -> Memory:
    """`memory`, or SpecError where parts of a parameter's bytes exceed the whole, or what is whole is divided."""
    if gradient_bytes(memory) < -1e-9:
        parts = f"weight_bytes {memory.weight_bytes} + optimizer_bytes {memory.optimizer_bytes}"
        raise SpecError(f"memory: bytes_per_parameter {memory.bytes_per_parameter} is less than {parts}")
    if memory.main_bytes > memory.optimizer_bytes:
        parts = f"main_bytes {memory.main_bytes} > optimizer_bytes {memory.optimizer_bytes}"
        raise SpecError(f"memory: {parts}, of which it is a part")
    if memory.zero == 0 and memory.optimizer_shards > 1:
        shards = memory.optimizer_shards
        raise SpecError(f"memory: optimizer_shards {shards} with zero 0, which divides nothing; it may be 0 or 1")
    return memory
