"""What is trained per step, and how many bytes one parameter costs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.model import Size
from moeplan.spec.record import Record


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
    optimizer_bytes: Annotated[float, msgspec.Meta(ge=0, le=32)] = 12.0
    """Master weight and two Adam moments, divided over the ranks that hold the same parameter."""
    optimizer_shards: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Ranks over which the optimizer state is divided; 0 means all that hold the same parameter."""
    zero: Annotated[int, msgspec.Meta(ge=0, le=3)] = 1
    """What ranks with the same parameters divide: 1 optimizer state, 2 gradients too, 3 weights too (FSDP); 0 nothing.
    """
    offload: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of the optimizer state that the host's memory holds."""
    usable: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """Share of HBM for planned bytes; the rest is left to the allocator, communicators and workspaces (assumed)."""
    activations: Literal["kept", "piper"] = "kept"
    """What counts as activations: all that autograd keeps, or the terms of Piper (arXiv 2605.05049)."""


def gradient_bytes(memory: Memory) -> float:
    """Bytes of gradient per parameter: what weight and optimizer state leave."""
    return memory.bytes_per_parameter - memory.weight_bytes - memory.optimizer_bytes


def check_memory(memory: Memory) -> Memory:
    """`memory`, or SpecError where weight and optimizer state alone are more than all bytes of a parameter."""
    if gradient_bytes(memory) < -1e-9:
        parts = f"weight_bytes {memory.weight_bytes} + optimizer_bytes {memory.optimizer_bytes}"
        raise SpecError(f"memory: bytes_per_parameter {memory.bytes_per_parameter} is less than {parts}")
    return memory
