"""Memory of DisagMoE's attention and FFN GPUs. No memory formula of the paper is known: all are inferred.

Megatron-LM's convention: 2 bytes of weight, 4 of gradient, 12 of optimizer state per parameter; activations in bf16.
Planning: `moeplan.resources.memory.static_bytes` and `.peak_activation_bytes`.
"""

from __future__ import annotations

from math import ceil

from moeplan.papers.disagmoe import Layer

WEIGHT_AND_GRADIENT_BYTES = 6
OPTIMIZER_BYTES = 12


def attention_parameters(layer: Layer) -> int:
    """Parameters of attention, router and two norms of one layer: H (2 q + 2 kv) + H E + 2 H. Source: inferred.

    Left out: QK norms, shared experts.
    """
    projections = layer.hidden * (2 * layer.query_width + 2 * layer.key_width)
    return projections + layer.hidden * layer.experts + 2 * layer.hidden


def attention_state_bytes(layer: Layer, layers: float, optimizer_shards: int = 1, vocab: int = 0) -> float:
    """Bytes of the state of one attention GPU: (v [H (2 q + 2 kv) + H E + 2 H] + vocab H) (6 + 12 / shards).

    `layers` v = L/p are those of its group, of which every GPU holds all; `vocab` counts for group A_0 only.
    Source: inferred.
    """
    parameters = layers * attention_parameters(layer) + vocab * layer.hidden
    return parameters * (WEIGHT_AND_GRADIENT_BYTES + OPTIMIZER_BYTES / optimizer_shards)


def ffn_state_bytes(layer: Layer, layers: float, ffn_gpus: int) -> float:
    """Bytes of the state of one FFN GPU: 3 H D_e E L 18 / N, for all L layers and all N GPUs, whatever p is.

    Each expert lives on one GPU. Left out: the head, experts that do not divide evenly. Source: inferred.
    """
    parameters = 3 * layer.hidden * layer.expert_width * layer.experts * layers
    return parameters * (WEIGHT_AND_GRADIENT_BYTES + OPTIMIZER_BYTES) / ffn_gpus


def attention_activation_bytes(layer: Layer, tokens: float, *, send_buffer: bool = False) -> float:
    """Bytes that attention keeps of one chunk: 2 T (2 H + 2 q + 2 kv), with the buffer of the k copies + 2 T k H.

    FlashAttention, nothing recomputed. Left out: norms' statistics, router. Source: inferred.
    """
    elements = 2 * layer.hidden + 2 * layer.query_width + 2 * layer.key_width
    return 2 * tokens * (elements + (layer.top_k * layer.hidden if send_buffer else 0))


def ffn_activation_bytes(layer: Layer, rows: float) -> float:
    """Bytes that the experts keep of one chunk: 2 R (2 H + 3 D_e), R routed token copies. Source: inferred.

    Left out: silu(gate), which a fused kernel does not keep, and the rows in the order of experts.
    """
    return 2 * rows * (2 * layer.hidden + 3 * layer.expert_width)


def live_chunks(rank: int, pairs: int, virtual: int, group: int, depth: float = 1.0) -> int:
    """Most chunks alive at once on group `rank` of A_0, F_0, A_1, ...: (v - 1) G + ceil(2 (2 p - 1 - rank) x) + 1.

    Exact for `moeplan.schedules.af_pipe` with enough micro-batches (n v at least that many). Source: inferred.
    """
    return (virtual - 1) * group + ceil(2 * (2 * pairs - 1 - rank) * depth) + 1


def fits(state_bytes: float, activation_bytes: float, buffer_bytes: float, hbm_bytes: float, usable: float) -> bool:
    """Whether state + activations + M2N buffers <= usable HBM. Planning: `moeplan.optimizer.evaluate.usable_bytes`.

    Source: inferred; a usable share of 0.9 is assumed in our checks.
    """
    return state_bytes + activation_bytes + buffer_bytes <= usable * hbm_bytes
