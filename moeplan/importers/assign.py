"""Which NIC each GPU of a node sends through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeplan.errors import SpecError
from moeplan.importers.found import FoundNode, some


class Assigned(NamedTuple):
    """NICs by index; no entries where the node has none."""

    nic_of_gpu: tuple[int, ...]
    """One for each GPU."""
    nics_of_gpu: tuple[tuple[int, ...], ...]
    """That one and the further ones that serve the GPU alone, such as the second port of its adapter."""
    spare: tuple[int, ...]
    """Those that serve no GPU."""
    notes: tuple[str, ...]
    """What is a guess."""


def assign(node: FoundNode, override: FoundNode | None = None) -> Assigned:
    """Each GPU one of its nearest NICs, ties spread evenly: no NIC serves more GPUs than it must, then index order.

    Of all choices the loads with the least sum of squares, of those the first in the order of (NIC of GPU 0, NIC of
    GPU 1, ...); index order where all NICs are equally far from all GPUs. NICs left over go to the GPUs that they are
    nearest to where each then has the same number. `override` is the same node in a second file, which knows the
    distances; SpecError where it has other numbers of GPUs or NICs.
    """
    source = node if override is None else _matching(node, override)
    nics = len(source.nics)
    if not nics:
        return Assigned((), (), (), ())
    near = [tuple(sorted(nics_near)) for nics_near in source.nic_of_gpu]
    chosen = _first_of_the_even(near, nics)
    every = _further(near, chosen, nics)
    used = {nic for own in every for nic in own}
    spare = tuple(nic for nic in range(nics) if nic not in used)
    return Assigned(tuple(chosen), every, spare, (*_notes(source, spare), *_said(node, override)))


def _matching(node: FoundNode, override: FoundNode) -> FoundNode:
    if (override.gpus, len(override.nics)) != (node.gpus, len(node.nics)):
        theirs, ours = (f"{one.gpus} GPUs and {len(one.nics)} NICs" for one in (override, node))
        raise SpecError(f"the file that overrides has {theirs}, the node {ours}; the same numbers are right")
    return override


def _notes(node: FoundNode, spare: tuple[int, ...]) -> list[str]:
    nics = len(node.nics)
    notes = []
    if nics > 1 and all(len(near) == nics for near in node.nic_of_gpu):
        notes.append(
            "every NIC is equally far from every GPU: assumed in index order; a topology file of NCCL can tell"
        )
    if spare:
        notes.append(f"{len(spare)} NICs serve no GPU: {some([node.nics[nic].name for nic in spare])}")
    return notes


def _said(node: FoundNode, override: FoundNode | None) -> list[str]:
    if override is None or [nic.name for nic in node.nics] == [nic.name for nic in override.nics]:
        return []
    return ["assumed: GPU i and NIC i of one file are GPU i and NIC i of the other"]


def _further(near: list[tuple[int, ...]], chosen: list[int], nics: int) -> tuple[tuple[int, ...], ...]:
    """NICs of each GPU with those left over, each to the GPU with the fewest among those near it; even or none."""
    own = [[nic] for nic in chosen]
    for nic in (nic for nic in range(nics) if nic not in chosen):
        takers = [gpu for gpu, nics_near in enumerate(near) if nic in nics_near]
        if takers:
            own[min(takers, key=lambda gpu: (len(own[gpu]), gpu))].append(nic)
    even = len({len(nics_of) for nics_of in own}) == 1
    return tuple(tuple(nics_of) if even else (nic,) for nics_of, nic in zip(own, chosen, strict=True))


def _first_of_the_even(near: list[tuple[int, ...]], nics: int) -> list[int]:
    """The first of the most even choices: GPU by GPU the lowest NIC with which the rest can be as even."""
    best = _cost(near, nics)
    for gpu in range(len(near)):
        for nic in near[gpu]:
            trial = [*near[:gpu], (nic,), *near[gpu + 1 :]]
            if len(near[gpu]) == 1 or _cost(trial, nics) == best:
                near = trial
                break
    return [one for (one,) in near]


def _cost(near: Sequence[tuple[int, ...]], nics: int) -> int:
    """The least sum of squared loads: GPUs are added one by one along the shortest way to the least loaded NIC.

    Each addition that ends at a NIC of least load within reach keeps the choice optimal (Harvey et al., Semi-matchings
    for bipartite graphs and load balancing, 2006).
    """
    chosen = [-1] * len(near)
    loads = [0] * nics
    for gpu in range(len(near)):
        came_from = _reach(gpu, near, chosen)
        nic: int = min(came_from, key=lambda one: (loads[one], one))
        loads[nic] += 1
        while True:
            mover = came_from[nic]
            chosen[mover], nic = nic, chosen[mover]
            if mover == gpu:
                break
    return sum(load * load for load in loads)


def _reach(gpu: int, near: Sequence[tuple[int, ...]], chosen: Sequence[int]) -> dict[int, int]:
    """The NICs that could take one GPU more so that `gpu` finds a place, and the GPU that would move to each."""
    came_from = dict.fromkeys(near[gpu], gpu)
    queue = list(near[gpu])
    for nic in queue:
        for other, taken in enumerate(chosen):
            if taken == nic:
                new = [one for one in near[other] if one not in came_from]
                came_from |= dict.fromkeys(new, other)
                queue += new
    return came_from
