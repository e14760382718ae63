"""A forecast adds up, names its sources, and is less sure where less is known."""

from math import log

import pytest
from msgspec import structs

from moeplan.analytic.forecast import forecast, widened
from moeplan.analytic.form import form
from moeplan.analytic.spread import SPREAD
from moeplan.analytic.step import step
from moeplan.cost.pricing import Pricing
from moeplan.draft import dealt
from moeplan.layout import Colocated
from moeplan.layouts import stages
from moeplan.spec.cluster import first_gpus
from moeplan.spec.shipped import load_cluster


@pytest.fixture
def one(make_case, machine_of):
    case = make_case(16, global_batch=64, seq_len=4096)
    graph = stages(case, Colocated(pp=2, tp=2, dp=4, ep=4))
    return form(Pricing(case, graph, machine_of(case)), dealt(case, Colocated(), graph), "1f1b")


def test_the_parts_add_up_and_each_has_a_source(one):
    told = forecast(one)
    assert sum(part.seconds for part in told.parts) == pytest.approx(told.step_s) == step(one).step_s
    assert {part.source for part in told.parts} <= set(SPREAD)
    assert {"gemm", "expert", "tensor", "bubble", "optimizer"} <= {part.name for part in told.parts}


def test_the_interval_is_wider_where_seconds_are_assumed(one):
    def width(f):
        return log(f.high_s / f.low_s)

    measured, assumed = (
        forecast(one._replace(sources=(word,) * len(one.sources), travel_source=word))
        for word in ("measured", "assumed")
    )
    assert width(measured) < width(assumed)
    assert measured.low_s < measured.step_s < measured.high_s


def test_what_is_not_known_widens_the_interval(one):
    told, longer = forecast(one), forecast(one._replace(microbatches=8 * one.microbatches))
    both = widened(told, [longer])
    assert (both.step_s, both.low_s, both.high_s) == (told.step_s, told.low_s, longer.step_s)


def test_every_class_has_a_source_of_its_own(make_case, machine_of):
    """A100: products were measured, attention is assumed; the one does not make the other a guess."""
    case = structs.replace(make_case(8), cluster=first_gpus(load_cluster("dgx-a100"), 8))
    graph = stages(case, Colocated(dp=8, ep=8))
    one = form(Pricing(case, graph, machine_of(case)), dealt(case, Colocated(), graph), "1f1b")
    sources = {part.name: part.source for part in forecast(one).parts}
    assert (sources["gemm"], sources["attention"], sources["stream"]) == ("measured", "assumed", "roofline")
