"""Detours between groups: no other split makes the busiest link less busy."""

import cvxpy as cp
import numpy as np
import pytest

from moeplan.topology.detours import Detours


def test_detours_leave_the_busiest_link_no_busier_than_any_split_would():
    rng = np.random.default_rng(3)
    ends = np.nonzero(~np.eye(5, dtype=bool))
    detours = Detours(np.arange(20), *ends, 5)
    for _ in range(30):
        direct = rng.integers(0, 4, 20) * (rng.random(20) < 0.5)
        found = detours.spread(direct[None].astype(float), np.ones(20))[0]
        assert found.min() >= 0
        for _ in range(200):
            kept = np.clip(detours.kept(direct[None].astype(float), np.ones(20))[0] + rng.normal(0, 0.1, 20), 0, 1)
            other = detours.carried(direct[None].astype(float), kept)[0]
            assert found.max() <= other.max() * (1 + 1e-6)


def test_what_one_pair_of_groups_sends_is_spread_over_all_links_out_of_one():
    """d / (groups - 1), and for m of G groups that send all to all (m - 1) d / (G + 1 - m)."""
    ends = np.nonzero(~np.eye(6, dtype=bool))
    detours = Detours(np.arange(30), *ends, 6)
    for groups in (2, 3):
        direct = ((ends[0] < groups) & (ends[1] < groups)).astype(float)[None]
        spread = detours.spread(direct, np.ones(30))[0]
        assert spread.max() == pytest.approx((groups - 1) / (7 - groups))


@pytest.mark.parametrize("groups", [3, 4, 6])
def test_the_busiest_link_is_as_busy_as_in_the_linear_program_over_all_splits(groups):
    """Links of unequal bandwidth, and groups that send and receive nothing."""
    rng = np.random.default_rng(groups)
    tail, head = np.nonzero(~np.eye(groups, dtype=bool))
    detours = Detours(np.arange(tail.size), tail, head, groups)
    same = (tail[:, None] == tail).astype(float) + (head[:, None] == head) - 2 * np.eye(tail.size)
    for share in (0.1, 0.4, 1.0, 1.0):
        direct = rng.uniform(0, 5, tail.size) * (rng.random(tail.size) < share)
        bandwidth = rng.choice([0.5, 1.0, 2.0, 5.0], tail.size)
        gone, seconds = cp.Variable(tail.size), cp.Variable()
        carried = direct - gone + same @ gone / (groups - 2)
        bounds = [gone >= 0, gone <= direct, carried <= seconds * bandwidth]
        least = cp.Problem(cp.Minimize(seconds), bounds).solve(solver=cp.HIGHS)
        found = detours.spread(direct[None], bandwidth)[0]
        assert (found / bandwidth).max() == pytest.approx(least, rel=1e-6, abs=1e-9)
