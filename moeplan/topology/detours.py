"""Adaptive routing between groups: what is too much for the links between two of them goes over all others alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.topology.inside import Floats, Integers

HALVINGS = 24
"""Of the interval in which the least busy edge is sought: 6e-8 of it is left."""
ROUNDING = 1e-9
AT_ONCE = 4 * 10**6
"""Numbers of the equations that are solved at the same time."""


class Detours(NamedTuple):
    """The edges between groups, every two of which are joined: four arrays [edges between groups]."""

    edge: Integers
    """In the whole graph."""
    tail: Integers
    """The group at each end, counted from 0."""
    head: Integers
    groups: int

    def spread(self, loads: Floats, bandwidth: Floats) -> Floats:
        """`loads` [kinds of loads, edges of the graph] with the detours that make the busiest edge least busy.

        Of the first kind, each edge may pass on any part of what it would carry, in equal parts over all other groups,
        two edges each; of all such parts the least that make the busiest edge least busy. The other kinds take the same
        way. Left out: detours inside groups, what routers do not know, the latency of one more hop.
        """
        if self.groups < 3:
            return loads
        (kept,) = self.kept(loads[:1, self.edge], bandwidth[self.edge])
        spread = loads.copy()
        spread[:, self.edge] = self.carried(loads[:, self.edge], kept)
        return spread

    def kept(self, direct: Floats, bandwidth: Floats) -> Floats:
        """The part of each of `direct` [cases, edges] that stays where it is, case by case [cases, edges]."""
        used = np.unique(np.concatenate([ends[direct.any(axis=0)] for ends in (self.tail, self.head)]))
        if not used.size:
            return np.ones_like(direct)
        capacity = self._matrix(bandwidth[None], np.inf)[0]
        demand = self._matrix(direct, 0.0)[:, used][:, :, used]
        idle = np.setdiff1d(np.arange(self.groups), used)
        inner = capacity[np.ix_(used, used)]
        borders = [
            side.min(axis=1, initial=np.inf) for side in (capacity[np.ix_(used, idle)], capacity[np.ix_(idle, used)].T)
        ]
        total = [np.where(np.isfinite(side), side, 0.0).sum(axis=1)[used] for side in (capacity, capacity.T)]
        step = max(1, AT_ONCE // (2 * used.size) ** 2)
        passed = np.concatenate(
            [
                _passed(demand[i : i + step], inner, borders, total, self.groups)
                for i in range(0, len(demand), step)
            ]
        )  # fmt: skip
        whole = np.zeros((len(direct), self.groups, self.groups))
        whole[:, used[:, None], used] = passed
        gone = whole[:, self.tail, self.head]
        return np.asarray(1 - np.divide(gone, direct, out=np.zeros_like(gone), where=direct > 0), dtype=np.float64)

    def carried(self, load: Floats, kept: Floats) -> Floats:
        """What each edge carries where the part `kept` of its `load` stays on it [cases, edges]."""
        passed = load * (1 - kept)
        whole = self._matrix(passed, 0.0)
        leaving, coming = whole.sum(axis=2)[:, self.tail], whole.sum(axis=1)[:, self.head]
        return np.asarray(load * kept + (leaving + coming - 2 * passed) / (self.groups - 2), dtype=np.float64)

    def _matrix(self, values: Floats, other: float) -> Floats:
        """`values` [cases, edges] by the groups at both ends, `other` elsewhere [cases, groups, groups]."""
        whole = np.full((len(values), self.groups, self.groups), other)
        whole[:, self.tail, self.head] = values
        return whole


def _passed(demand: Floats, capacity: Floats, borders: list[Floats], total: list[Floats], groups: int) -> Floats:
    """The part of `demand` [cases, used, used] that takes detours.

    With t the seconds of the busiest edge, x_i = sum_j passed_ij / (groups - 2), y_j = sum_i passed_ij / (groups - 2),
    an edge carries demand - passed + x_i + y_j - 2 passed / (groups - 2) <= t capacity, so the least passed is
    max(0, demand + x_i + y_j - t capacity) (groups - 2) / groups. The least t is found by halving an interval, for each
    the least x and y by Newton's method from below: the edges that pass on only become more. `borders` are the least
    capacities between used and other groups, `total` all that leave and reach a used group.
    """
    high = (demand / capacity).max(axis=(1, 2))
    low = np.maximum(*((demand.sum(axis=2 - k) / total[k]).max(axis=1) for k in (0, 1)))
    low, found = np.minimum(low, high), np.zeros((len(demand), 2, len(capacity)))
    for _ in range(HALVINGS):
        open_ = np.flatnonzero(high - low > ROUNDING * high)
        if not open_.size:
            break
        middle = (low[open_] + high[open_]) / 2
        at, fits = _least(demand[open_], capacity, borders, middle, found[open_], groups)
        high[open_[fits]], low[open_[~fits]] = middle[fits], middle[~fits]
        found[open_[fits]] = at[fits]
    return np.maximum(0.0, _excess(demand, capacity, high, found)) * (groups - 2) / groups


def _excess(demand: Floats, capacity: Floats, seconds: Floats, at: Floats) -> Floats:
    """What is too much for each edge, before it passes anything on; without a bound from a group to itself."""
    free = np.isfinite(capacity)
    most = seconds[:, None, None] * np.where(free, capacity, 0.0)
    return np.where(free, demand - most + at[:, 0, :, None] + at[:, 1, None, :], -np.inf)


def _least(
    demand: Floats, capacity: Floats, borders: list[Floats], seconds: Floats, start: Floats, groups: int
) -> tuple[Floats, NDArray[np.bool_]]:
    """The least x and y with which no edge is busier than `seconds` [cases, 2, used]; whether there are any [cases]."""
    at, fits = start.copy(), np.ones(len(demand), dtype=np.bool_)
    going, passing = np.arange(len(demand)), np.zeros(demand.shape, dtype=np.bool_)
    free = np.where(np.isfinite(capacity), capacity, 0.0)
    while going.size:
        now = _excess(demand[going], capacity, seconds[going], at[going]) > 0
        more = (now & ~passing[going]).any(axis=(1, 2))
        going, now = going[more], now[more]
        passing[going] |= now
        solved = _solved(passing[going], demand[going] - seconds[going, None, None] * free, groups)
        rounding = ROUNDING * np.abs(solved).max(axis=(1, 2), initial=0.0)
        right = (solved >= at[going] - rounding[:, None, None]).all(axis=(1, 2))
        at[going] = np.maximum(at[going], solved)
        right &= _room(demand[going], capacity, borders, seconds[going], at[going], groups)
        fits[going[~right]] = False
        going = going[right]
    return at, fits


def _room(
    demand: Floats, capacity: Floats, borders: list[Floats], seconds: Floats, at: Floats, groups: int
) -> NDArray[np.bool_]:
    """Whether detours leave room on every edge, if all of its own demand takes others [cases]."""
    x, y = at[:, 0], at[:, 1]
    room = seconds[:, None, None] * capacity + 2 / (groups - 2) * demand
    fits = (x[:, :, None] + y[:, None, :] <= room * (1 + ROUNDING)).all(axis=(1, 2))
    for side, most in zip((x, y), borders, strict=True):
        fits &= (side <= seconds[:, None] * most * (1 + ROUNDING)).all(axis=1)
    return np.asarray(fits, dtype=np.bool_)


def _solved(passing: NDArray[np.bool_], excess: Floats, groups: int) -> Floats:
    """x and y where just the edges of `passing` pass on what is too much: groups x_i = sum_j (excess + x_i + y_j).

    x is put into the equations of y. `groups` are a billionth more, so that the equations always have one solution.
    """
    kept, whole = passing.astype(np.float64), groups * (1 + ROUNDING)
    wanted = np.where(passing, excess, 0.0)
    rows, columns = whole - kept.sum(axis=2), whole - kept.sum(axis=1)
    part = kept / rows[:, :, None]
    matrix = -kept.transpose(0, 2, 1) @ part
    own = np.arange(matrix.shape[1])
    matrix[:, own, own] += columns
    right = wanted.sum(axis=1) + (part * wanted.sum(axis=2)[:, :, None]).sum(axis=1)
    y = np.linalg.solve(matrix, right[..., None])[..., 0]
    x = (wanted.sum(axis=2) + (kept @ y[..., None])[..., 0]) / rows
    return np.stack([x, y], axis=1)
