"""Efficiencies of links fitted to measured collectives (`published/collectives.csv`).

    minimise  sum_i w_i |log(predicted_i / measured_i)| + PRIOR sum_j log(number_j / start_j)^2,  w = 1 from 1 MiB

through the costs that plans are made with (`cost.communication`), along one number at a time. Inside a node, rows of
nccl-tests fit latency, fill, efficiency, kernel and the share of all-reduces, then rows of experts' libraries fit their
shares. The network's numbers are fitted once to rows of all machines, whose network cards are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, log
from typing import Any

from msgspec import structs

from moeplan.calibrate.collectives import Sample, low_latency, nccl, routed
from moeplan.spec.calibration import Calibration, Tier
from moeplan.spec.record import convert
from moeplan.spec.shipped import load_calibration

Numbers = Mapping[str, float]
"""Fitted: latency and fill in seconds, kernel in bytes per second, half_message in bytes; the rest are shares."""

POOLS: dict[str, tuple[tuple[str, ...], str]] = {
    "h100": (
        ("H100-SXM 80GB", "H100-SXM 8x (1 node)"),
        "NVIDIA aiconfigurator, h100_sxm, nccl-tests of 2 to 8 GPUs (NCCL 2.29.2), and NVIDIA dgxc-benchmarking, nccl",
    ),
    "b200": (("B200-SXM",), "NVIDIA aiconfigurator, b200_sxm, nccl-tests of 2 to 8 GPUs (NCCL 2.29.2)"),
    "b300": (
        ("B300-SXM", "B300 8/node (OCI, 8x800Gb)"),
        "NVIDIA aiconfigurator, b300_sxm, nccl-tests of 2 to 8 GPUs (NCCL 2.29.2), and oracle-quickstart, B300",
    ),
    "gb300": (
        ("GB300 NVL (4 GPUs of one tray)", "GB200 NVL72 (OCI)"),
        "NVIDIA aiconfigurator, gb300, nccl-tests of 2 and 4 GPUs (NCCL 2.29.2), and oracle-quickstart, GB200 NVL72,\n"
        "of 4 to 64 GPUs, whose NVLink is the same",
    ),
    "mi355x": (("MI355X 8/node (OCI)",), "oracle-quickstart, MI355X, rccl-tests of 8 GPUs, 8 and 16 GiB"),
}
"""Rows of nccl-tests inside a node by accelerator, and their sources."""
CLUSTERS = {
    "h100": "dgx-h100",
    "h800": "h800-16x8",
    "b200": "dgx-b200",
    "b300": "dgx-b300",
    "gb300": "gb300-nvl72",
    "mi300x": "mi300x",
    "mi355x": "mi355x",
}
ROUTED = {
    "h100": ("H100-SXM 80GB 8/node + 8x400Gb", "DGX H100 x1"),
    "b200": ("SM100 (B200)",),
    "gb300": ("GB200 NVL36",),
    "h800": ("H800 (NVLink ~160 GB/s) + CX7 400Gb IB (~50 GB/s)",),
    "mi300x": ("MI300X + CX7 IB",),
    "mi355x": ("MI355X 8x (xGMI)", "MI355X + Pollara"),
}
"""Rows of DeepEP and HybridEP inside a node."""
SWITCHES = ("h100", "h200", "h800", "b200", "b300", "gb200", "gb300")
"""NVSwitches of the third generation and later, which add up (NVLink SHARP)."""
LIKE: dict[str, tuple[str, dict[str, float], str, str]] = {
    "h200": ("h100", {}, "interpolated", "As h100, which has the same NVLink."),
    "gb200": ("gb300", {}, "measured", "As gb300, which has the same NVLink and was fitted together with it."),
    "h800": (
        "h100",
        {"efficiency": 0.8, "kernel": 0.0},
        "interpolated",
        "Efficiency measured: DeepEP README, normal kernels on H800, about 160 of 200 GB/s per direction of NVLink.\n"
        "The rest as h100, which has more of the same links.",
    ),
    "a100": (
        "h100",
        {"efficiency": 0.7, "kernel": 0.0},
        "interpolated",
        "Efficiency measured: bus bandwidth of alltoall, 203 to 210 of 300 GB/s (NVIDIA GTC 2025 chart in\n"
        "stas00/ml-engineering). The rest as h100; its NVSwitch does not add up.",
    ),
    "mi300x": ("mi355x", {}, "assumed", "As mi355x, which has the same mesh of links, of another rate."),
}
"""Accelerators with the links of another: which, what differs, where from."""
NODE = {"latency": 8e-6, "fill": 2e-6, "efficiency": 0.72, "kernel": 8e11, "all_reduce": 0.9}
MESH = {"efficiency": 0.85, "all_to_all": 0.9}
NETWORK = {
    "latency": 4e-5,
    "fill": 5e-7,
    "efficiency": 0.9,
    "half_message": 1000.0,
    "start": 1e-5,
    "deepep": 0.95,
    "hybridep": 0.95,
}
"""Where the searches start."""
POINT_TO_POINT = "15 us"
"""Start of a send between two ranks (assumed)."""
PRIOR = 0.02
"""Weight of squared logarithms of numbers over their start: what rows do not tell stays there."""
STEPS = (0.4, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Of the logarithm of one number at a time."""


