"""Piper's memory model, as printed and with its inconsistencies removed, and which PP x EP meshes it leaves.

As printed, the batch b is the whole batch in both activation terms, but only the experts' is divided by EP, layers
divide evenly over stages, and stage i keeps PP - i micro-batches however few there are. Left out by both: embedding,
head, logits, router, norms, shared experts, transfer buffers, recomputation. Planning:
`moeplan.resources.memory.static_bytes` and `.peak_activation_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.papers.piper import Shape, attention_state_bytes_paper, expert_state_bytes_paper


class MemoryInputs(NamedTuple):
    """A model, its batch and its mesh."""

    shape: Shape
    heads: int
    seq_len: int
    batch: float
    """Sequences of one step on all GPUs."""
    microbatches: int = 1
    pp: int = 1
    ep: int = 1
    scores: bool = True
    """Whether attention keeps its scores; FlashAttention does not."""


def attention_activation_bytes_paper(inputs: MemoryInputs, batch: float) -> float:
    """Bytes that attention of one layer keeps of `batch` sequences: 12 b s d + 4 b H s^2 (scores; 0 if not kept).

    Left out: grouped keys. Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    scores = 4 * inputs.heads * inputs.seq_len**2 if inputs.scores else 0
    return batch * (12 * inputs.seq_len * inputs.shape.hidden + scores)


def experts_activation_bytes_paper(inputs: MemoryInputs, batch: float) -> float:
    """Bytes that all experts of one layer keep of `batch` sequences: 2 b s k (3 f + d), 2 f with two matrices.

    Left out: imbalance. Source: Piper (arXiv 2605.05049), memory model; printed with 3 f.
    """
    shape = inputs.shape
    rows = batch * inputs.seq_len * shape.top_k
    return 2 * rows * (shape.matrices * shape.expert_width + shape.hidden)


def expert_activation_bytes_paper(inputs: MemoryInputs, batch: float) -> float:
    """Bytes that one expert keeps of `batch` sequences: 2 (b s k / E) (3 f + d).

    Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    return experts_activation_bytes_paper(inputs, batch) / inputs.shape.experts


def layer_state_bytes_paper(inputs: MemoryInputs) -> float:
    """Bytes of weights, gradients and optimizer state of one layer on one GPU: 64 d^2 + 48 (E / EP) d f.

    Attention is whole on each GPU. Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    shape = inputs.shape
    return attention_state_bytes_paper(shape.hidden) + expert_state_bytes_paper(shape, shape.experts / inputs.ep)


def state_bytes_exact(inputs: MemoryInputs) -> float:
    """Bytes of state of one GPU of the fullest stage: ceil(L / PP) `layer_state_bytes_paper`. Source: inferred."""
    return ceil(inputs.shape.layers / inputs.pp) * layer_state_bytes_paper(inputs)


def memory_unpartitioned_paper(inputs: MemoryInputs) -> float:
    """Bytes of the model on one imaginary GPU: L (64 d^2 + 48 E d f + 12 b s d + 4 H b s^2 + 2 b s k (3 f + d)).

    Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    return memory_expert_data_parallel_paper(inputs._replace(ep=1))


def memory_expert_data_parallel_paper(inputs: MemoryInputs) -> float:
    """Bytes per GPU with EP alone: L (64 d^2 + 48 E/EP d f + 12 b s d + 4 H b s^2 + 2 b s k/EP (3 f + d)).

    Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    return inputs.shape.layers * (layer_state_bytes_paper(inputs) + _activation_bytes_paper(inputs, inputs.batch))


