"""Which free nodes a job should take: those of the fewest racks, then groups, with the least left over beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.errors import InfeasibleError, SpecError
from moeplan.topology.inside import Integers
from moeplan.topology.units import Unit, in_units

MOST = 2**24
"""More than any machine has nodes."""
NEVER = 2**60


class Chosen(NamedTuple):
    """Nodes for a job."""

    hosts: tuple[str, ...]
    """In the order in which ranks should be on them: rack by rack."""
    racks: tuple[str, ...]
    groups: tuple[str, ...]
    left_over: int
    """Free nodes of these racks that the job does not take."""
    free: int
    """Of how many the nodes were chosen."""


class _Rack(NamedTuple):
    group: int
    nodes: int
    """Free."""
    fits: int
    """Blocks of nodes that must stay in one rack."""


class _Step(NamedTuple):
    """How the least cost of each state came about when one rack was passed; arrays [racks taken, missed]."""

    first: NDArray[np.bool_]
    """The rack is the first one that is taken of its group,"""
    more: NDArray[np.bool_]
    """or a further one; else it is left out."""
    ended: NDArray[np.bool_]
    """Whether the group has one, where it ends here."""
    last: bool
    """Whether it ends here."""


def choose(free: Sequence[str], units: Mapping[str, Unit], nodes: int, together: int = 1) -> Chosen:
    """`nodes` of the `free` ones in the fewest racks; of such choices in the fewest groups, then with the fewest left.

    `together` nodes, such as those of an expert group, stay in one rack; what a rack has beyond multiples of it is not
    used. Exact: no other choice has fewer racks, or as many racks and fewer groups, or as many of both and fewer free
    nodes left over in its racks. Which nodes of a rack are taken follows the order of `free`.

    Raises SpecError for a node without a unit or named twice, or `nodes` that are no multiple of `together`, and
    InfeasibleError where too few are free.
    """
    if nodes < 1 or together < 1 or nodes % together:
        raise SpecError(f"choose: {nodes} nodes, {together} together; at least 1 of each and a multiple")
    if lost := [host for host in free if host not in units]:
        raise SpecError(f"choose: node {lost[0]!r} is free, and not in the topology of {len(units)} nodes")
    if len(set(free)) < len(free):
        raise SpecError(f"choose: {len(free) - len(set(free))} free nodes are named twice; once is right")
    by_rack: dict[Unit, list[str]] = {}
    for host in in_units(free, dict(units)):
        by_rack.setdefault(units[host], []).append(host)
    groups = [*dict.fromkeys(unit.group for unit in by_rack)]
    racks = [_Rack(groups.index(u.group), len(hosts), len(hosts) // together) for u, hosts in by_rack.items()]
    taken = _fewest(racks, nodes // together)
    if taken is None:
        fit = sum(rack.fits for rack in racks) * together
        blocks = f" in racks of whole {together}" if together > 1 else ""
        raise InfeasibleError(f"choose: {nodes} nodes asked for, {fit} are free{blocks}")
    units_taken = [unit for i, unit in enumerate(by_rack) if i in taken]
    hosts = [host for unit in units_taken for host in by_rack[unit][: len(by_rack[unit]) // together * together]]
    return Chosen(
        tuple(hosts[:nodes]),
        tuple(unit.rack for unit in units_taken),
        tuple(group for group in dict.fromkeys(unit.group for unit in units_taken) if group),
        sum(len(by_rack[unit]) for unit in units_taken) - nodes,
        len(free),
    )


def _fewest(racks: Sequence[_Rack], need: int) -> set[int] | None:
    """The racks to take, or None where all are too few.

    With k the fewest racks, the k largest hold `need` and less than one rack more: the slack. Let v be what the
    smallest of them holds. What a choice of k racks holds less than these is what it leaves out of racks above v, and
    what its racks below v are short of it. So racks are passed one by one, and kept is only the least cost of every
    number of racks taken and of what they miss up to the slack [racks taken, missed].
    """
    sizes = sorted((rack.fits for rack in racks), reverse=True)
    sums = np.cumsum(sizes, dtype=np.intp)
    k = int(np.searchsorted(sums, need)) + 1
    if k > len(racks):
        return None
    level, slack = sizes[k - 1], int(sums[k - 1]) - need
    none = np.full((k + 1, slack + 1), NEVER, dtype=np.intp)
    off, on = none.copy(), none
    off[0, 0] = 0
    steps: list[_Step] = []
    for i, rack in enumerate(racks):
        over = rack.fits - level
        left = [_moved(state, 0, max(0, over), 0) for state in (off, on)]
        first = _moved(off, 1, max(0, -over), rack.nodes + MOST)
        more = _moved(on, 1, max(0, -over), rack.nodes)
        opened = np.minimum(np.minimum(first, more), left[1])
        last = i + 1 == len(racks) or racks[i + 1].group != rack.group
        steps.append(_Step(first == opened, more == opened, opened < left[0], last))
        off, on = (np.minimum(left[0], opened), none) if last else (left[0], opened)
    return _traced(racks, steps, level, k, int(np.argmin(off[k])))


def _moved(state: Integers, count: int, missed: int, cost: int) -> Integers:
    """`state` with `count` more racks, `missed` more nodes and `cost` more."""
    moved = np.full(state.shape, NEVER, dtype=np.intp)
    rows, columns = state.shape
    if missed < columns:
        moved[count:, missed:] = np.minimum(state[: rows - count, : columns - missed] + cost, NEVER)
    return moved


def _traced(racks: Sequence[_Rack], steps: Sequence[_Step], level: int, k: int, missed: int) -> set[int]:
    """The racks taken on the way to `k` racks that miss `missed`."""
    taken, inside = set[int](), False
    for i in range(len(racks) - 1, -1, -1):
        step, over = steps[i], racks[i].fits - level
        if step.last:
            inside = bool(step.ended[k, missed])
        take = inside and bool(step.first[k, missed] or step.more[k, missed])
        if take:
            inside = not bool(step.first[k, missed])
            taken.add(i)
        k, missed = k - take, missed - max(0, -over if take else over)
    return taken
