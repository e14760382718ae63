"""How rows reach their experts inside a position, in words: the algorithm, and what each rank sends each other."""

from __future__ import annotations

from moeplan.cost.edges import alike_edges, row_types
from moeplan.cost.pricing import loads
from moeplan.plan import Plan
from moeplan.resources.traffic import edge_bytes

KIB = 1024


def exchange_text(plan: Plan) -> str:
    """Per kind of dispatch its algorithm, the ranks of an expert group and the bytes of one message to each of them.

    capacity x tokens x top_k x (hidden x element + route) / EP, of a full micro-batch, balanced; as "flat among 64
    ranks, 1.2 MiB to each". "none" where no position holds experts beside their attention.
    """
    case, graph, told = plan.case, plan.graph, []
    at = loads(case, graph, plan.batch, 0)
    if case.execution.dispatcher != "all_to_all":
        return case.execution.dispatcher
    for (kind, algorithm, here, _, _), numbers in alike_edges(graph).items():
        if kind == "dispatch":
            padded = case.execution.capacity or 1.0
            each = padded * edge_bytes(case.model, graph, numbers[0], "F", at[here], **row_types(case)) / graph.ep
            told.append(f"{algorithm} among {graph.ep} ranks, {_size(each)} to each")
    return "; ".join(dict.fromkeys(told)) or "none"


def _size(num_bytes: float) -> str:
    """In KiB, from 1,024 of them in MiB."""
    return f"{num_bytes / KIB:.3g} KiB" if num_bytes < KIB**2 else f"{num_bytes / KIB**2:.3g} MiB"
