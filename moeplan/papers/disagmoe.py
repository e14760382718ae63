"""DisagMoE's roofline: FLOP and bytes of a layer, intensities, turning points, and the allocation's stage times.

symbol    meaning                                          in the code
H, D_e    hidden size, FFN width of one expert             Layer.hidden, .expert_width
q, kv     query heads, key heads times head_dim            Layer.query_width, .key_width
E, k      routed experts, experts per token                Layer.experts, .top_k
g, s      query heads per key head, tokens per sequence    gqa_group, seq_len
M, N      GPUs of attention, of FFN; W both                Split.attention_gpus, .ffn_gpus
M_a, M_f  NICs of attention, of FFN; M_tot both            Split.attention_nics, .ffn_nics
P, B      FLOP/s of one GPU, B/s of one NIC                peak_flop_per_s, nic_bytes_per_s
C_a, C_f  FLOP of attention, of FFN                        Demand.attention_flop, .ffn_flop
V         bytes between them, per direction                Demand.volume_bytes
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

ELEMENT_BYTES = 2
"""bf16."""
_SAME = 1e-9
"""Stage times that differ by less are equal, as in `moeplan.optimizer.allocation`."""


class Layer(NamedTuple):
    """Shape of one MoE layer."""

    hidden: int
    query_width: int
    key_width: int
    expert_width: int
    experts: int
    top_k: int
    shared_experts: int = 0


class Coefficients(NamedTuple):
    """alpha_1, alpha_2, beta and gamma of the scaling laws."""

    attention_square_flop: float
    attention_token_flop: float
    ffn_token_flop: float
    token_bytes: float


class Scaled(NamedTuple):
    """What one layer does forward for one sequence: FLOP of each side, bytes between them per direction."""

    attention_flop: float
    ffn_flop: float
    volume_bytes: float


def scaling_laws_paper(seq_len: float, laws: Coefficients) -> Scaled:
    """FLOP, FLOP and bytes of one sequence: alpha_1 s^2 + alpha_2 s, beta s, gamma s.

    Left out: anything constant per sequence. Exact: `coefficients_exact` for the coefficients,
    `moeplan.resources.work.forward` for the FLOP. Source: DisagMoE (arXiv 2605.11005), section 3.3; printed.
    """
    attention = laws.attention_square_flop * seq_len**2 + laws.attention_token_flop * seq_len
    return Scaled(attention, laws.ffn_token_flop * seq_len, laws.token_bytes * seq_len)


def coefficients_exact(layer: Layer, *, causal: bool = True) -> Coefficients:
    """Coefficients of the scaling laws for the forward pass of `layer`: c q, 2 H (2 q + 2 kv), 6 (k + shared) H D_e,
    2 k H, with c = 2 where attention is causal and 4 where not.

    Left out: router, norms, softmax. Source: inferred.
    """
    return Coefficients(
        attention_square_flop=(2 if causal else 4) * layer.query_width,
        attention_token_flop=attention_flop_exact(layer, 0),
        ffn_token_flop=ffn_flop_exact(layer),
        token_bytes=token_bytes(layer.hidden, layer.top_k),
    )


def attention_flop_exact(layer: Layer, seq_len: float, *, causal: bool = True, router: bool = False) -> float:
    """Forward FLOP of attention per token: 2 H (2 q + 2 kv) + c s q, c = 2 causal, 4 not; the router adds 2 H E.

    Left out: norms, softmax, rotary embedding. Planning: `moeplan.resources.work.forward`. Source: inferred.
    """
    projections = 2 * layer.hidden * (2 * layer.query_width + 2 * layer.key_width)
    scores = (2 if causal else 4) * seq_len * layer.query_width
    return projections + scores + (2 * layer.hidden * layer.experts if router else 0)


def ffn_flop_exact(layer: Layer, *, matrices: int = 3) -> float:
    """Forward FLOP of the experts per token: 2 matrices (k + shared) H D_e; three matrices where the FFN is gated.

    Left out: activation function, weighted sum. Planning: `moeplan.resources.work.forward`. Source: inferred.
    """
    return 2 * matrices * (layer.top_k + layer.shared_experts) * layer.hidden * layer.expert_width


def token_bytes(hidden: int, top_k: int, element_bytes: int = ELEMENT_BYTES) -> float:
    """Bytes V that one token sends in one direction (dispatch or combine): b_e k H.

    Left out: what routes the rows. Planning: `moeplan.resources.traffic.edge_bytes`.
    Source: DisagMoE (arXiv 2605.11005), section 3.3; printed as "proportional to k H", in bytes inferred.
    """
    return element_bytes * top_k * hidden


def attention_intensity_paper(hidden: int, gqa_group: float, seq_len: float, top_k: int) -> float:
    """FLOP of attention per byte of one direction: (H (2 + 2/g) + 4 s) / (2 k).

    As printed: the projections are counted at half their FLOP, q is taken to be H, and attention is not causal.
    Exact: `attention_intensity_exact`. Source: DisagMoE (arXiv 2605.11005), section 3.3; printed.
    """
    return (hidden * (2 + 2 / gqa_group) + 4 * seq_len) / (2 * top_k)


def ffn_intensity_paper(expert_width: int) -> float:
    """FLOP of the experts per byte of one direction: 2 D_e, that is two matrices per expert and bf16.

    Exact: `ffn_intensity_exact`. Source: DisagMoE (arXiv 2605.11005), section 3.3; printed.
    """
    return 2 * expert_width


def attention_intensity_exact(layer: Layer, seq_len: float, *, causal: bool = True, router: bool = False) -> float:
    """FLOP of attention per byte of one direction: `attention_flop_exact` / (2 k H). Source: inferred."""
    flop = attention_flop_exact(layer, seq_len, causal=causal, router=router)
    return flop / token_bytes(layer.hidden, layer.top_k)


def ffn_intensity_exact(layer: Layer, *, matrices: int = 3) -> float:
    """FLOP of the experts per byte of one direction: `ffn_flop_exact` / (2 k H); 3 D_e gated, none shared.

    Source: inferred.
    """
    return ffn_flop_exact(layer, matrices=matrices) / token_bytes(layer.hidden, layer.top_k)


def turning_point(gpus: float, nics: float, peak_flop_per_s: float, nic_bytes_per_s: float) -> float:
    """FLOP per byte above which `gpus` that share `nics` are bound by compute: gpus P / (nics B).

    Of one side after disaggregation with its own GPUs and NICs; of all before it. Left out: achievable shares of both
    peaks. Source: DisagMoE (arXiv 2605.11005), section 3.3, printed for all GPUs and NICs; for any split inferred.
    """
    return gpus * peak_flop_per_s / (nics * nic_bytes_per_s)


def side_turning_points_paper(aggregated: float, attention_gpus: float, ffn_gpus: float) -> tuple[float, float]:
    """Turning points of attention and of FFN, FLOP per byte: 2 M / (M + N) and 2 N / (M + N) times `aggregated`.

    Holds where each side has half of the NICs; any other split: `turning_point` per side.
    Source: DisagMoE (arXiv 2605.11005), Fig. 9; reported.
    """
    each = 2 * aggregated / (attention_gpus + ffn_gpus)
    return attention_gpus * each, ffn_gpus * each


class Demand(NamedTuple):
    """What both sides have to do, at any one granularity, and what one GPU and one NIC do per second."""

    attention_flop: float
    ffn_flop: float
    volume_bytes: float
    peak_flop_per_s: float
    nic_bytes_per_s: float


class Split(NamedTuple):
    """GPUs and NICs of each side."""

    attention_gpus: float
    ffn_gpus: float
    attention_nics: float
    ffn_nics: float


def stage_seconds_paper(demand: Demand, split: Split) -> tuple[float, float]:
    """T_a and T_f in seconds: max(C_a / (M P), V / (M_a B)) and max(C_f / (N P), V / (M_f B)).

    Left out: latency, efficiency, memory, contention. Planning: `moeplan.cost.durations.predict`.
    Source: DisagMoE (arXiv 2605.11005), section 4.3; printed.
    """
    attention, ffn, volume, peak, bandwidth = demand
    return (
        max(attention / (split.attention_gpus * peak), volume / (split.attention_nics * bandwidth)),
        max(ffn / (split.ffn_gpus * peak), volume / (split.ffn_nics * bandwidth)),
    )


def pipeline_seconds_paper(demand: Demand, split: Split) -> float:
    """Seconds of the slower side: max(T_a, T_f). Left out: the transfer as a stage of its own, fill and drain.

    Planning: `moeplan.options.step_seconds`. Source: DisagMoE (arXiv 2605.11005), section 4.3; printed.
    """
    return max(stage_seconds_paper(demand, split))


def least_seconds_continuous(demand: Demand, gpus: float, nics: float) -> float:
    """T* in seconds if GPUs and NICs divide freely: max((C_a + C_f) / (W P), 2 V / (M_tot B)).

    Both sides carry the same V, so equal halves of the NICs are best. Planning: `moeplan.optimizer.relaxation.relax`
    (also prices), `moeplan.optimizer.allocation.solve` (whole numbers, memory). Source: inferred.
    """
    compute = (demand.attention_flop + demand.ffn_flop) / (gpus * demand.peak_flop_per_s)
    return max(compute, 2 * demand.volume_bytes / (nics * demand.nic_bytes_per_s))


def attention_share_continuous(demand: Demand) -> float:
    """Share M / W of attention at the optimum where compute binds: C_a / (C_a + C_f). Source: inferred."""
    return demand.attention_flop / (demand.attention_flop + demand.ffn_flop)


def fewest_gpus(demand: Demand, seconds: float) -> tuple[int, int]:
    """Fewest GPUs of either side that need no more than `seconds`: ceil(C_a / (P T)), ceil(C_f / (P T)).

    Our reading of the second phase of the allocation, since the MFU it maximises is constant once T* and W are given.
    `seconds` may be missed by 1e-9 of it. Planning: `moeplan.optimizer.allocation.solve`. Source: inferred.
    """
    work = seconds * demand.peak_flop_per_s * (1 + _SAME)
    return ceil(demand.attention_flop / work), ceil(demand.ffn_flop / work)


def mfu_paper(demand: Demand, seconds: float, gpus: float) -> float:
    """Objective of the second phase: (C_a + C_f) / (T* W P). Left out: the head.

    Source: DisagMoE (arXiv 2605.11005), section 4.3; printed.
    """
    return (demand.attention_flop + demand.ffn_flop) / (seconds * gpus * demand.peak_flop_per_s)
