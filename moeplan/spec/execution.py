"""How the software carries out a step: the defaults are what moeplan's own executor does, the rest what others do."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from moeplan.errors import SpecError
from moeplan.spec.record import Record

Linear = Literal["same", "fp8", "fp8_block", "mxfp8", "nvfp4"]
Hidden = Literal["tensor", "expert", "context", "gradients", "parameters"]

PEAKS = {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Whose peak an element type's share is of, where it is not its own."""


class Execution(Record):
    """What of a step is neither model nor layout: element types of kernels, their fusion, and what runs at once."""

    linear: Linear = "same"
    """What linear layers and experts multiply in: the workload's element type, or a narrower one with scales per
    tensor (fp8), per block of 128 (fp8_block), per 32 (mxfp8) or per 16 elements (nvfp4)."""
    kernels: Literal["eager", "compiled", "fused"] = "eager"
    """Elementwise passes, and what autograd keeps: one operation each as PyTorch runs them; passes joined by
    torch.compile, while as much is kept; or both joined, as in Megatron-LM with Transformer Engine."""
    loss: Literal["eager", "fused", "chunked"] = "eager"
    """Cross entropy over whole fp32 logits, in one fused kernel, or in chunks that are never all there."""
    flash_attention: bool = True
    """Whether scores stay inside the attention kernel; otherwise they are written and kept."""
    sequence_parallel: bool = True
    """Whether tensor-parallel ranks divide the rows between their blocks, norms and residuals, among them; otherwise
    each has all of them. What crosses links is the same."""
    attention_kernel: Literal["latest", "flash2"] = "latest"
    """The fastest kernel that the calibration knows, or FlashAttention-2, which older stacks run on every machine."""
    dispatcher: Literal["all_to_all", "all_gather", "deepep", "hybridep"] = "all_to_all"
    """How rows reach their experts: NCCL's all-to-all of all copies, an all-gather of all tokens, or kernels that send
    a token once to every node (DeepEP) or NVLink domain (HybridEP)."""
    rows: Literal["same", "fp8"] = "same"
    """What rows are sent to experts in: the workload's element type, or 8 bits with a scale per 128 elements (DeepEP);
    what comes back, and gradients, are in the workload's."""
    exchange: Literal["fastest", "flat", "two_level", "halo", "halo_chunked"] = "fastest"
    """How that all-to-all goes between nodes: straight to every rank, in two levels, by HALO (Piper, arXiv 2605.05049)
    at once or in chunks,    or by what costs least, which the plan then names edge by edge."""
    capacity: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    """Rows per expert that are computed, over the mean: fewer are padded, more dropped; 0: none is either."""
    graphs: Literal["none", "layers", "step"] = "none"
    """CUDA graphs: of what is static in each layer, or of the whole step; their kernels need no launch."""
    hidden: tuple[Hidden, ...] = ()
    """Communication that runs behind compute: of tensor-parallel blocks, of experts, of context-parallel attention, of
    gradients after each layer's backward, of parameters before each layer's forward."""


def check_execution(execution: Execution) -> Execution:
    """`execution`, or SpecError where fewer rows are computed than experts receive in the mean."""
    if 0 < execution.capacity < 1:
        raise SpecError(f"execution: capacity {execution.capacity:g} is below 1, the mean; 0 is no capacity factor")
    return execution