def link_sections(accelerator: str) -> dict[str, dict[str, Any]]:
    """The tables `node` and `network` of the calibration of `accelerator`, as plain TOML.

    KeyError where it is neither fitted nor like another.
    """
    return {"node": _node_section(accelerator), "network": _network_section()}


def _node_section(accelerator: str) -> dict[str, Any]:
    own = (LIKE[accelerator][2:]) if accelerator in LIKE else ("measured", f"Fit to {POOLS[accelerator][1]}.")
    told = _tier(fitted_node("h100") | fitted_node(accelerator))
    shares = (
        "Shares of libraries that no row of it says are those of h100 (assumed).\n" if accelerator != "h100" else ""
    )
    return {**told, "reduces": accelerator in SWITCHES, "source": own[0], "note": f"{own[1]}\n{shares}"}


def _network_section() -> dict[str, Any]:
    told = _tier(fitted_network())
    starts = told["starts"] | {"point_to_point": POINT_TO_POINT}
    return {**told, **MESSAGES, "starts": starts, "source": "measured", "note": _NETWORK_NOTE}


_NETWORK_NOTE = """\
One fit for all machines: NCCL's alltoall over 2 and 3 racks of GB200 and 2 nodes of B300 (oracle-quickstart), 2 nodes
of H200 with EFA and of RTX 6000D (a public nccl-tests report), DeepEP's normal kernels on 2 to 8 nodes of H100
(aiconfigurator), its low-latency kernels on H800 (README of deepseek-ai/DeepEP), HybridEP on 4 DGX H100 (Megatron-LM,
HybridEP tables). Every message costs half_message more: kernels that send token by token pay it for each. What one of
all_to_all takes at least is assumed, half a microsecond of a NIC of 50 GB/s for NCCL's proxy threads: no table of small
messages to many nodes was found. The start of point_to_point is assumed.
"""


MESSAGES = {"least_messages": {"all_to_all": "25 kB"}}


@cache
def fitted_node(accelerator: str) -> dict[str, float]:
    """Numbers of the node of `accelerator`: its own rows', or those of the one that it is like, and its libraries'."""
    reduces = accelerator in SWITCHES
    if accelerator in LIKE:
        known = fitted_node(LIKE[accelerator][0]) | LIKE[accelerator][1]
    else:
        samples = nccl(CLUSTERS[accelerator], POOLS[accelerator][0])
        known = fitted(samples, NODE | ({} if reduces else MESH), {}, "node", reduces=reduces)
    more = [one for hardware in ROUTED.get(accelerator, ()) for one in routed(CLUSTERS[accelerator], hardware)]
    for name in sorted({one.named for one in more}):
        rows = [one for one in more if one.named == name]
        known = known | fitted(rows, {name: 0.9}, known, "node", reduces=reduces)
    return known


