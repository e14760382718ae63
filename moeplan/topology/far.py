"""Transfers between many ranks at the same time, taken together where they leave and reach the same switches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeplan.topology.inside import Floats, Integers


class Ends(NamedTuple):
    """Ranks that send, or that receive, and what each of them does in all; four arrays [ranks]."""

    ranks: Integers
    bundle: Integers
    """Ascending from 0; the ranks of one are of one group and on one switch."""
    share: Floats
    messages: Floats

    @property
    def first(self) -> Integers:
        """Where each bundle begins [bundles]."""
        return np.flatnonzero(np.diff(self.bundle, prepend=-1))


class Far(NamedTuple):
    """Transfers whose ends share no switch, by pairs of bundles; four arrays [pairs]."""

    sources: Ends
    targets: Ends
    source: Integers
    """The bundle of `sources` that sends."""
    target: Integers
    """The bundle of `targets` that receives."""
    share: Floats
    """Bytes of all its transfers, as a part of the size that the pattern is priced for."""
    messages: Floats


def units(node: Integers, leaf: Integers) -> Integers:
    """A number for each rank [ranks], the same where `node` or `leaf`, its switch, are, directly or over others."""
    _, node = np.unique(node, return_inverse=True)
    _, leaf = np.unique(leaf, return_inverse=True)
    found = leaf.astype(np.intp)
    while True:
        least = found
        for place in (node, leaf):
            lowest = np.full(int(place.max(initial=-1)) + 1, found.size)
            np.minimum.at(lowest, place, least)
            least = lowest[place]
        if (least == found).all():
            return found
        found = least
