"""Piper's counts: parameters, bytes of state, training FLOP, MFU, step time, and the efficiency of narrow GEMMs.

    symbol     meaning                                       in the code
    d, f       hidden size, FFN width of one expert          Shape.hidden, .expert_width
    L, E, k    layers, experts per layer, per token          Shape.layers, .experts, .top_k
    E_s        shared experts                                Shape.shared_experts
    M, PP, EP  micro-batches, pipeline and expert degrees    microbatches, pp, ep

The equations count three matrices per expert; the sizes of the weak-scaling models and of X-MoE's hold for two only.
"""

from __future__ import annotations

from typing import NamedTuple

PARAMETER_BYTES = 16
"""fp16 weight 2, fp16 gradient 2, fp32 weight 4, Adam 4 + 4. Piper (arXiv 2605.05049), memory model; printed."""
PARAMETER_BYTES_INTRODUCTION = 20
"""The rule of thumb of the introduction; not used in the equations. Piper (arXiv 2605.05049), introduction; printed."""
PEAK_FLOP_PER_S = 191e12
"""Per GCD of an MI250X; reproduces the MFU of Fig. 12, where AMD's 191.5e12 does not. Inferred."""
HBM_BYTES_PER_S = 1.6e12
"""Per GCD of an MI250X. Frontier user guide (OLCF)."""


class Shape(NamedTuple):
    """The shape of a model."""

    hidden: int
    expert_width: int
    layers: int
    experts: int
    top_k: int
    shared_experts: int = 0
    matrices: int = 3
    """Per expert: 3 gated, 2 not."""


def attention_parameters_paper(hidden: int) -> int:
    """Parameters of attention in one layer: 4 d^2. Left out: grouped keys, heads wider than d, norms.

    Exact: `moeplan.resources.parameters.attention_parameters`. Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    return 4 * hidden**2


def expert_parameters_paper(shape: Shape, experts: float) -> float:
    """Parameters of `experts` routed experts: 3 d f each (2 d f with two matrices).

    Exact: `moeplan.resources.parameters.expert_parameters`. Source: Piper (arXiv 2605.05049), memory model; printed
    with 3.
    """
    return shape.matrices * experts * shape.hidden * shape.expert_width


def attention_state_bytes_paper(hidden: int) -> int:
    """Bytes of attention's weights, gradients and optimizer state in one layer: 64 d^2.

    Exact: `moeplan.resources.memory.static_bytes`. Source: Piper (arXiv 2605.05049), memory model; printed.
    """
    return PARAMETER_BYTES * attention_parameters_paper(hidden)


def expert_state_bytes_paper(shape: Shape, experts: float) -> float:
    """Bytes of the state of `experts` experts of one layer: 48 d f each (32 d f with two matrices).

    Exact: `moeplan.resources.memory.static_bytes`. Source: Piper (arXiv 2605.05049), memory model; printed with 48.
    """
    return PARAMETER_BYTES * expert_parameters_paper(shape, experts)


def total_parameters(shape: Shape) -> float:
    """Parameters of the model: L (4 d^2 + 3 (E + E_s) d f). Left out: embedding, head, norms, router, dense layers.

    Exact: `moeplan.resources.parameters.total_parameters`. Source: inferred from the printed state bytes.
    """
    experts = expert_parameters_paper(shape, shape.experts + shape.shared_experts)
    return shape.layers * (attention_parameters_paper(shape.hidden) + experts)


def active_parameters(shape: Shape) -> float:
    """Parameters that one token meets: L (4 d^2 + 3 (k + E_s) d f). Left out: as in `total_parameters`.

    Exact: `moeplan.resources.parameters.active_parameters`. Source: inferred.
    """
    return total_parameters(shape._replace(experts=shape.top_k))


def training_flop_paper(parameters: float, tokens: float) -> float:
    """FLOP of forward and backward: 6 parameters tokens; of an MoE model with its active parameters.

    Left out: attention scores (`score_flop_per_token`), recomputation. Exact:
    `moeplan.resources.work.model_flop_per_token`. Source: Piper (arXiv 2605.05049), estimator; printed for dense
    models, active parameters inferred.
    """
    return 6 * parameters * tokens


def score_flop_per_token(shape: Shape, seq_len: float, *, causal: bool = True) -> float:
    """FLOP of attention scores per token, forward and backward: 6 L s d causal, 12 L s d not.

    Whether the paper counts them is unknown. Exact: `moeplan.resources.work.model_flop_per_token`. Source: inferred.
    """
    return (6 if causal else 12) * shape.layers * seq_len * shape.hidden


def mfu_paper(flop: float, step_s: float, gpus: int, peak_flop_per_s: float = PEAK_FLOP_PER_S) -> float:
    """Share of the peak that does useful work: FLOP of a step / (seconds GPUs peak); recomputation is not useful.

    Planning: `moeplan.plan.Predictions.mfu`. Source: Piper (arXiv 2605.05049), estimator; printed.
    """
    return flop / (step_s * gpus * peak_flop_per_s)


def step_s(slowest_s: float, microbatches: int, pp: int) -> float:
    """Seconds of a step of 1F1B or GPipe: (M + PP - 1) times the slowest stage's seconds per micro-batch.

    Left out: transfers between stages, gradient sums, optimizer. Planning simulates: `moeplan.simulate.engine`.
    Source: inferred (textbook; the paper's own is unknown).
    """
    return (microbatches + pp - 1) * slowest_s


def bubble(pp: int, microbatches: int) -> float:
    """Idle share of a step of 1F1B or GPipe: (PP - 1) / (M + PP - 1). Left out: unequal stages. Source: inferred."""
    return (pp - 1) / (microbatches + pp - 1)


def layer_s(gemm_s: float, all_to_all_s: float, *, recompute: bool = False) -> float:
    """Seconds of one layer, forward and backward, nothing overlapped: 3 F_gemm + 2 F_a2a, recomputed 4 F + 3 F.

    From the forward seconds of each. Planning: `moeplan.cost.durations.predict`. Source: inferred.
    """
    return (4 if recompute else 3) * gemm_s + (3 if recompute else 2) * all_to_all_s


def tokens_per_expert(tokens: float, top_k: int, ep: int, experts: int) -> float:
    """Rows of one expert's GEMM, balanced: u s k EP / E, with u s = `tokens` of each GPU. Source: inferred."""
    return tokens * top_k * ep / experts


def gemm_intensity(rows: float, shape: Shape) -> float:
    """FLOP per HBM byte of one expert matrix in fp16: 2 t d f / (2 (t d + d f + t f)), no reuse across matrices.

    Planning: `moeplan.resources.work.forward`. Source: inferred.
    """
    d, f = shape.hidden, shape.expert_width
    return rows * d * f / (rows * d + d * f + rows * f)


def narrow_gemm_efficiency(rows: float, shape: Shape, most: float, half_rows: float) -> float:
    """Share of the peak that an expert's GEMM reaches: most min(1, intensity HBM / peak) t / (t + half_rows).

    A surrogate: the paper shows curves (Fig. 4) and no formula. `most` is 0.60 to 0.68 on an MI250X, `half_rows` is
    fitted. Planning: `moeplan.cost.compute.share`. Source: inferred.
    """
    roof = min(1.0, gemm_intensity(rows, shape) * HBM_BYTES_PER_S / PEAK_FLOP_PER_S)
    return most * roof * rows / (rows + half_rows)
