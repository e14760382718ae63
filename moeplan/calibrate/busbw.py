"""What busbw means: nccl-tests' bandwidth over sizes, its factor for each collective and its limit between hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moeplan.calibrate.log_lines import PRICED, Collective
from moeplan.errors import SpecError


def busbw_factor(collective: Collective, ranks: int) -> float:
    """busbw over algbw as nccl-tests define it: all-reduce 2 (n - 1) / n, one-way collectives (n - 1) / n, others 1.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md. SpecError for less than one rank.
    """
    if ranks < 1:
        raise SpecError(f"{collective} among {ranks} ranks; at least 1")
    part = (ranks - 1) / ranks
    return {"all_reduce": 2 * part, "broadcast": 1.0, "reduce": 1.0, "point_to_point": 1.0}.get(collective, part)


def busbw_limit(collective: Collective, hosts: Sequence[int], nic_bytes_per_s: float) -> float:
    """The most busbw in bytes per second that NICs of `nic_bytes_per_s` per rank carry between hosts; inf on one.

    All-to-all: nic (n - 1) / (n - l), with l ranks on the fullest host, whose bytes for others cross its NICs. What
    can be sent once per host, an all-gather, a reduce-scatter or an all-reduce in two of these: l times as much. A
    sendrecv: all NICs of a host, l nic. Left out: switches that add up, with which an all-reduce may reach more.
    Source: NVIDIA/nccl-tests, pull request 59.
    """
    ranks, local = len(hosts), max(Counter(hosts).values())
    if ranks == local or collective not in PRICED:
        return float("inf")
    if collective == "point_to_point":
        return nic_bytes_per_s * local
    shared = 1 if collective == "all_to_all" else local
    return nic_bytes_per_s * shared * (ranks - 1) / (ranks - local)
