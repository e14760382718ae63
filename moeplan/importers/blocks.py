"""Blocks of nodes: which there are, and how many groups of nodes fit whole into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.importers.found import FoundBlock, some


class Groups(NamedTuple):
    """Whole groups in each block, and the nodes of each block that none takes."""

    per_block: tuple[int, ...]
    unused: tuple[int, ...]


def groups_in(blocks: Sequence[FoundBlock], nodes: int) -> Groups:
    """How many groups of `nodes` nodes lie inside one block each: n // nodes of a block of n, n % nodes unused.

    SpecError where `nodes` is less than 1.
    """
    if nodes < 1:
        raise SpecError(f"groups of {nodes} nodes; at least 1")
    sizes = [len(block.hosts) for block in blocks]
    return Groups(tuple(size // nodes for size in sizes), tuple(size % nodes for size in sizes))


def check_blocks(blocks: Sequence[FoundBlock], where: str) -> None:
    """SpecError where a block is named twice or empty, or a node is in two."""
    names: set[str] = set()
    home: dict[str, str] = {}
    for block in blocks:
        if block.name in names:
            raise SpecError(f"{where}: block {block.name} is given twice; once is right")
        if not block.hosts:
            raise SpecError(f"{where}: block {block.name} has no nodes; the file may be cut")
        names.add(block.name)
        for host in block.hosts:
            if host in home:
                raise SpecError(f"{where}: node {host} is in blocks {home[host]} and {block.name}; one is right")
            home[host] = block.name


def check_sizes(sizes: Sequence[int], where: str) -> tuple[int, ...]:
    """`sizes`, or SpecError where one is not the first times a power of two (topology.conf(5), BlockSizes)."""
    for size in sizes:
        times, rest = divmod(size, sizes[0]) if sizes[0] > 0 else (0, 1)
        if rest or times < 1 or times & (times - 1):
            raise SpecError(f"{where}: block size {size}; each is the first, {sizes[0]}, times a power of two")
    return tuple(sorted(set(sizes)))


def block_notes(blocks: Sequence[FoundBlock], sizes: Sequence[int]) -> tuple[str, ...]:
    """What a reader should know: no sizes given, blocks smaller than the smallest size."""
    if not blocks:
        return ()
    if not sizes:
        return ("the file gives no block sizes",)
    small = [block.name for block in blocks if len(block.hosts) < sizes[0]]
    return (f"{len(small)} blocks have fewer than {sizes[0]} nodes: {some(small)}",) if small else ()
