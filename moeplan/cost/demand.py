"""What a pattern asks of the links, for any size: routes are looked up once for all patterns that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from moeplan.cost.patterns import Side, Transfers
from moeplan.spec.calibration import Pattern as Named
from moeplan.spec.calibration import Tier
from moeplan.topology.inside import Floats, Integers
from moeplan.topology.routes import Fabric

_T = TypeVar("_T", bound=np.generic)
Pattern: TypeAlias = Callable[[Sequence[Side]], Sequence[Transfers]]
"""The phases of a pattern, given its sides; its groups move their bytes at the same time."""
Key: TypeAlias = "tuple[object, ...]"


class Demand(NamedTuple):
    """What one phase asks of the links for a size of 1; without links where nothing moves."""

    inside: Floats
    """Of those links inside nodes that may be the busiest: size / bandwidth and messages / bandwidth [2, links]."""
    between: Floats
    """The same of the other links [2, links]."""
    latency_s: float
    """Of the slowest route, or of the slowest chain of routes; that of a transfer that is split is the mean over its
    paths, weighted by share."""
    flows: float = 0.0
    """Transfers that one NIC sends at the same time, at most."""
    handled: float = 0.0
    """Messages / bandwidth of the NIC that has most, at either end, for what a message takes there at least [s/B]."""


def demands(fabric: Fabric, key: Key, sides: Sequence[Side], pattern: Pattern) -> tuple[Demand, ...]:
    """The demand of every phase of `pattern`, whose name and numbers are `key`; each is worked out once per fabric.

    On a cluster whose nodes are alike, groups that share no links are worked out apart, and once for all that are
    alike. Raises SpecError as `Fabric.crossings` does.
    """
    known = _KNOWN.setdefault(fabric, {})
    exact = (key, _digest(*(part for side in sides for part in side)))
    if exact not in known:
        known[exact] = _worst([_known(known, fabric, key, form, some, pattern) for form, some in _apart(fabric, sides)])
    return known[exact]


def busiest_s(links: Floats, handled: float, tier: Tier, size: float, named: Named) -> float:
    """Seconds of the busiest of `links` [2, n], with `size` and what messages cost more, or of who handles messages.

    What a message takes at least, whoever sends it needs, and whoever receives it; switches do not.
    """
    load = size * links[0] + tier.half_message_bytes * links[1]
    least = tier.least_bytes.get(named, 0.0) * handled
    return max(float(load.max(initial=0.0)), least) / tier.efficiency


_Known: TypeAlias = "dict[tuple[object, ...], tuple[Demand, ...]]"
_KNOWN: WeakKeyDictionary[Fabric, _Known] = WeakKeyDictionary()


def _known(
    known: _Known, fabric: Fabric, key: Key, form: bytes | None, sides: Sequence[Side], pattern: Pattern
) -> tuple[Demand, ...]:
    like = (key, "like", form)
    if form is not None and like in known:
        return known[like]
    found = tuple(demand_of(fabric, phase) for phase in pattern(sides))
    if form is not None:
        known[like] = found
    return found


def _apart(fabric: Fabric, sides: Sequence[Side]) -> Iterator[tuple[bytes | None, Sequence[Side]]]:
    """Groups that share no links with others, by what tells their form; those of a form that was met are left out."""
    for side in sides:
        fabric.node_of(side.ranks)
    places = fabric.alike
    if places is None or not all(side.sizes.size and side.sizes.all() for side in sides):
        yield None, sides
        return
    item, ranks = (np.concatenate(part) for part in ([s.group for s in sides], [s.ranks for s in sides]))
    number = np.unique(places.islands(ranks, item), return_inverse=True)[1]
    order = np.argsort(number[item], kind="stable")
    forms = places.forms(ranks[order], number[item][order])
    cuts = zip(_cut(forms, number[item]), *(_sorted(side, number) for side in sides), strict=True)
    met = set()
    for form, *some in cuts:
        told = _digest(form, *(side.sizes for side in some))
        if told not in met:
            met.add(told)
            yield told, some


def _sorted(side: Side, number: Integers) -> Iterator[Side]:
    """The groups of each number, in order."""
    ranks = side.ranks[np.argsort(number[side.group], kind="stable")]
    sizes = side.sizes[np.argsort(number, kind="stable")]
    return map(Side, _cut(ranks, number[side.group]), _cut(sizes, number))


def _cut(values: NDArray[_T], number: Integers) -> list[NDArray[_T]]:
    """`values`, which are sorted by `number`, cut where the number changes."""
    return np.split(values, np.cumsum(np.bincount(number))[:-1])


def demand_of(fabric: Fabric, transfers: Transfers) -> Demand:
    """Loads of all links at the same time; of links that others outdo in bytes and in messages, nothing is kept."""
    moving = np.flatnonzero(transfers.share > 0)
    source, target = transfers.source[moving], transfers.target[moving]
    share, messages = transfers.share[moving], transfers.messages[moving]
    loads = np.zeros((2, len(fabric.edges)))
    latency: Floats = np.zeros(moving.size)
    under_way, flows = _under_way(source, messages, transfers.at_once), np.zeros(len(fabric.edges))
    for part in fabric.parts(source, target):
        leaves = fabric.leaves_node[part.edge]
        flows += np.bincount(part.edge[leaves], under_way[part.transfer[leaves]], minlength=flows.size)
        loads[0] += fabric.per_edge(part, share)
        loads[1] += fabric.per_edge(part, messages)
        seconds = fabric.latency_s[part.edge] * part.share
        latency += np.bincount(part.transfer, seconds, minlength=moving.size)
    longest = float(latency.max(initial=0.0))
    if transfers.far is not None:
        further, far_s = fabric.far(transfers.far)
        loads, longest = loads + further, max(longest, far_s)
        flows += np.where(fabric.leaves_node, further[1], 0.0)
    loads = fabric.spread(loads) / fabric.bandwidth_bytes_per_s
    inside, between = (_outer(loads[:, near & (loads[0] > 0)]) for near in (fabric.inside_node, ~fabric.inside_node))
    if transfers.chain is not None:
        longest = float(np.bincount(transfers.chain[moving], latency * share).max(initial=0.0))
    handled = float(loads[1, fabric.handles & (loads[0] > 0)].max(initial=0.0))
    return Demand(inside, between, longest, float(flows.max(initial=0.0)), handled)


def _under_way(source: Integers, messages: Floats, at_once: int) -> Floats:
    """The part of each transfer that is under way at any time: one message of it, or `at_once` of all of its source."""
    one = np.minimum(1.0, messages)
    if not at_once:
        return np.asarray(one, dtype=np.float64)
    return np.asarray(np.minimum(one, at_once / np.bincount(source)[source]), dtype=np.float64)


def _outer(links: Floats) -> Floats:
    """Those of `links` [2, n] that no other equals or outdoes in both numbers."""
    links = links[:, np.lexsort(-links[::-1])]
    before = np.maximum.accumulate(links[1])
    return links[:, links[1] > np.concatenate(([-1.0], before))[:-1]] if links.size else links


def _worst(each: Sequence[tuple[Demand, ...]]) -> tuple[Demand, ...]:
    """Phase by phase, what the demands of groups that share no links come to together."""
    if len(each) == 1:
        return each[0]
    return tuple(
        Demand(
            _outer(np.concatenate([d.inside for d in phase], axis=1)),
            _outer(np.concatenate([d.between for d in phase], axis=1)),
            max(d.latency_s for d in phase),
            max(d.flows for d in phase),
            max(d.handled for d in phase),
        )
        for phase in zip(*each, strict=True)
    )


def _digest(*arrays: NDArray[np.generic]) -> bytes:
    found = blake2b(digest_size=16)
    for array in arrays:
        found.update(b"%d," % array.size)
        found.update(np.ascontiguousarray(array).data)
    return found.digest()
