"""The order of nodes whose busiest link is least busy, as an integer program: exact for a dozen nodes.

Symbols: slots s, t; classes a, b; links e; n_a nodes of class a; load_e(s, t, a, b) bytes over bandwidth that s and t
put on e from classes a and b.

    on_s,a in {0, 1}                      slot s is on a node of class a
    both_s,t,a,b >= 0                     s is on a and t on b, for slots with traffic, s < t
    tau                                   the busiest link
    place_s     sum_a on_s,a = 1
    room_a      sum_s on_s,a = n_a
    from_s,t,a  sum_b both_s,t,a,b = on_s,a
    to_s,t,b    sum_a both_s,t,a,b = on_t,b
    link_e      sum load_e(s, t, a, b) both_s,t,a,b - tau <= 0

Products of binaries as in Adams and Johnson (1994). Detours of adaptive routing are left out: they are no sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from moeplan.errors import SpecError
from moeplan.optimizer.milp import Row, Solver
from moeplan.optimizer.slots import Slots
from moeplan.topology.inside import Floats, Integers

TOLERANCES = {"mip_feasibility_tolerance": 1e-6, "primal_feasibility_tolerance": 1e-7, "mip_rel_gap": 1e-7}
"""Looser than for other programs: with tighter ones HiGHS 1.16 lost the optimum of some of these."""


class Exact(NamedTuple):
    """An order of classes, and what is proven about it."""

    order: Integers
    busiest_s: float
    status: str
    bound_s: float
    """No order has a busiest link below this."""


def solve(slots: Slots, start: Integers, time_limit_s: float = 10.0) -> Exact:
    """The order of the least busy link, from `start` [nodes]; SpecError with adaptive routing.

    Where the time ends first, the best that was found, with its bound.
    """
    check_sums(slots)
    begun = slots.score(start).busiest_s
    if begun <= slots.fixed_s:
        return Exact(start, begun, "optimal", begun)
    columns = _columns(slots)
    least = max(slots.fixed_s, _least_cut_s(slots)) / begun
    rows = [*_places(slots), *_both(slots, columns), *_links(slots, columns, begun), Row("cut", {"tau": -1.0}, -least)]
    solver = Solver(rows, time_limit_s, 10**6, **TOLERANCES)
    solver.start_at(_told(slots, start, columns))
    found = solver.minimise({"tau": 1.0})
    on = np.array([[found.values[_on(s, a)] for a in range(slots.width)] for s in range(start.size)])
    order = np.asarray(on.argmax(axis=1), dtype=np.intp)
    return Exact(order, slots.score(order).busiest_s, found.status, max(slots.fixed_s, found.bound * begun))


def check_sums(slots: Slots) -> None:
    """SpecError where loads are no sums of what single transfers put on links: with adaptive routing."""
    if slots.fabric.adaptive:
        raise SpecError("placement: adaptive routing is no integer program; the search by swaps judges its detours")


def _on(slot: int, at: int) -> str:
    return f"on_{slot}_{at}"


def _columns(slots: Slots) -> list[tuple[int, int]]:
    """Pairs of slots with traffic."""
    pairs = zip(slots.source.tolist(), slots.target.tolist(), strict=True)
    return sorted({(min(pair), max(pair)) for pair in pairs})


def _alone(slots: Slots) -> list[bool]:
    """Whether a class is a single node, on which no two slots are."""
    return [bool(count == 1) for count in np.bincount(slots.classes)]


def _name(s: int, t: int, a: int, b: int) -> str:
    return f"both_{s}_{t}_{a}_{b}"


def _places(slots: Slots) -> Iterator[Row]:
    nodes, width = slots.classes.size, slots.width
    for s in range(nodes):
        yield Row(f"place_{s}", {_on(s, a): 1.0 for a in range(width)}, 1.0, "=")
    for a, count in enumerate(np.bincount(slots.classes).tolist()):
        yield Row(f"room_{a}", {_on(s, a): 1.0 for s in range(nodes)}, count, "=")


def _both(slots: Slots, columns: list[tuple[int, int]]) -> Iterator[Row]:
    width, alone = slots.width, _alone(slots)
    for s, t in columns:
        for a in range(width):
            others = [b for b in range(width) if not (a == b and alone[a])]
            there = {_name(s, t, a, b): 1.0 for b in others}
            back = {_name(s, t, b, a): 1.0 for b in others}
            yield Row(f"from_{s}_{t}_{a}", {**there, _on(s, a): -1.0}, 0.0, "=")
            yield Row(f"to_{s}_{t}_{a}", {**back, _on(t, a): -1.0}, 0.0, "=")


def _links(slots: Slots, columns: list[tuple[int, int]], scale_s: float) -> Iterator[Row]:
    """The load of every link, in units of `scale_s`; of links with the same terms one."""
    width = slots.width
    crossed: dict[int, list[tuple[int, float]]] = {}
    speed = slots.fabric.bandwidth_bytes_per_s[slots.edges] * scale_s
    for row, link, share in zip(slots.row.tolist(), slots.link.tolist(), slots.share.tolist(), strict=True):
        crossed.setdefault(row, []).append((link, share / float(speed[link])))
    terms: dict[int, dict[str, float]] = {}
    flows = zip(slots.source.tolist(), slots.target.tolist(), slots.shape.tolist(), slots.bytes.tolist(), strict=True)
    for s, t, shape, sent in flows:
        for a in range(width):
            for b in range(width):
                name = _name(s, t, a, b) if s < t else _name(t, s, b, a)
                for link, share in crossed.get((shape * width + a) * width + b, ()):
                    on = terms.setdefault(link, {})
                    on[name] = on.get(name, 0.0) + sent * share
    met = set()
    for link, on in terms.items():
        key = tuple(sorted((name, round(value, 12)) for name, value in on.items()))
        if key not in met:
            met.add(key)
            yield Row(f"link_{link}", {**on, "tau": -1.0})


def _least_cut_s(slots: Slots) -> float:
    """A bound on the busiest link: of each link that carries all that leaves some classes, or all that comes to them,
    the least that so many slots can send to the others or get from them.
    """
    count, nodes, width = np.bincount(slots.classes), slots.classes.size, slots.width
    traffic = np.zeros((nodes, nodes))
    np.add.at(traffic, (slots.source, slots.target), slots.bytes)
    least = 0.0
    for link, speed in enumerate(slots.fabric.bandwidth_bytes_per_s[slots.edges]):
        pairs = np.zeros((width, width), dtype=np.bool_)
        row = slots.row[(slots.link == link) & (slots.share > 1 - 1e-9)] % width**2
        pairs[row // width, row % width] = True
        side = pairs.any(axis=1)
        if slots.shapes == 1 and (pairs == np.outer(side, ~side)).all() and side.any():
            least = max(least, _least_leaving(traffic, int(count[side].sum())) / float(speed))
    return least


MOST_SETS = 20_000
"""Sets of slots that are enumerated for a bound."""


@lru_cache(maxsize=64)
def _sets(nodes: int, size: int) -> Floats:
    """All sets of `size` of the slots, as rows of 0 and 1 [sets, nodes]; none where they are too many."""
    if comb(nodes, size) > MOST_SETS:
        return np.empty((0, nodes))
    chosen = np.array([*combinations(range(nodes), size)], dtype=np.intp)
    sets = np.zeros((len(chosen), nodes))
    np.put_along_axis(sets, chosen, 1.0, axis=1)
    return sets


def _least_leaving(traffic: Floats, size: int) -> float:
    """The least that a set of `size` slots sends to the others; 0 where there are too many sets."""
    sets = _sets(len(traffic), size)
    return float(((sets @ traffic) * (1 - sets)).sum(axis=1).min()) if len(sets) else 0.0


def _told(slots: Slots, order: Integers, columns: list[tuple[int, int]]) -> dict[str, float]:
    """The values of all columns in `order`, in units of its own busiest link."""
    on = {_on(s, int(a)): 1.0 for s, a in enumerate(order)}
    return {**on, **{_name(s, t, int(order[s]), int(order[t])): 1.0 for s, t in columns}, "tau": 1.0}
