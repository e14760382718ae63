"""DisagMoE's pipeline: bubbles, steady period, step time, and the bytes and bounds of M2N and all-to-all.

    symbol          meaning                                             in the code
    T_a, T_f        seconds of attention, FFN of one layer, forward     Times.attention_s, .ffn_s
    T_M2N, T_a2a    seconds of one transfer in one direction            Times.transfer_s
    T_p2p           seconds of one transfer between stages              Times.p2p_s
    beta            backward over forward                               Times.backward
    PP, p           stages of a baseline; groups of each kind in AF     stages, pairs
    v, n            virtual stages per group, micro-batches             virtual, microbatches
    V               bytes per direction of one layer and micro-batch    volume_bytes

All seconds are of one micro-batch. `warmup` is until the last group starts, `fill_and_drain` is all of the step beyond
the busy time of one group; the printed bubbles are neither: each is divided by the chunks that a group holds.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds of the parts of one layer for one micro-batch."""

    attention_s: float
    ffn_s: float
    transfer_s: float
    p2p_s: float = 0.0
    backward: float = 2.0


def bubble_baseline_paper_s(times: Times, stages: int, virtual: float, layers: float = 1) -> float:
    """Warm-up bubble of interleaved 1F1B in seconds: (PP - 1) / v [L (T_a + T_f + 2 T_a2a) + T_p2p], L layers a chunk.

    Left out: the backward pass. Absolute: `warmup_baseline_s`. Source: DisagMoE (arXiv 2605.11005), section 4.2;
    reported.
    """
    return warmup_baseline_s(times, stages, layers) / virtual


def bubble_af_paper_s(times: Times, stages: int, virtual: float) -> float:
    """Warm-up bubble of AF-Pipe in seconds: (PP - 1) / (2 v) [max(T_a, T_f) + T_M2N].

    A quarter of the baseline's at one layer per chunk, equal T_a and T_f, equal transfers and no P2P. Divided by 2 v
    chunks because a group of the size of a baseline's stage holds twice as many half layers; the absolute ratio
    (`warmup_af_s`) is one half. Source: DisagMoE (arXiv 2605.11005), section 4.2; reported.
    """
    return (stages - 1) / (2 * virtual) * (max(times.attention_s, times.ffn_s) + times.transfer_s)


def warmup_baseline_s(times: Times, stages: int, layers: float = 1) -> float:
    """Seconds until the last stage starts: (PP - 1) [L (T_a + T_f + 2 T_a2a) + T_p2p]. Source: inferred."""
    chunk = layers * (times.attention_s + times.ffn_s + 2 * times.transfer_s)
    return (stages - 1) * (chunk + times.p2p_s)


def warmup_af_s(times: Times, pairs: int) -> float:
    """Seconds until the last FFN group starts: p T_a + (p - 1) T_f + (2 p - 1) T_M2N.

    Exact for any order that sends the first micro-batch on at once; `moeplan.schedules.af_pipe` does.
    Source: inferred.
    """
    return pairs * times.attention_s + (pairs - 1) * times.ffn_s + (2 * pairs - 1) * times.transfer_s


def fill_and_drain_baseline_s(times: Times, stages: int, layers: float = 1) -> float:
    """Seconds of a step beyond its busy time, interleaved 1F1B:
    (PP - 1) [(1 + beta) (T_a + T_f) L + 4 T_a2a L + 2 T_p2p], L layers per chunk.

    Too low with more than one virtual stage, where the steady state waits for P2P too.
    Planning simulates: `moeplan.simulate.engine`. Source: inferred.
    """
    busy = (1 + times.backward) * (times.attention_s + times.ffn_s) + 4 * times.transfer_s
    return (stages - 1) * (busy * layers + 2 * times.p2p_s)


def fill_and_drain_af_s(times: Times, pairs: int) -> float:
    """Seconds of a step beyond its busy time, AF-Pipe: (2 p - 1) [(1 + beta) T + 2 T_M2N], T the mean of T_a and T_f.

    Too low where 2 T_M2N comes near (1 + beta) T. Planning simulates: `moeplan.simulate.engine`. Source: inferred.
    """
    mean = (times.attention_s + times.ffn_s) / 2
    return (2 * pairs - 1) * ((1 + times.backward) * mean + 2 * times.transfer_s)


def period_af_s(times: Times) -> float:
    """Seconds per layer and micro-batch in the steady state: max((1 + beta) T_a, (1 + beta) T_f, 2 T_M2N).

    A group sends twice and receives twice per layer and micro-batch, full duplex. Left out: head-of-line blocking,
    about 15 % where the network binds. Planning: `moeplan.optimizer.bound.step_bound_s`. Source: inferred.
    """
    return max((1 + times.backward) * max(times.attention_s, times.ffn_s), 2 * times.transfer_s)


