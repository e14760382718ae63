"""The fluid model against closed forms."""

import pytest
from fluid import Flow, fair, finish_s


def test_the_fullest_link_fixes_its_flows_first():
    """Bertsekas and Gallager, Data Networks, section 6.5.2: flows over one, both, and the wider of two links."""
    rates = fair({0: ["a"], 1: ["a", "b"], 2: ["b"], 3: []}, {"a": 1.0, "b": 4.0})
    assert rates == pytest.approx({0: 0.5, 1: 0.5, 2: 3.5, 3: float("inf")})


def test_two_that_share_a_link_take_turns_to_be_alone():
    flows = [Flow(0, 2, 100.0, ("up",)), Flow(1, 3, 300.0, ("up",))]
    assert finish_s(flows, {"up": 100.0}, dict.fromkeys(range(4), 0.0)) == pytest.approx({0: 2, 2: 2, 1: 4, 3: 4})


def test_two_to_three_over_a_shared_uplink_take_all_bytes_over_its_rate():
    flows = [Flow(s, 2 + r, 50.0, (f"out{s}", "up", f"in{r}")) for s in range(2) for r in range(3)]
    rates = {"up": 100.0} | {f"out{s}": 100.0 for s in range(2)} | {f"in{r}": 100.0 for r in range(3)}
    assert finish_s(flows, rates, dict.fromkeys(range(5), 0.0)) == pytest.approx(dict.fromkeys(range(5), 3.0))


def test_a_window_waits_for_the_one_before_and_a_message_for_both_ends():
    flows = [Flow(0, 1, 100.0, ("x",)), Flow(0, 2, 100.0, ("x",), window=1)]
    assert finish_s(flows, {"x": 100.0}, {0: 0.0, 1: 0.5, 2: 0.0}) == pytest.approx({1: 1.5, 0: 2.5, 2: 2.5})


def test_a_delay_counts_before_and_after():
    flows = [Flow(0, 1, 100.0, ("x",), lag_s=0.25)]
    assert finish_s(flows, {"x": 100.0}, {0: 0.0, 1: 0.0, 2: 0.125}) == pytest.approx({0: 1.5, 1: 1.5, 2: 0.125})
