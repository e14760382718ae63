"""Modules that predict further tokens (MTP), whose seconds the head's position spends beside the head's own.

Each is a whole layer, one with experts and full attention where the model has one, the logits once more, and a product
that joins hidden state and next embedding, 2 hidden x hidden (DeepSeek-V3, arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moeplan.cost import Cost, compute
from moeplan.cost.edges import edge_in_step
from moeplan.cost.pieces import Alike, Priced, price, seconds
from moeplan.cost.pricing import Loads, Pricing
from moeplan.program import keeps
from moeplan.resources.kernels import ELEMENT_BYTES, backward, product
from moeplan.resources.work import Load

JOIN = Alike("further", False, 0, 0)
"""The product of one module."""


def further_pieces(pricing: Pricing, found: Iterable[Alike]) -> list[Alike]:
    """Kinds of the pieces of one module, without position, among those `found`; none where modules are not trained."""
    if not pricing.case.memory.mtp or not pricing.case.model.mtp_layers:
        return []
    kinds = list(dict.fromkeys(what._replace(position=0) for what in found))
    layers = sorted(
        (what for what in kinds if what.kind == "attention"), key=lambda what: (not what.moe, what.window != 0)
    )
    ffn = "experts" if layers[0].moe else "dense"
    rest = (what for what in kinds if what.kind == "head" or (what.kind == ffn and what.moe == layers[0].moe))
    return [JOIN, layers[0], *rest]


def joined(pricing: Pricing, load: Load) -> tuple[Priced, Priced]:
    """Seconds of the product of one module, forward and backward; the two norms before it are left out."""
    case, machine = pricing.case, pricing.machine
    dtype, hidden = case.workload.dtype, case.model.hidden
    work = [product(load.own, 2 * hidden, hidden, ELEMENT_BYTES[dtype])]
    priced = (
        compute.parts(w, case.cluster.gpu, machine.calibration, case.execution, dtype) for w in (work, backward(work))
    )
    one, other = (Priced(parts, 0.0, 0.0, sources) for parts, sources in priced)
    return one, other


def further_cost(pricing: Pricing, found: Mapping[Alike, Sequence[int]], direction: str, at: Loads) -> Cost:
    """Seconds of all modules for one micro-batch in `direction`: what the model's last layer of each kind in `found`
    (as `alike` gives it) takes where it stands, its rows' way to experts and back included, and the product.

    Nothing where modules are not trained. Between attention and FFN groups the head waits for both; what others could
    do meanwhile is left out.
    """
    module = [kind for kind in further_pieces(pricing, found) if kind != JOIN]
    if not module:
        return Cost(0.0, "roofline")
    number_of = {number: what for what, numbers in found.items() for number in numbers}
    last = [max(n for n, what in number_of.items() if what._replace(position=0) == kind) for kind in module]
    product_of = joined(pricing, at[pricing.graph.stages[-1][0]])[direction == "B"]
    costs = [cost for n in last for cost in _layer(pricing, number_of[n], n, direction, at)]
    costs.append(seconds(pricing, product_of))
    total = pricing.case.model.mtp_layers * sum(cost.seconds for cost in costs)
    return Cost(total, compute.weakest(cost.source for cost in costs))


def _layer(pricing: Pricing, what: Alike, number: int, direction: str, at: Loads) -> list[Cost]:
    """One piece and the edges around experts; before its backward what of its forward is computed again."""
    graph = pricing.graph
    edges = (number - 1, number) if graph.pieces[number].kind == "experts" else ()
    spent = [seconds(pricing, price(pricing, what, at[what.position], direction))]
    moved = [edge_in_step(pricing, edge, direction, at) for edge in edges]
    if direction == "F" or (kept := keeps(graph.pieces[number], pricing.recompute)) == "activations":
        return [*spent, *moved]
    again = seconds(pricing, price(pricing, what, at[what.position], "F"))
    sent = [edge_in_step(pricing, edge, "F", at) for edge in edges[: kept == "nothing"]]
    return [*sent, again, *spent, *moved]
