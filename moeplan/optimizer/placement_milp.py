"""The order of nodes whose busiest link is least busy, as an integer program.

Symbols: slots s, t; classes a; blocks A, B of classes; links e; n nodes of a class or set; load_e bytes over bandwidth.

    on_s,a in {0, 1}                      slot s is on a node of class a; in_s,A = sum_a in A on_s,a
    same_s,t,A >= 0                       s and t are both in A, for slots with traffic and the sides A of cuts
    both_s,t,A,B >= 0                     s is in A and t in B, for slots with traffic, s < t
    tau                                   the busiest link
    place_s     sum_a on_s,a = 1
    room_a      sum_s on_s,a = n_a
    same        same_s,t,A <= in_s,A, in_t,A;   sum_t same_s,t,A <= (n_A - 1) in_s,A
    from, to    sum_B both_s,t,A,B = in_s,A;    sum_A both_s,t,A,B = in_t,B
    near        sum_t both_s,t,A,B <= (n_B - [A = B]) in_s,A
    cut_e       load of what leaves A: sum_s,t load_e(s, t) (in_s,A - same_s,t,A) - tau <= 0
    link_e      sum load_e(s, t, A, B) both_s,t,A,B - tau <= 0
    alike       in_s,A <= sum_t < s in_t,A' of sets A', A that may change places

Products of binaries as in Adams and Johnson (1994), over the blocks that links tell apart and no finer; `near` and the
third row of `same` are their products with `room`, without which fractions of slots make all links idle. Under
adaptive routing, of what groups G send each other, d_G,H, the part round_G,H <= d_G,H goes over all other groups alike
and link_G,H carries d - round + (sum_K round_G,K + round_K,H - 2 round_G,H) / (groups - 2), as `topology.detours`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from moeplan.optimizer.milp import Row, Solver
from moeplan.optimizer.placement_alike import alike_sets, first_come_first
from moeplan.optimizer.placement_cuts import least_cut_s
from moeplan.optimizer.placement_forms import Forms, forms_of
from moeplan.optimizer.slots import Slots
from moeplan.topology.inside import Integers

TOLERANCES = {"mip_feasibility_tolerance": 1e-6, "primal_feasibility_tolerance": 1e-7, "mip_rel_gap": 1e-7}
"""Looser than for other programs: with tighter ones HiGHS 1.16 lost the optimum of some of these."""
MOST_COLUMNS = 50_000
"""Of a program; more would take longer to write down than a search."""
Terms = dict[str, float]


class Exact(NamedTuple):
    """An order of classes, and what is proven about it."""

    order: Integers
    busiest_s: float
    status: str
    bound_s: float
    """No order has a busiest link below this."""


def solve(slots: Slots, start: Integers, time_limit_s: float = 10.0) -> Exact:
    """The order of the least busy link, from `start` [nodes].

    Where the time ends first, or the program would be too large, the best that was found, with its bound.
    """
    begun = slots.score(start).busiest_s
    least = max(slots.fixed_s, least_cut_s(slots))
    if begun <= least * (1 + 1e-9):
        return Exact(start, begun, "optimal", begun)
    program = _Program(slots, forms_of(slots), begun)
    if program.columns > MOST_COLUMNS:
        return Exact(start, begun, "too large", least)
    rows = [*program.rows(), Row("least", {"tau": -1.0}, -least / begun), Row("known", {"tau": 1.0}, 1.0)]
    solver = Solver(rows, time_limit_s, 10**6, **TOLERANCES)
    solver.start_at(program.told(start))
    found = solver.minimise({"tau": 1.0})
    on = np.array([[found.values[_on(s, a)] for a in range(slots.width)] for s in range(start.size)])
    order = np.asarray(on.argmax(axis=1), dtype=np.intp)
    return Exact(order, slots.score(order).busiest_s, found.status, max(slots.fixed_s, found.bound * begun))


def _on(slot: int, at: int) -> str:
    return f"on_{slot}_{at}"


def _in(slot: int, side: tuple[int, ...], factor: float = 1.0) -> Terms:
    """factor * in_s,A."""
    return {_on(slot, a): factor for a in side}


def _plus(*parts: Terms) -> Terms:
    found: Counter[str] = Counter()
    for part in parts:
        for name, value in part.items():
            found[name] += value  # type: ignore[assignment]
    return dict(found)


class _Program:
    """The rows of the program of `slots`; loads are in units of `scale_s`."""

    def __init__(self, slots: Slots, forms: Forms, scale_s: float) -> None:
        self._slots, self._forms, self._scale_s = slots, forms, scale_s
        self._count = np.bincount(slots.classes, minlength=slots.width)
        self._nodes = slots.classes.size
        pairs = zip(slots.source.tolist(), slots.target.tolist(), strict=True)
        self._pairs = sorted({(min(pair), max(pair)) for pair in pairs})
        self._mates: dict[int, list[int]] = {s: [] for s in range(self._nodes)}
        for s, t in self._pairs:
            self._mates[s].append(t)
            self._mates[t].append(s)
        self._sides = {cut.side: k for k, cut in enumerate(forms.cuts)}
        blocks = int(forms.block.max(initial=0)) + 1
        self._blocks = [tuple(np.flatnonzero(forms.block == A).tolist()) for A in range(blocks)]

    @property
    def columns(self) -> int:
        return self._nodes * self._slots.width + len(self._pairs) * (len(self._sides) + len(self._blocks) ** 2)

    def rows(self) -> Iterator[Row]:
        yield from self._places()
        yield from self._alike()
        for side in self._sides:
            if self._size(side) > 1:
                yield from self._same(side)
        if self._forms.cells:
            yield from self._both()
        yield from self._links()

    def told(self, order: Integers) -> Terms:
        """The values of the binaries in `order`."""
        return {_on(s, int(a)): 1.0 for s, a in enumerate(order)}

    def _size(self, side: tuple[int, ...]) -> int:
        return int(self._count[list(side)].sum())

    def _places(self) -> Iterator[Row]:
        for s in range(self._nodes):
            yield Row(f"place_{s}", _in(s, tuple(range(self._slots.width))), 1.0, "=")
        for a, count in enumerate(self._count.tolist()):
            yield Row(f"room_{a}", {_on(s, a): 1.0 for s in range(self._nodes)}, count, "=")

    def _alike(self) -> Iterator[Row]:
        for k, sets in enumerate(alike_sets(self._slots)):
            for slot, side, before in first_come_first(sets, self._nodes):
                earlier = [_in(t, before, -1.0) for t in range(slot)]
                yield Row(f"alike_{k}_{slot}_{side[0]}", _plus(_in(slot, side), *earlier))

    def _same(self, side: tuple[int, ...]) -> Iterator[Row]:
        size = self._size(side)
        for s, t in self._pairs:
            for one in (s, t):
                yield Row(f"same_{s}_{t}_{one}_{side}", {self._together(s, t, side): 1.0, **_in(one, side, -1.0)})
        for s, mates in self._mates.items():
            if len(mates) > size - 1:
                near = {self._together(s, t, side): 1.0 for t in mates}
                yield Row(f"same_{s}_{side}", {**near, **_in(s, side, 1.0 - size)})

    def _together(self, s: int, t: int, side: tuple[int, ...]) -> str:
        return f"both_{min(s, t)}_{max(s, t)}_cut{self._sides[side]}"

    def _name(self, s: int, t: int, a: int, b: int) -> str:
        return f"both_{s}_{t}_{a}_{b}" if s < t else f"both_{t}_{s}_{b}_{a}"

    def _both(self) -> Iterator[Row]:
        blocks = range(len(self._blocks))
        for s, t in self._pairs:
            for one, other in ((s, t), (t, s)):
                for a in blocks:
                    terms = {self._name(one, other, a, b): 1.0 for b in blocks}
                    yield Row(f"from_{one}_{other}_{a}", {**terms, **_in(one, self._blocks[a], -1.0)}, 0.0, "=")
        for s, mates in self._mates.items():
            for a in blocks:
                for b in blocks:
                    room = self._size(self._blocks[b]) - (a == b)
                    if len(mates) > room:
                        near = {self._name(s, t, a, b): 1.0 for t in mates}
                        yield Row(f"near_{s}_{a}_{b}", {**near, **_in(s, self._blocks[a], -float(room))})

    def _flows(self) -> list[tuple[int, int, int, float]]:
        slots = self._slots
        parts = (slots.source.tolist(), slots.target.tolist(), slots.shape.tolist(), slots.bytes.tolist())
        return list(zip(*parts, strict=True))

    def _carried(self) -> Iterator[tuple[int, Terms]]:
        """What each link carries, in bytes."""
        flows = self._flows()
        for cut in self._forms.cuts:
            parts: list[Terms] = []
            for s, t, shape, sent in flows:
                if amount := sent * float(cut.share[shape]):
                    parts.append(_in(s if cut.leaving else t, cut.side, amount))
                    if self._size(cut.side) > 1:
                        parts.append({self._together(s, t, cut.side): -amount})
            yield cut.link, _plus(*parts)
        for link, table in self._forms.cells.items():
            yield (
                link,
                _plus(
                    *(
                        {self._name(s, t, int(a), int(b)): sent * float(table[shape, a, b])}
                        for s, t, shape, sent in flows
                        for a, b in np.argwhere(table[shape] > 0)
                    )
                ),
            )

    def _links(self) -> Iterator[Row]:
        """The load of every link; of links with the same terms one."""
        met = set()
        speed = self._slots.bandwidth * self._scale_s
        carried = dict(self._carried())
        for link, terms in self._with_detours(carried).items():
            row = {name: value / float(speed[link]) for name, value in terms.items()}
            key = tuple(sorted((name, round(value, 12)) for name, value in row.items()))
            if key not in met:
                met.add(key)
                yield Row(f"link_{link}", {**row, "tau": -1.0})
        for link in self._passing(carried):
            unit = 1 / self._unit
            direct = {name: -value * unit for name, value in carried[link].items()}
            yield Row(f"round_{link}", {f"round_{link}": 1.0, **direct})

    @property
    def _unit(self) -> float:
        """Bytes of one of what takes detours."""
        return float(self._slots.bandwidth.max()) * self._scale_s

    def _passing(self, carried: Mapping[int, Terms]) -> list[int]:
        """The links that may pass on what they would carry."""
        around = self._slots.detours
        return [] if around is None else [link for link in around.links.tolist() if carried.get(link)]

    def _with_detours(self, carried: Mapping[int, Terms]) -> dict[int, Terms]:
        """What each link carries where others pass on to it, in bytes; as it is where none does."""
        around, found = self._slots.detours, dict(carried)
        if around is None:
            return found
        links, tail, head = (part.tolist() for part in (around.links, around.edges.tail, around.edges.head))
        ends, passing = {link: (a, b) for link, a, b in zip(links, tail, head, strict=True)}, self._passing(carried)
        each = self._unit / (around.edges.groups - 2)
        for link, (a, b) in ends.items():
            over = [
                {f"round_{other}": each * ((ends[other][0] == a) + (ends[other][1] == b))}
                for other in passing
                if ends[other][0] == a or ends[other][1] == b
            ]
            own = {f"round_{link}": -self._unit - 2 * each} if link in passing else {}
            found[link] = _plus(carried.get(link, {}), *over, own)
        return found
