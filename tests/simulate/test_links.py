"""Max-min fair shares: by hand, and the property that defines them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.simulate.links import Demand, max_min


def flow(*links, shares=None, bandwidth=1.0):
    return Demand(0, 1, links, shares or (1.0,) * len(links), bandwidth)


@pytest.mark.parametrize(
    ("demands", "rates"),
    [
        ([], []),
        ([flow()], [1]),
        ([flow(0)], [1]),
        ([flow(0), flow(1)], [1, 1]),
        ([flow(0), flow(0)], [1 / 2, 1 / 2]),
        ([flow(0, 1), flow(0), flow(1)], [1 / 2, 1 / 2, 1 / 2]),
        ([flow(0, 1), flow(0), flow(1), flow(1)], [1 / 3, 2 / 3, 1 / 3, 1 / 3]),
        ([flow(0), flow(0, shares=(0.25,))], [0.8, 0.8]),
        ([flow(0, bandwidth=2.0), flow(0, shares=(0.5,))], [1 / 2, 1]),
        ([flow(0, bandwidth=4.0), flow(0, bandwidth=4.0), flow(0, shares=(0.25,))], [3 / 8, 3 / 8, 1]),
        ([flow(0), flow(0, shares=(1e-9,), bandwidth=1e9)], [1, 1e-9]),
        ([flow(0, 0, shares=(0.5, 0.5)), flow(0)], [1 / 2, 1 / 2]),
    ],
)
def test_by_hand(demands, rates):
    assert max_min(demands) == pytest.approx(rates)


FLOWS = st.lists(
    st.builds(
        lambda links, bandwidth, shares: Demand(0, 1, tuple(links), tuple(shares[: len(links)]), bandwidth),
        st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
        st.sampled_from([0.5, 1.0, 3.0, 1e6]),
        st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    ),
    max_size=7,
)


def load(demands, rates, link):
    pairs = zip(demands, rates, strict=True)
    return sum(rate * share for d, rate in pairs for at, share in zip(d.links, d.shares, strict=True) if at == link)


@given(FLOWS)
def test_no_link_is_overfull_and_who_gets_less_than_all_has_the_largest_share_of_a_full_link(demands):
    rates = max_min(demands)
    got = [rate * demand.bandwidth for rate, demand in zip(rates, demands, strict=True)]
    assert all(0 < rate <= 1 for rate in rates)
    assert all(load(demands, rates, link) <= 1 + 1e-9 for link in range(5))
    for number, demand in enumerate(demands):
        full = [link for link in demand.links if load(demands, rates, link) > 1 - 1e-9]
        largest = [max(got[n] for n, other in enumerate(demands) if link in other.links) for link in full]
        assert rates[number] == 1 or any(got[number] >= most * (1 - 1e-6) for most in largest)


@given(FLOWS)
def test_the_order_of_transfers_does_not_matter(demands):
    assert max_min(demands[::-1])[::-1] == pytest.approx(max_min(demands))
