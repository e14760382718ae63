"""How sure a simulated step is, and that plans say so."""

from math import log

import pytest
from msgspec import structs

from moeplan.analytic.spread import LESS_SURE, SHARED, SIGMAS, SPREAD, UNSURE, Second, interval, sigma, spread_of_plan
from moeplan.cost.pricing import Machine
from moeplan.estimator import estimate
from moeplan.layout import Colocated, Disaggregated
from moeplan.planner import optimize
from moeplan.spec.shipped import load_calibration
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric


def test_sources_err_apart_and_all_of_one_source_alike():
    one = [Second("gemm", 3.0, "measured"), Second("attention", 1.0, "measured"), Second("stream", 4.0, "roofline")]
    expected = (SHARED**2 + (0.5 * SPREAD["measured"]) ** 2 + (0.5 * SPREAD["roofline"]) ** 2) ** 0.5
    assert sigma(one) == pytest.approx(expected)
    for name in LESS_SURE:
        assert sigma([Second(name, 2.0, "measured")]) == pytest.approx((SHARED**2 + UNSURE**2) ** 0.5)
    assert sigma([]) == SHARED
    low, high = interval(10.0, 0.2)
    assert log(10 / low) == pytest.approx(log(high / 10)) == pytest.approx(SIGMAS * 0.2)


@pytest.mark.parametrize("layout", [Colocated(pp=2, dp=4, ep=4), Disaggregated(attention_gpus=4, ffn_gpus=4)])
def test_a_plan_is_the_less_sure_the_more_its_transfers_show(layout, make_case):
    case = make_case(8, global_batch=64, seq_len=4096)
    machine = Machine(Fabric(build(case.cluster)), load_calibration("h800"))
    plan = estimate(case, machine.calibration, layout).plan
    told = plan.predictions
    assert told.spread == spread_of_plan(plan, machine)
    shown = [
        structs.replace(plan, predictions=structs.replace(told, exposed_communication_s=share * told.step_s))
        for share in (0.0, 0.3, 0.6)
    ]
    spreads = [spread_of_plan(one, machine) for one in shown]
    assert SHARED < spreads[0] < (SHARED**2 + UNSURE**2) ** 0.5
    assert spreads == sorted(spreads)


def test_a_search_and_an_estimate_of_its_winner_tell_the_same_interval(make_case):
    case, calibration = make_case(8, global_batch=32, seq_len=64), load_calibration("h800")
    ranking = optimize(case, calibration, families="colocated", fixed={"pp": 2, "dp": 4})
    plan, row = ranking.best, ranking.to_dict()["ranking"][0]
    assert row["low_s"] < row["step_s"] < row["high_s"]
    assert (row["low_s"], row["high_s"]) == interval(plan.predictions.step_s, plan.predictions.spread)
    again = estimate(case, calibration, plan.layout, schedule=plan.schedule.name, recompute=plan.recompute)
    facts = again.to_dict()
    assert (facts["low_s"], facts["high_s"]) == pytest.approx((row["low_s"], row["high_s"]))
