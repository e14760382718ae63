"""Which nodes of NVLink domains larger than a node a job takes: as many of each domain, where that can be."""

from __future__ import annotations

from collections.abc import Sequence


def evenly(homes: Sequence[int], nodes: int) -> Sequence[int]:
    """The numbers of `nodes` nodes of those in domains `homes`: as many of each of the fewest domains, in their order.

    Of several domains that have as many, the first. Where no number of domains up to twice what the first nodes lie in
    gives each as many, these first nodes.
    """
    members: dict[int, list[int]] = {}
    for n, home in enumerate(homes):
        members.setdefault(home, []).append(n)
    for count in range(1, 2 * len(set(homes[:nodes])) + 1):
        each, rest = divmod(nodes, count)
        parts = [row[:each] for row in members.values() if len(row) >= each][:count]
        if not rest and len(parts) == count:
            return [n for part in parts for n in part]
    return range(nodes)
