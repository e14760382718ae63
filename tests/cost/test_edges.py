"""Rows on their way to experts: how many nodes a token reaches, and what a capacity factor sends."""

from itertools import combinations

import pytest
from msgspec import structs

from moeplan.cost.edges import edge_cost, nodes_reached, settled
from moeplan.cost.exchange import ALGORITHMS
from moeplan.cost.pricing import Pricing, loads
from moeplan.draft import dealt
from moeplan.layout import Colocated
from moeplan.layouts import stages
from moeplan.spec.execution import Execution


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_nodes_of_chosen_groups_are_those_of_every_choice(nodes):
    """DeepSeek-V3: 4 of 8 groups; all 70 choices, groups in order over the nodes."""
    each = 8 // nodes
    reached = [len({group // each for group in chosen}) for chosen in combinations(range(8), 4)]
    assert nodes_reached(8, 4, nodes) == pytest.approx(sum(reached) / len(reached))


def test_a_group_over_several_nodes_is_reached_on_all_of_them():
    assert nodes_reached(8, 4, 16) == 8
    assert nodes_reached(8, 4, 32) == 16


def test_padded_rows_travel_too(make_case, machine_of):
    case = make_case(16, global_batch=64, seq_len=4096)
    layout = Colocated(dp=16, ep=8)
    seconds = []
    for capacity in (0.0, 2.0):
        padded = structs.replace(case, execution=Execution(capacity=capacity))
        graph = stages(padded, layout)
        at = loads(padded, graph, dealt(padded, layout, graph), 0)
        edge = next(i for i, e in enumerate(graph.edges) if e.kind == "dispatch")
        seconds.append(edge_cost(Pricing(padded, graph, machine_of(padded)), edge, "F", at).seconds)
    assert seconds[1] > 1.3 * seconds[0]


@pytest.mark.parametrize("seq_len", [16, 32, 64])
def test_the_algorithm_that_is_named_costs_least_in_both_directions_together(seq_len, make_case, machine_of):
    """Rows in 8 bits are narrower than their gradients: what is fastest forward may not be on the whole."""
    case = make_case(64, global_batch=64, seq_len=seq_len, model="deepseek-v3")
    case = structs.replace(case, execution=Execution(rows="fp8"))
    layout, machine, seconds = Colocated(dp=64, ep=64), machine_of(case), {}
    for name in ("fastest", *ALGORITHMS):
        told = structs.replace(case, execution=structs.replace(case.execution, exchange=name))
        graph = stages(told, layout)
        at = loads(told, graph, dealt(told, layout, graph), 0)
        pricing = Pricing(told, graph, machine)
        pricing = pricing._replace(graph=settled(pricing, at, {}))
        edge = next(i for i, e in enumerate(graph.edges) if e.kind == "dispatch")
        seconds[name] = sum(edge_cost(pricing, edge, way, at).seconds for way in "FB")
    assert seconds["fastest"] == min(seconds.values())