def memory_1f1b_paper(inputs: MemoryInputs, stage: int = 0) -> float:
    """Bytes per GPU of `stage` under 1F1B: L/PP (64 d^2 + 48 E/EP d f + (PP - i) [12 b/M s d + 4 b/M H s^2
    + 2 b s k/(M EP) (3 f + d)]).

    Stage 0 decides whether it fits. SpecError for a stage that is not there. Exact: `memory_1f1b_exact`.
    Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    _check_stage(inputs, stage)
    kept = _activation_bytes_paper(inputs, inputs.batch / inputs.microbatches)
    return inputs.shape.layers / inputs.pp * (layer_state_bytes_paper(inputs) + (inputs.pp - stage) * kept)


def memory_1f1b_exact(inputs: MemoryInputs, stage: int = 0) -> float:
    """Bytes per GPU of `stage` under 1F1B: ceil(L/PP) (64 d^2 + 48 E/EP d f + min(M, PP - i) [12 u s d + 4 u H s^2
    + 2 u s k (3 f + d)]), u = b / (M EP) sequences per GPU and micro-batch.

    Stages other than the fullest may hold a layer less. SpecError for a stage that is not there. Source: inferred.
    """
    _check_stage(inputs, stage)
    per_gpu = inputs.batch / (inputs.microbatches * inputs.ep)
    kept = attention_activation_bytes_paper(inputs, per_gpu) + experts_activation_bytes_paper(inputs, per_gpu)
    alive = min(inputs.microbatches, inputs.pp - stage)
    return state_bytes_exact(inputs) + ceil(inputs.shape.layers / inputs.pp) * alive * kept


def stage_gap_paper(inputs: MemoryInputs) -> float:
    """Bytes of the first stage above the last: L (PP - 1)/PP [12 b/M s d + 4 b/M H s^2 + 2 b s k/(M EP) (3 f + d)].

    Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    kept = _activation_bytes_paper(inputs, inputs.batch / inputs.microbatches)
    return inputs.shape.layers * (inputs.pp - 1) / inputs.pp * kept


def memory_gpipe(inputs: MemoryInputs) -> float:
    """Bytes per GPU under GPipe: L/PP (64 d^2 + 48 E/EP d f + 12 b s d + 4 b H s^2 + 2 b s k/EP (3 f + d)).

    The printed 1F1B with all M micro-batches alive at every stage. Source: inferred; the paper's own is unknown.
    """
    return memory_expert_data_parallel_paper(inputs) / inputs.pp


def widest_ep_paper(gpus_per_node: int, nodes_per_switch: int) -> int:
    """Largest EP that stays in one single-hop switch group: g N_h; 32 on Frontier (8 GPUs, 4 nodes).

    Planning: `moeplan.layouts.piper.widest_group`. Source: Piper (arXiv 2605.05049), localisation rule; printed.
    """
    return gpus_per_node * nodes_per_switch


def valid_meshes_paper(shape: Shape, gpus: int, widest_ep: int) -> list[tuple[int, int]]:
    """All (PP, EP) with PP EP = GPUs, EP a divisor of E, PP <= L and EP <= `widest_ep`, by ascending PP.

    Planning: `moeplan.layouts.piper.layouts`, which also copies the mesh. Source: Piper (arXiv 2605.05049), strategy
    selection; printed.
    """
    meshes = [(pp, gpus // pp) for pp in range(1, min(gpus, shape.layers) + 1) if gpus % pp == 0]
    return [(pp, ep) for pp, ep in meshes if shape.experts % ep == 0 and ep <= widest_ep]


def feasible_meshes_paper(
    inputs: MemoryInputs,
    gpus: int,
    widest_ep: int,
    hbm_bytes: float,
    memory: Callable[[MemoryInputs], float] = memory_1f1b_paper,
) -> list[tuple[int, int]]:
    """Of the valid meshes those whose stage 0 fits: M(0) <= HBM; `memory` may be any bytes of stage 0.

    Left out: what a framework keeps beside. Planning: `moeplan.optimizer.evaluate.footprint`.
    Source: Piper (arXiv 2605.05049), strategy selection; printed.
    """
    meshes = valid_meshes_paper(inputs.shape, gpus, widest_ep)
    return [(pp, ep) for pp, ep in meshes if memory(inputs._replace(pp=pp, ep=ep)) <= hbm_bytes]


def _activation_bytes_paper(inputs: MemoryInputs, batch: float) -> float:
    """12 b s d + 4 b H s^2 + 2 b s k / EP (3 f + d)."""
    experts = experts_activation_bytes_paper(inputs, batch) / inputs.ep
    return attention_activation_bytes_paper(inputs, batch) + experts


def _check_stage(inputs: MemoryInputs, stage: int) -> None:
    if not 0 <= stage < inputs.pp:
        raise SpecError(f"memory: stage {stage} of {inputs.pp}; stages are 0 to {inputs.pp - 1}")
