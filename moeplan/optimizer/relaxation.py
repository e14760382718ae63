"""The allocation without integers: a bound on the step time, and what one more GPU or NIC would be worth.

    symbol   meaning                                       unit
    C_a/P    seconds of attention on one GPU, per step     s      `attention_gpu_seconds`
    C_f/P    seconds of FFN on one GPU, per step           s      `ffn_gpu_seconds`
    V        bytes between the sides, per direction        B      `volume_bytes`
    B        bandwidth of one NIC                          B/s    `nic_bytes_per_s`
    W, M_tot GPUs and NICs of both sides                          `budgets`

    minimise t   with   C_a/(P M) <= t     V/(M_a B) <= t     M + N <= W
                        C_f/(P N) <= t     V/(M_f B) <= t     M_a + M_f <= M_tot

whose optimum is t = max((C_a + C_f)/(W P), 2 V/(M_tot B)) (own algebra on the stage times of DisagMoE,
section 4.3). Work is taken to divide freely and memory is ignored, so no choice of whole GPUs is faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moeplan.errors import InfeasibleError, SolverError
from moeplan.options import Budgets, OptionTable, SideOption, Taken, excess_bytes, has_network

_NOISE = 1e-4
"""Duals sum to 1; the solver leaves up to 5e-5 on a budget that does not bind."""
_TIGHT = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The continuous optimum: the fewest GPUs and NICs that reach it, and the prices of the budgets."""

    seconds: float
    attention_gpus: float
    ffn_gpus: float
    attention_nics: float
    ffn_nics: float
    gpu_price_s: float
    """Seconds per step that one more GPU saves."""
    nic_price_s: float
    """Seconds per step that one more NIC saves. At a tie of compute and network the two prices are not unique."""


def relax(
    attention_gpu_seconds: float,
    ffn_gpu_seconds: float,
    volume_bytes: float,
    nic_bytes_per_s: float,
    budgets: Budgets,
) -> Relaxed:
    """The continuous allocation (formula above); without NICs or without volume the network is left out.

    InfeasibleError without GPUs, SolverError where the solver gives no optimum.
    """
    if budgets.gpus == 0:
        raise InfeasibleError("allocation: GPUs short by 2 (budget 0)")
    crossing_s = volume_bytes / nic_bytes_per_s if volume_bytes and budgets.nics else 0.0
    gpu_loads_s = [s / budgets.gpus for s in (attention_gpu_seconds, ffn_gpu_seconds)]
    nic_loads_s = [crossing_s / budgets.nics if crossing_s else 0.0] * 2
    seconds, gpu_price_s, nic_price_s = _solve(gpu_loads_s, nic_loads_s)
    rate = 1 / seconds if seconds else 0.0
    return Relaxed(
        seconds=seconds,
        attention_gpus=attention_gpu_seconds * rate,
        ffn_gpus=ffn_gpu_seconds * rate,
        attention_nics=crossing_s * rate,
        ffn_nics=crossing_s * rate,
        gpu_price_s=gpu_price_s / budgets.gpus,
        nic_price_s=nic_price_s / max(1, budgets.nics),
    )


def _solve(*loads_s: list[float]) -> tuple[float, ...]:
    """Least t, and what one more of each budget saves, for the seconds of each user of a budget when it has it all.

    A share is counted in units of load_i / sum of loads and t in units of the larger sum: a solver loses its
    accuracy where loads lie far apart.

        minimise t   with   (sum_j load_j) / share_i <= t     sum_i (load_i / sum_j load_j) share_i <= 1
    """
    import cvxpy

    cp: Any = cvxpy
    totals = [sum(loads) for loads in loads_s]
    unit_s = max(totals)
    if unit_s == 0:
        return (0.0,) * (1 + len(loads_s))
    t, shares = cp.Variable(), [cp.Variable(len(loads)) for loads in loads_s]
    work = [total / unit_s * cp.inv_pos(share) <= t for total, share in zip(totals, shares, strict=True)]
    budgets = [
        cp.sum(cp.multiply(loads, share)) / (total or 1.0) <= 1
        for loads, total, share in zip(loads_s, totals, shares, strict=True)
    ]
    problem = cp.Problem(cp.Minimize(t), work + budgets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an answer that misses the tight tolerances: good enough
        problem.solve(solver=cp.CLARABEL, **_TIGHT)
    if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        raise SolverError(f"relaxation: the solver stopped with {problem.status!r}")
    duals = [float(row.dual_value) for row in budgets]
    return float(t.value) * unit_s, *(dual * unit_s if dual > _NOISE else 0.0 for dual in duals)


def rounded(relaxed: Relaxed, table: OptionTable, budgets: Budgets) -> Taken | None:
    """A choice near `relaxed`: no more attention GPUs than it, the rest to FFN, NICs as even as both reach.

    None where that does not fit the budgets.
    """
    attention = _largest(table.attention, relaxed.attention_gpus, budgets)
    ffn = _largest(table.ffn, budgets.gpus - attention.gpus, budgets) if attention else None
    if attention is None or ffn is None:
        return None
    if not has_network(table):
        return attention, ffn, None
    pairs = [k for k in table.nics if k.attention <= attention.nics and k.ffn <= ffn.nics]
    within = [k for k in pairs if k.attention + k.ffn <= budgets.nics]
    return (attention, ffn, max(within, key=lambda k: min(k.attention, k.ffn))) if within else None


def _largest(side: Iterable[SideOption], gpus: float, budgets: Budgets) -> SideOption | None:
    """The fastest of the options with most GPUs, of those with at most `gpus` that fit in memory."""
    fitting = [option for option in side if option.gpus <= gpus and not excess_bytes(option, budgets)]
    return max(fitting, key=lambda option: (option.gpus, -option.seconds), default=None)