def period_baseline_s(times: Times, overlap_s: float = 0.0) -> float:
    """Seconds per layer and micro-batch of a colocated stage: (1 + beta) (T_a + T_f) + 4 T_a2a - overlap, but never
    less than the larger of compute and communication. Source: inferred.
    """
    compute = (1 + times.backward) * (times.attention_s + times.ffn_s)
    communication = 4 * times.transfer_s
    return max(compute + communication - overlap_s, compute, communication)


def step_af_s(times: Times, pairs: int, virtual: float, microbatches: int, tail_s: float = 0.0) -> float:
    """Seconds of one step of AF-Pipe: n v `period_af_s` + `fill_and_drain_af_s` + tail.

    The tail is the exposed gradient sum and the optimizer. The paper gives no more than max(T_a, T_f).
    Planning simulates: `moeplan.simulate.engine`. Source: inferred.
    """
    return microbatches * virtual * period_af_s(times) + fill_and_drain_af_s(times, pairs) + tail_s


def m2n_s(
    volume_bytes: float,
    attention_nics: float,
    ffn_nics: float,
    nic_bytes_per_s: float,
    efficiency: float = 1.0,
    latency_s: float = 0.0,
) -> float:
    """Seconds of one M2N: latency + V / (eta B min(NICs of the attention group, of the FFN group)), V = b_e k H T.

    Left out: contention, message sizes. Planning: `moeplan.cost.communication.many_to_many`. Source: inferred.
    """
    return latency_s + volume_bytes / (efficiency * nic_bytes_per_s * min(attention_nics, ffn_nics))


def off_node_share(ep: int, gpus_per_node: int) -> float:
    """Share of an all-to-all's bytes that leave the node: 1 - gpus_per_node / EP, balanced; 0 inside one node.

    Planning: `moeplan.topology.routes`. Source: inferred, for both papers.
    """
    return max(0.0, 1 - gpus_per_node / ep)


def network_bound_af_s(volume_bytes: float, nics: float, nic_bytes_per_s: float) -> float:
    """Least seconds per layer and micro-batch of node-pure pools with half of the NICs each: 4 V / (M_tot B).

    Every routed byte crosses nodes. Source: inferred.
    """
    return 4 * volume_bytes / (nics * nic_bytes_per_s)


def network_bound_aggregated_s(volume_bytes: float, nics: float, nic_bytes_per_s: float, off_node: float) -> float:
    """Least seconds per layer and micro-batch of colocated EP: phi 4 V / (M_tot B), phi of `off_node_share`.

    Lower than `network_bound_af_s` by phi: disaggregation alone creates no bandwidth. Source: inferred.
    """
    return off_node * network_bound_af_s(volume_bytes, nics, nic_bytes_per_s)


def copies_share(nodes: int, top_k: int) -> float:
    """Share of the k copies of a token that is left if each node receives one: n (1 - (1 - 1/n)^k) / k.

    Experts are drawn independently, so one may come twice; without that: `copies_share_exact`.
    Planning: `moeplan.cost.communication.many_to_many(deduplicated=k)`. Source: inferred; the paper sends all copies.
    """
    return nodes * (1 - (1 - 1 / nodes) ** top_k) / top_k


def copies_share_exact(nodes: int, top_k: int, experts: int) -> float:
    """As `copies_share` for k different experts of E: n (1 - C(E - E/n, k) / C(E, k)) / k, n a divisor of E.

    Source: inferred; 1 minus it is the redundancy that X-MoE (arXiv 2508.13337) reports.
    """
    missed = comb(experts - experts // nodes, top_k) / comb(experts, top_k)
    return nodes * (1 - missed) / top_k


def all_to_all_bytes(tokens: float, top_k: int, hidden: int, ep: int, element_bytes: int = 2) -> float:
    """Bytes that one rank sends per MoE layer and step: 4 T k H b_e (EP - 1) / EP, T its tokens.

    Dispatch and combine, forward and backward. Left out: what routes the rows. Planning:
    `moeplan.resources.traffic.edge_bytes`. Source: inferred (the usual count; not from the paper).
    """
    return 4 * tokens * top_k * hidden * element_bytes * (ep - 1) / ep


class Saving(NamedTuple):
    """Bytes that no longer travel, as a share of three different totals."""

    of_combine: float
    of_combine_and_p2p: float
    of_all: float


def p2p_saving(top_k: int) -> Saving:
    """What sending combine straight to the next attention group saves, H of k H bytes per token and direction.

    1/k of combine, which is the paper's "about 1/k"; 1/(k+1) of combine and P2P; 1/(2k+1) of dispatch, combine and P2P.
    It happens where a stage ends: at every layer only with one layer per chunk. Source: DisagMoE (arXiv 2605.11005),
    section 4.2; 1/k printed, the readings inferred.
    """
    return Saving(1 / top_k, 1 / (top_k + 1), 1 / (2 * top_k + 1))
