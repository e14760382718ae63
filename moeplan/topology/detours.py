"""Adaptive routing between groups: what is too much for the links between two of them goes over all others alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeplan.topology.inside import Floats, Integers

STEPS = 33
"""Thresholds that are tried at the same time; then as many between the best one's neighbours."""
ROUNDS = 4


class Detours(NamedTuple):
    """The edges between groups, every two of which are joined: four arrays [edges between groups]."""

    edge: Integers
    """In the whole graph."""
    tail: Integers
    """The group at each end, counted from 0."""
    head: Integers
    groups: int

    def spread(self, loads: Floats, bandwidth: Floats) -> Floats:
        """`loads` [kinds of loads, edges of the graph] with detours that make the busiest edge least busy.

        Of the first kind, up to a threshold times its bandwidth goes over the edge itself, and what is more in equal
        parts over all other groups, two edges each; the threshold is the best of those tried. The other kinds take the
        same way. Left out: detours inside groups, what routers do not know, the latency of one more hop.
        """
        if self.groups < 3:
            return loads
        direct = loads[0, self.edge]
        most = float((direct / bandwidth[self.edge]).max(initial=0.0))
        low, high = 0.0, most
        for _ in range(ROUNDS):
            tried = np.linspace(low, high, STEPS)
            busiest = [self._busiest(direct, bandwidth[self.edge], threshold) for threshold in tried]
            best = int(np.argmin(busiest[::-1])) if most else 0  # of equals the one with fewest detours
            best = STEPS - 1 - best
            low, high = tried[max(0, best - 1)], tried[min(STEPS - 1, best + 1)]
        kept = _kept(direct, tried[best] * bandwidth[self.edge])
        spread = loads.copy()
        spread[:, self.edge] = [self._carried(kind[self.edge], kept) for kind in loads]
        return spread

    def _busiest(self, direct: Floats, bandwidth: Floats, threshold: float) -> float:
        kept = _kept(direct, threshold * bandwidth)
        return float((self._carried(direct, kept) / bandwidth).max())

    def _carried(self, load: Floats, kept: Floats) -> Floats:
        """What each edge carries where the share `kept` of its `load` stays on it."""
        excess = load * (1 - kept)
        leaving = np.bincount(self.tail, excess, minlength=self.groups)
        coming = np.bincount(self.head, excess, minlength=self.groups)
        detoured = (leaving[self.tail] + coming[self.head] - 2 * excess) / (self.groups - 2)
        return np.asarray(load * kept + detoured, dtype=np.float64)


def _kept(direct: Floats, most: Floats) -> Floats:
    """The share of each `direct` load that stays where `most` may."""
    return np.divide(most, direct, out=np.ones_like(direct), where=direct > most)
