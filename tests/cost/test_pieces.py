"""Communication inside pieces: rows of experts, keys and values, heads of a mixer."""

import pytest
from msgspec import structs

from moeplan.cost import communication as network
from moeplan.cost.pieces import alike, context_groups, price
from moeplan.cost.pricing import Pricing, loads
from moeplan.draft import dealt
from moeplan.layout import Colocated
from moeplan.layouts import stages
from moeplan.resources import mixer
from moeplan.spec.case import Case
from moeplan.spec.execution import Execution
from moeplan.spec.model import STATE
from moeplan.spec.shipped import load_model
from moeplan.spec.workload import Workload


@pytest.fixture
def priced(make_case, machine_of):
    """priced(layout, kind, window, hidden): the piece forward, its pricing and its load."""

    def made(layout, kind, window=0, hidden=()):
        case = Case(
            model=load_model("nemotron-3-super"),
            cluster=make_case(16).cluster,
            workload=Workload(seq_len=8192, global_batch=64),
            execution=Execution(hidden=hidden),
        )
        graph = stages(case, layout)
        pricing = Pricing(case, graph, machine_of(case))
        what = next(w for w in alike(case, graph) if w.kind == kind and w.window == window)
        load = loads(case, graph, dealt(case, layout, graph), 0)[0]
        return price(pricing, what, load, "F"), pricing, load

    return made


def test_a_mixers_ranks_exchange_heads(priced):
    """Two all-to-alls, whether or not context is hidden, since no attention runs beside them."""
    layout = Colocated(cp=4, dp=4, ep=8)
    found, pricing, load = priced(layout, "attention", STATE)
    inside = mixer.widths(pricing.case.model)
    sizes = (inside.convolved + inside.output + inside.steps, inside.output)
    groups = context_groups(pricing.graph, 0)
    each = [network.all_to_all(*pricing.machine, groups, 2 * load.tokens * width).seconds for width in sizes]
    assert found.context == pytest.approx(sum(each))
    assert priced(layout, "attention", STATE, ("context",))[0].context == found.context


def test_attention_hides_its_keys_where_the_software_can(priced):
    layout = Colocated(cp=4, dp=4, ep=8)
    assert priced(layout, "attention", 0, ("context",))[0].context < priced(layout, "attention")[0].context


def test_rows_of_latent_experts_are_gathered_at_their_own_width(priced):
    """1,024 of 4,096: what tensor-parallel experts gather and scatter is a quarter, but for its start."""
    found, pricing, load = priced(Colocated(tp=2, dp=8, ep=4, etp=2), "experts")
    wide = structs.replace(pricing.case, model=structs.replace(pricing.case.model, expert_latent=0))
    what = next(w for w in alike(wide, pricing.graph) if w.kind == "experts")
    assert found.tensor < 0.4 * price(pricing._replace(case=wide), what, load, "F").tensor
