"""Six factors per accelerator: found again where they are known, pooled where runs are few."""

import numpy as np
import pytest

from moeplan.analytic.factors import NAMES, on_classes
from moeplan.analytic.form import CLASSES, Form
from moeplan.analytic.step import step
from moeplan.calibrate.constants import FACTORS, Observation, fit, predicted

TRUE = {"a": [0.8, 0.9, 0.85, 0.55, 0.75, 1.6], "b": [0.9, 1.0, 0.95, 0.65, 0.85, 1.4]}


def some_form(draw):
    """A step of one position whose classes weigh differently each time."""
    pieces = draw.uniform(0.1, 1.0, (3, len(CLASSES))) * draw.lognormal(0.0, 1.0, len(CLASSES)) * 1e-3
    zero, none = np.zeros(1), np.array(0.0)
    return Form(
        pieces=pieces,
        forward=np.array([[4.0, 0.0, 0.0]]),
        backward=np.array([[0.0, 4.0, 1.0]]),
        positions=np.ones(1),
        microbatches=np.array(200.0),
        bubble=np.zeros(3),
        path=np.zeros(3),
        turns=np.zeros(2),
        directions=np.ones(()),
        hop_s=np.zeros(2),
        hops=np.zeros(2),
        scatter_s=zero,
        gather_s=zero,
        regather_s=zero,
        rescatter_s=zero,
        optimizer_s=none,
        ahead=zero,
        gpus=np.array(8.0),
        hides_gradients=none,
        hides_parameters=none,
        sources=("measured",) * len(CLASSES),
        travel_source="measured",
    )


@pytest.fixture(scope="module")
def seen():
    draw = np.random.default_rng(1)
    forms = [(name, some_form(draw)) for name in TRUE for _ in range(60)]
    return [
        Observation(one, step(one, on_classes(np.array(TRUE[name]))).step_s, name, f"model {i % 12}")
        for i, (name, one) in enumerate(forms)
    ]


def test_known_factors_are_found_again(seen):
    found = fit(seen)
    for name, factors in TRUE.items():
        assert found.of(name) == pytest.approx(np.array(factors), rel=0.15)
    errors = predicted(seen, found) / [one.measured_s for one in seen] - 1
    assert np.abs(errors).max() < 0.08


def test_an_accelerator_without_runs_takes_the_mean(seen):
    found = fit(seen)
    assert found.of("c") == pytest.approx(np.exp(found.mean))
    between = np.sort([found.of("a"), found.of("b")], axis=0)
    assert (found.of("c") >= 0.85 * between[0]).all()
    assert (found.of("c") <= 1.15 * between[1]).all()


def test_one_wrong_row_does_not_decide(seen):
    """A row that is printed ten times too slow moves no factor by more than a tenth."""
    wrong = [*seen[:-1], seen[-1]._replace(measured_s=10 * seen[-1].measured_s)]
    assert fit(wrong).of("b") == pytest.approx(fit(seen).of("b"), rel=0.1)


def test_without_rows_the_plausible_values_stay():
    assert fit([]).of("any") == pytest.approx(np.array([factor.plausible for factor in FACTORS]))


def test_every_constant_has_a_plausible_value_and_acts_on_one_class():
    assert tuple(factor.name for factor in FACTORS) == NAMES
    times = on_classes(np.full(len(NAMES), 2.0))
    assert dict(zip(CLASSES, times, strict=True)) == {
        **dict.fromkeys(("gemm", "narrow_gemm", "attention", "stream", "expert"), 0.5),
        **dict.fromkeys(("cast", "tensor", "context"), 1.0),
        "host": 2.0,
    }
