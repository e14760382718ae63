"""What an allocation chooses from, and what it chose (DisagMoE, section 4.3).

Attention and FFN each take one option: so many GPUs, with the seconds and the memory that follow. The network cards of
the cluster are split between the two by one allowed pair. All numbers are made by the layout families; nothing in
`optimize` knows a model or a cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeplan.errors import InfeasibleError, SpecError


@dataclass(frozen=True, slots=True)
class SideOption:
    """One way to run attention or FFN."""

    name: str
    gpus: int
    nics: int
    """NICs that these GPUs can reach."""
    recompute: str
    seconds: float
    """Compute seconds of this side per step."""
    hbm_bytes: float
    """Peak bytes of the fullest GPU."""

    def __post_init__(self) -> None:
        _check(f"option {self.name}: gpus", self.gpus, least=1)
        _check(f"option {self.name}: nics", self.nics)
        _check(f"option {self.name}: seconds", self.seconds)
        _check(f"option {self.name}: hbm_bytes", self.hbm_bytes)


@dataclass(frozen=True, slots=True)
class NicOption:
    """An allowed pair: NICs of the attention side and of the FFN side."""

    attention: int
    ffn: int

    def __post_init__(self) -> None:
        _check(f"NIC pair ({self.attention}, {self.ffn}): fewer", min(self.attention, self.ffn), least=1)


@dataclass(frozen=True, slots=True)
class OptionTable:
    """All options of one pipeline depth and micro-batch; of equal ones an earlier one is preferred."""

    attention: tuple[SideOption, ...]
    ffn: tuple[SideOption, ...]
    nics: tuple[NicOption, ...]
    """Empty on one node."""
    volume_bytes: float
    """Bytes that cross between the sides per step and direction."""
    nic_bytes_per_s: float

    def __post_init__(self) -> None:
        _check("table: volume_bytes", self.volume_bytes)
        if has_network(self) and not 0 < self.nic_bytes_per_s < math.inf:
            raise SpecError(f"table: nic_bytes_per_s {self.nic_bytes_per_s:g} must be finite and more than 0")


@dataclass(frozen=True, slots=True)
class Budgets:
    """What the sides share (GPUs, NICs) and what each GPU has (HBM)."""

    gpus: int
    nics: int
    hbm_bytes: float

    def __post_init__(self) -> None:
        _check("budget: gpus", self.gpus)
        _check("budget: nics", self.nics)
        _check("budget: hbm_bytes", self.hbm_bytes)


Taken = tuple[SideOption, SideOption, NicOption | None]
"""An option of attention, one of FFN, and the NIC pair, None where no network is crossed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The options taken, and how sure the solver is that no others are faster."""

    attention: SideOption
    ffn: SideOption
    nics: NicOption | None
    seconds: float
    """The slowest of compute and network of both sides, per step."""
    status: str
    """"optimal", or the limit at which the solver stopped: "node limit" (repeatable), "time limit" (not)."""
    gap: float
    """By which fraction of `seconds` a faster choice may exist at most."""


def has_network(table: OptionTable) -> bool:
    """Whether bytes cross NICs: not on one node, nor where nothing crosses between the sides."""
    return bool(table.nics) and table.volume_bytes > 0


def network_seconds(table: OptionTable, nics: int) -> float:
    """Seconds per step and direction of a side with `nics` NICs: V / (nics B). Latency and contention are left out."""
    return table.volume_bytes / (nics * table.nic_bytes_per_s)


def step_seconds(table: OptionTable, attention: SideOption, ffn: SideOption, nics: NicOption | None) -> float:
    """Seconds of the slowest of four: compute of either side, network of either side."""
    network = [network_seconds(table, count) for count in (nics.attention, nics.ffn)] if nics else []
    return max(attention.seconds, ffn.seconds, *network)


def least_seconds(table: OptionTable) -> float:
    """Seconds that no choice goes below: the most of the least of either side and of the network; 1 if that is 0."""
    pairs = table.nics if has_network(table) else ()
    network = [network_seconds(table, min(pair.attention, pair.ffn)) for pair in pairs]
    sides = [min(option.seconds for option in side) for side in (table.attention, table.ffn)]
    return max(*sides, min(network, default=0.0)) or 1.0


def excess_bytes(option: SideOption, budgets: Budgets) -> float:
    """Bytes per GPU that `option` needs above the budget."""
    return max(0.0, option.hbm_bytes - budgets.hbm_bytes)


def check_reach(table: OptionTable) -> None:
    """InfeasibleError where no budget would help: a side without options, or no pair of NICs that both reach."""
    for side, every in (("attention", table.attention), ("FFN", table.ffn)):
        if not every:
            raise InfeasibleError(f"allocation: no option for {side}")
    attention, ffn = (max(option.nics for option in every) for every in (table.attention, table.ffn))
    if has_network(table) and not any(k.attention <= attention and k.ffn <= ffn for k in table.nics):
        pairs = f"none of {len(table.nics)} NIC pairs is within reach"
        raise InfeasibleError(f"allocation: {pairs}: attention GPUs reach {attention} NICs, FFN GPUs {ffn}")


def _check(where: str, value: float, *, least: int = 0) -> None:
    if not least <= value < math.inf:
        raise SpecError(f"{where} {value:g} must be finite and at least {least}")
