"""What a file says about a machine, and nothing else: what it does not say is None, empty, 0 or -1, and noted."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

LinkKind: TypeAlias = Literal["nvlink", "xgmi", "pcie"]
FoundLink: TypeAlias = tuple[int, int, int, LinkKind]
"""Two GPUs counted from 0, the first one lower, how many cables, and their kind.

Behind a switch the count is that of the cables from one GPU to the switch. "pcie": all that passes between the two goes
over PCIe and perhaps the CPUs; given only by formats that show the path of every pair.
"""
UpLink: TypeAlias = tuple[str, float, int]
"""The name of a switch, bytes per second of one cable (0 where unknown), how many cables (0 where unknown)."""


class FoundNic(NamedTuple):
    """A port of a network adapter."""

    name: str
    bytes_per_s: float
    """0 where the file does not say."""
    numa: int
    """-1 where the file does not say."""


class FoundNode(NamedTuple):
    """One node. `gpus` is 0 where the file knows of adapters only."""

    gpus: int
    gpu_name: str
    nics: tuple[FoundNic, ...]
    nic_of_gpu: tuple[tuple[int, ...], ...]
    """All nearest NICs of each GPU, by index; equally near where there are several."""
    links: tuple[FoundLink, ...]
    switch: bool
    """Whether an NVSwitch joins every GPU to every other with all its NVLinks, as far as the file says."""
    numa_of_gpu: tuple[int, ...]
    cpus_of_gpu: tuple[str, ...]
    """As "0-47,96-143"; "" where the file does not say."""
    link_bytes_per_s: tuple[float, ...] = ()
    """One direction of each of `links`, all its cables together; empty where the file does not say."""


class FoundSwitch(NamedTuple):
    """A switch between nodes."""

    name: str
    hosts: tuple[str, ...]
    """Those attached to this very switch."""
    up: tuple[UpLink, ...]
    """To switches of a higher level; a link within a level stands on the switch that comes first."""
    level: int
    """0 next to the hosts."""


class FoundBlock(NamedTuple):
    """Nodes that share one NVLink domain or that the scheduler keeps together."""

    name: str
    hosts: tuple[str, ...]


class Found(NamedTuple):
    """All that one file says. `notes` name what is a guess or is not in the file."""

    format: str
    node: FoundNode | None
    hosts: tuple[str, ...]
    switches: tuple[FoundSwitch, ...]
    blocks: tuple[FoundBlock, ...]
    notes: tuple[str, ...]
    block_sizes: tuple[int, ...] = ()
    """Nodes of the blocks that the scheduler plans with, smallest first."""


def unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """`names` without repetitions, in the order of their first place."""
    return tuple(dict.fromkeys(names))


def some(names: tuple[str, ...] | list[str], most: int = 4) -> str:
    """The first few of `names` in one line, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
