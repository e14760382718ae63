"""Elementwise passes between matrix products: bytes through HBM and launches, eager as PyTorch runs them, or fused.

Counts are elements read and written once each. Fused are those of Megatron-LM with Transformer Engine: one kernel per
norm with residual, rotary embedding, activation. Eager runs one kernel per operation. Launch counts are assumed: read
off the operations of each block, not measured.
"""

from __future__ import annotations

from typing import NamedTuple

from moeplan.resources.kernels import NARROW_BYTES, Compute, stream
from moeplan.spec.execution import Execution

QUANTISED_BYTES = {"nvfp4": 7.0}
ROUTER_BYTES = 24
"""Of one logit: written in fp32, read by softmax and top-k, probabilities and map written; backward alike (assumed)."""
FUSED_PERMUTE = 0.7
"""Share of the permutation's bytes that HybridEP, which permutes as it sends, leaves (assumed)."""


JOINED = {"eager": "eager", "compiled": "fused", "fused": "fused"}
"""Which passes run, by `Execution.kernels`: what torch.compile makes is taken for as good as kernels made by hand."""


class Rule(NamedTuple):
    """Elements per element and launches of one kind of pass, forward and backward."""

    forward: float
    backward: float
    launches: int = 1
    backward_launches: int = 1


NORM = {"eager": Rule(5, 9, 2, 4), "fused": Rule(5, 9, 2, 2)}
"""Per hidden: a norm reads and writes, adding the residual reads two and writes one; backward also its sums."""
ROTATED = {"eager": Rule(9, 9, 10, 10), "fused": Rule(2, 2, 4, 4)}
"""Per element of queries and keys, each launched by itself and split off first: eager negates, joins, multiplies twice
and adds."""
COPIED = {"eager": Rule(2, 2, 1, 1), "fused": Rule(2, 2, 1, 1)}
"""Per element: read and written once."""
NORMED = {"eager": Rule(2, 4, 2, 4), "fused": Rule(2, 4, 2, 4)}
"""Per element of a norm without residual."""
GATED = {"eager": Rule(5, 9, 2, 4), "fused": Rule(3, 5, 1, 1)}
"""Per inner width, silu(gate) * up: eager writes silu between."""
UNGATED = {"eager": Rule(2, 3), "fused": Rule(2, 3)}
"""Per inner width, an activation without gate."""
SUMMED = {"eager": Rule(3, 3, 2, 2), "fused": Rule(0, 0, 0, 0)}
"""Per row and hidden, eager: weighing rows and adding them up reads and writes once more."""
SCORES = {"eager": Rule(8, 11, 4, 5), "fused": Rule(4, 7, 1, 1)}
"""Per score that is written out, masked ones too. Forward: the product writes, the softmax reads and writes, the next
product reads; backward: one product reads probabilities, one writes their gradient, the softmax reads both and writes,
two products read. Scaling and masking are two more passes of two, or inside the fused softmax (Megatron-LM's
scaled masked softmax). Left out: dropout."""
LOSS_BYTES = {"eager": Rule(14, 14, 4, 4), "fused": Rule(8, 6, 2, 2), "chunked": Rule(8, 6, 8, 8)}
"""Bytes per logit: eager casts to fp32 (6) and writes the logarithms (8), and the same back; fused writes the fp32
softmax over the cast and, backward, the gradient from it."""
ROUTER_LAUNCHES = {"eager": 24, "fused": 20}
"""Casts, softmax, top-k, map, probabilities and the auxiliary loss."""
PERMUTE_LAUNCHES = {"all_to_all": 16.0, "all_gather": 12.0, "deepep": 6.0, "hybridep": 4.0}
"""Counts, their exchange and copies to the host, row maps, and the copies of rows and probabilities both ways."""


def elementwise(rule: Rule, elements: float, size: float, launches: float | None = None) -> Compute:
    """The pass `rule` over `elements` of `size` bytes; `launches` counts the elements' pieces (1)."""
    pieces = 1.0 if launches is None else launches
    moved = elements * size
    return stream(rule.forward * moved, rule.backward * moved, rule.launches * pieces, rule.backward_launches * pieces)


def quantised(rows: float, inner: float, columns: float, execution: Execution, groups: float = 1.0) -> list[Compute]:
    """Casts around one linear layer in a narrow type: of the input before it, of the gradient behind it.

    Each reads bf16 and writes a copy along rows and one along columns: 4 B per element, 7 B in NVFP4 with its
    transforms. None where linear layers run in the workload's type. Left out: casts of weights, which Transformer
    Engine makes for the first micro-batch of a step and keeps for the others (`is_first_microbatch`).
    """
    if execution.linear == "same":
        return []
    each = QUANTISED_BYTES.get(execution.linear, 4.0)
    return [stream(rows * inner * each, rows * columns * each, 2 * groups, 2 * groups)._replace(cast=True)]


def permuted(tokens: float, top_k: float, width: float, size: float, execution: Execution) -> Compute:
    """Copies of own tokens sorted by expert before the dispatch, and brought back behind the combine.

    Elements: (1 + k) width each way, eager 3 k width more for weighing and adding up; backward the same.
    """
    factor = FUSED_PERMUTE if execution.dispatcher == "hybridep" else 1.0
    summed = SUMMED[JOINED[execution.kernels]]
    moved = factor * tokens * width * size * (2 * (1 + top_k) + summed.forward * top_k)
    return stream(moved, moved, PERMUTE_LAUNCHES[execution.dispatcher] + summed.launches)


def sorted_again(rows: float, width: float, size: float, experts: float, execution: Execution) -> list[Compute]:
    """Received rows brought from the order of their senders to that of local experts, and back: 2 width each way.

    Only behind an all-to-all, and where a rank has several experts.
    """
    if execution.dispatcher != "all_to_all" or experts <= 1:
        return []
    moved = 4 * rows * width * size
    return [stream(moved, moved, 4.0)]


def operand_bytes(execution: Execution) -> float | None:
    """Bytes of what linear layers multiply, None where it is the workload's type."""
    return NARROW_BYTES.get(execution.linear)