@cache
def fitted_network() -> dict[str, float]:
    """Numbers of the network of all machines."""
    samples = [
        *nccl("gb200-nvl72", ("GB200 NVL72 (OCI)",), far=True),
        *nccl("dgx-b300", ("B300 8/node (OCI, 8x800Gb)",), far=True),
        *nccl("dgx-h100", ("RTX 6000D PCIe 8/node + ConnectX-8, no NVLink",), far=True, nics=4),
        *nccl("dgx-h200", ("p5en: 8x H200 + 16x200Gb EFA",), far=True),
        *routed("dgx-h100", "H100-SXM 80GB 8/node + 8x400Gb", far=True),
        *routed("dgx-h100", "DGX H100 x4 (400Gb/GPU)", far=True),
        *low_latency("h800-16x8", "H800 (NVLink ~160 GB/s) + CX7 400Gb IB (~50 GB/s)"),
    ]
    return fitted(samples, NETWORK, fitted_node("h100"), "network", reduces=True)


def fitted(samples: Sequence[Sample], start: Numbers, known: Numbers, tier: str, *, reduces: bool) -> dict[str, float]:
    """The numbers of `start`, moved until the samples are met best; `known` are those of the node that stay.

    Shares stay between 0 and 1. The search ends where no step of the smallest size along one number helps.
    """
    found = dict(start)
    best = _misfit(samples, found, start, known, tier, reduces=reduces)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in start:
                for by in (step, -step):
                    tried = found | {name: _limited(name, found[name] * exp(by))}
                    misfit = _misfit(samples, tried, start, known, tier, reduces=reduces)
                    if misfit < best - 1e-9:
                        found, best, moved = tried, misfit, True
    return found


def _limited(name: str, value: float) -> float:
    return value if name in ("latency", "fill", "kernel", "half_message", "start") else min(value, 1.0)


def _misfit(
    samples: Sequence[Sample], numbers: Numbers, start: Numbers, known: Numbers, tier: str, *, reduces: bool
) -> float:
    node = numbers if tier == "node" else {}
    calibration = priced({**known, **node}, numbers if tier == "network" else {}, reduces=reduces)
    prior = sum(log(numbers[name] / value) ** 2 for name, value in start.items())
    return PRIOR * prior + sum(one.weight * abs(log(one.price(calibration) / one.seconds)) for one in samples)


def priced(node: Numbers, between: Numbers, *, reduces: bool) -> Calibration:
    """A calibration with these links; its kernels are any."""
    any_ = load_calibration("generic")
    changes: dict[str, Tier] = {}
    for name, numbers in (("node", node), ("network", between)):
        if numbers:
            told = {
                **_tier(numbers),
                **(MESSAGES if name == "network" else {}),
                "source": "measured",
                "note": "fit",
                "reduces": reduces and name == "node",
            }
            changes[name] = convert(told, Tier, where=name)
    return structs.replace(any_, **changes)


def _tier(numbers: Numbers) -> dict[str, Any]:
    """Numbers as a tier's TOML, rounded to what they are worth."""
    shares = ("all_to_all", "all_reduce", "deepep", "hybridep")
    return {
        "efficiency": round(numbers["efficiency"], 3),
        "half_message": f"{numbers.get('half_message', 0.0):.3g} B",
        "latency": f"{numbers['latency'] * 1e6:.3g} us",
        "fill": f"{numbers['fill'] * 1e6:.3g} us",
        **({"kernel": f"{numbers['kernel'] / 1e9:.0f} GB/s"} if numbers.get("kernel") else {}),
        "starts": {name: f"{numbers['start'] * 1e6:.3g} us" for name in ("deepep", "hybridep") if "start" in numbers},
        "shares": {name: round(numbers[name], 3) for name in shares if name in numbers},
    }
