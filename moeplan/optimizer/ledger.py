"""What a search left out, and why: classes of candidates by reason, and the misses that a user may want to mend."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from moeplan.optimizer.candidate import Candidate, tell
from moeplan.spec.model import ModelSpec

LOOKS = 30
"""Misses that are measured before the nearest of them is taken."""


class Miss(NamedTuple):
    """A candidate that does not fit."""

    candidate: Candidate
    short_bytes: float
    """By how many bytes, at least, its fullest rank exceeds the usable HBM."""
    bound_s: float
    """No schedule of its layout is faster; infinite where that was not asked."""


class Pruned(NamedTuple):
    """A class of layouts that was not simulated, with one of them."""

    reason: str
    layouts: int
    witness: str


class Ledger:
    """Counts what was pruned, by reason, with the first of each as a witness."""

    def __init__(self, model: ModelSpec) -> None:
        self.model = model
        self.reasons: dict[str, tuple[int, str]] = {}
        self.misses: list[Miss] = []

    def add(self, reason: str, candidate: Candidate, short_bytes: float = 0.0, bound_s: float = float("inf")) -> None:
        """One more candidate pruned for `reason`; `short_bytes` where it does not fit."""
        if short_bytes > 0:
            self.misses.append(Miss(candidate, short_bytes, bound_s))
        count, witness = self.reasons.get(reason, (0, ""))
        witness = witness or tell(candidate, self.model)
        self.reasons[reason] = (count + 1, witness)

    def nearest(self, measured: Callable[[Miss], Miss | None], faster_than_s: float | None = None) -> Miss | None:
        """Of the candidates that do not fit, and may be faster than that, the one that misses by least.

        What a miss is short by is a lower bound until it is `measured`: the least bound is measured next, until the
        least is a measured one, or after LOOKS the least of those that were. A miss that measures as None is dropped.
        """
        able = [miss for miss in self.misses if faster_than_s is None or miss.bound_s < faster_than_s]
        queue = [(miss.short_bytes, number, miss, False) for number, miss in enumerate(able)]
        heapify(queue)
        seen: list[Miss] = []
        for _ in range(LOOKS):
            if not queue or queue[0][-1]:
                break
            _, number, miss, _ = heappop(queue)
            if (looked := measured(miss)) is not None:
                seen.append(looked)
                heappush(queue, (looked.short_bytes, number, looked, True))
        return min(seen, key=lambda miss: miss.short_bytes, default=None)

    def entries(self) -> tuple[Pruned, ...]:
        """All reasons, most frequent first."""
        rows = [Pruned(reason, count, witness) for reason, (count, witness) in self.reasons.items()]
        return tuple(sorted(rows, key=lambda row: (-row.layouts, row.reason)))
