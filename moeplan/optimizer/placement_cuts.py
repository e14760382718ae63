"""What so many slots must send to all others, whichever they are: a bound on the links that carry it."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

from moeplan.optimizer.placement_forms import forms_of
from moeplan.optimizer.slots import Slots
from moeplan.topology.inside import Floats

MOST_SETS = 20_000
"""Sets of slots that are enumerated for a bound."""


def least_cut_s(slots: Slots) -> float:
    """A bound on the busiest link: of each cut the least that so many slots can send to the others or get from them."""
    nodes, least = slots.classes.size, 0.0
    traffic = np.zeros((nodes, nodes))
    np.add.at(traffic, (slots.source, slots.target), slots.bytes)
    count = np.bincount(slots.classes, minlength=slots.width)
    around = set() if slots.detours is None else set(slots.detours.links.tolist())
    for cut in forms_of(slots).cuts:
        if slots.shapes == 1 and cut.link not in around:
            size = int(count[list(cut.side)].sum())
            sent = traffic if cut.leaving else traffic.T
            least = max(least, _least_leaving(sent, size) * float(cut.share[0]) / float(slots.bandwidth[cut.link]))
    return least


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
