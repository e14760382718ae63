"""Piper's communication: collectives per layer, the all-to-all bound, expert migration, and a cost model of HALO.

The paper times all-to-alls from measured bandwidths; of its own formulas only the bound and the migration are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from moeplan.papers.piper import PARAMETER_BYTES

COLLECTIVES_PER_LAYER: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "tensor parallel": ("all_reduce", 4),
        "sharded data parallel": ("all_gather", 2),
        "expert parallel": ("all_to_all", 4),
    }
)
"""Forward and backward. Piper (arXiv 2605.05049), background; reported."""
FABRIC_BYTES_PER_S = 50e9
"""One Infinity Fabric link, one direction. Piper (arXiv 2605.05049), Table IV; printed."""


def p2p_bytes(tokens: float, hidden: int) -> float:
    """Bytes between neighbouring stages per GPU, micro-batch and direction: 2 u s d, u s = `tokens` of each GPU.

    Planning: `moeplan.resources.traffic.edge_bytes`. Source: inferred.
    """
    return 2 * tokens * hidden


def all_to_all_bound_paper_s(
    batch: float, seq_len: int, top_k: int, hidden: int, ep: int, nic_bytes_per_s: float
) -> float:
    """Least seconds of dispatch and combine of one layer, forward: 4 b s k d / (EP B_NIC), b sequences of the group.

    Fp16, balanced, every byte over the NIC, one NIC per GPU; a whole step takes twice that. Less pessimistic:
    `all_to_all_bound_exact_s`. Planning: `moeplan.cost.communication.all_to_all`.
    Source: Piper (arXiv 2605.05049), communication model; printed.
    """
    return 4 * batch * seq_len * top_k * hidden / (ep * nic_bytes_per_s)


def all_to_all_bound_exact_s(tokens: float, top_k: int, hidden: int, off_node: float, gpu_bytes_per_s: float) -> float:
    """As printed for `tokens` of each GPU, but only the share of bytes that leaves the node: 4 T k d phi / B_GPU.

    phi of `moeplan.papers.disagmoe_pipeline.off_node_share`, B_GPU of `gpu_network_bytes_per_s`. Source: inferred.
    """
    return 4 * tokens * top_k * hidden * off_node / gpu_bytes_per_s


def gpu_network_bytes_per_s(nics: int, nic_bytes_per_s: float, gpus: int) -> float:
    """Bytes per second that leave a node, per GPU: NICs B_NIC / GPUs; 12.5 GB/s on Frontier. Source: inferred."""
    return nics * nic_bytes_per_s / gpus


def expert_migration_bytes_paper(hidden: int, expert_width: int) -> int:
    """Bytes that move one expert, with gradients and optimizer state: 48 d f.

    Source: Piper (arXiv 2605.05049), section VI-A; printed.
    """
    return 3 * PARAMETER_BYTES * hidden * expert_width


def layer_migration_bytes_paper(hidden: int, expert_width: int, experts: int, gpus: int = 8) -> float:
    """Bytes that each GPU sends if all experts of one layer move: 48 E d f / G. Table IV has G = 8.

    Source: Piper (arXiv 2605.05049), section VI-A and Table IV; printed.
    """
    return experts * expert_migration_bytes_paper(hidden, expert_width) / gpus


def migration_s_paper(num_bytes: float, bytes_per_s: float = FABRIC_BYTES_PER_S) -> float:
    """Seconds of a migration: bytes / 50 GB/s. Left out: latency, contention.

    Source: Piper (arXiv 2605.05049), section VI-A and Table IV; printed.
    """
    return num_bytes / bytes_per_s


def imbalance(loads: Sequence[float]) -> float:
    """Largest over mean load of the GPUs; the experts' seconds grow by it. Source: inferred."""
    return max(loads) * len(loads) / sum(loads)


def migration_overhead(migration_s: float, step_s: float, interval_steps: float) -> float:
    """Share of training time that one migration every `interval_steps` costs: T_mig / (interval T_step).

    The paper reports less than 5 %. Source: inferred.
    """
    return migration_s / (interval_steps * step_s)


def least_interval_steps(migration_s: float, step_s: float, overhead: float = 0.05) -> float:
    """Steps between migrations for at most `overhead`: T_mig / (overhead T_step), 20 T_mig / T_step at 5 %.

    Source: inferred.
    """
    return migration_s / (overhead * step_s)


class Network(NamedTuple):
    """A cluster as the cost model of HALO sees it."""

    gpus_per_node: int
    nics_per_node: int
    nic_bytes_per_s: float
    node_bytes_per_s: float
    """Per GPU, of an all-to-all inside the node."""
    message_s: float
    """Latency per message between nodes."""
    phase_s: float
    """Latency of a phase inside the node."""
    half_message_bytes: float
    """Size at which a message reaches half of the NIC's bandwidth."""


class Phases(NamedTuple):
    """Seconds of HALO's phases: I inside the node, II between nodes, III what II brought, to its GPU."""

    inside_s: float
    between_s: float
    redistribute_s: float


def flat_s(network: Network, nodes: int, pair_bytes: float, contention: float = 1.0) -> float:
    """Seconds of a flat all-to-all of m bytes per pair of ranks:
    (P - 1) alpha + gamma (P - g) m (g / nics) / (B_NIC eta(m)), eta(m) = m / (m + m_half).

    Left out: the part inside the node, taken to be hidden. Planning: `moeplan.cost.communication.all_to_all`.
    Source: inferred.
    """
    g = network.gpus_per_node
    ranks = nodes * g
    return (ranks - 1) * network.message_s + contention * _nic_s(network, ranks - g, pair_bytes)


def halo_phases(network: Network, nodes: int, pair_bytes: float) -> Phases:
    """Seconds of each phase of HALO for m bytes per pair of ranks:
    I = alpha_node + (g - 1) m / B_node; II = (n - 1) alpha + (n - 1) g m (g / nics) / (B_NIC eta(g m));
    III = alpha_node + (n - 1) (g - 1) m / B_node.

    II sends one message of g m to the same GPU of every other node. Left out: packing, contention of II.
    Source: inferred; the phases are Piper's (arXiv 2605.05049), HALO.
    """
    g, others = network.gpus_per_node, nodes - 1
    inside = (g - 1) * pair_bytes / network.node_bytes_per_s
    if not others:
        return Phases(network.phase_s + inside, 0.0, 0.0)
    between = others * network.message_s + _nic_s(network, others, g * pair_bytes)
    return Phases(network.phase_s + inside, between, network.phase_s + others * inside)


def halo_s(phases: Phases) -> float:
    """Seconds of HALO: max(I, II + III). Source: Piper (arXiv 2605.05049), HALO; the dependency printed."""
    return max(phases.inside_s, phases.between_s + phases.redistribute_s)


def halo_pipelined_s(phases: Phases) -> float:
    """Seconds of HALO in chunks, so that III of one runs beside II of the next: max(I + III, II).

    Left out: the first and last chunk. Source: inferred.
    """
    return max(phases.inside_s + phases.redistribute_s, phases.between_s)


def _nic_s(network: Network, messages: int, message_bytes: float) -> float:
    """Seconds that a GPU's share of the NICs needs for `messages`: messages (m + m_half) (g / nics) / B_NIC."""
    sharing = network.gpus_per_node / network.nics_per_node
    return messages * (message_bytes + network.half_message_bytes) * sharing / network.nic_bytes_per_s
