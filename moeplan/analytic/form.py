"""A step before it is summed: seconds of every kind of piece, and how often each position runs it.

All positions of a mesh have the same load, so that a kind of piece is priced once. Uneven stages stay uneven: what each
position holds is counted. Factors that are fitted later act on the columns, so that a step is summed again without
being priced again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.analytic.bubble import idle
from moeplan.batch import Batch
from moeplan.cost import Cost, Parts
from moeplan.cost.compute import weakest
from moeplan.cost.edges import edge_cost
from moeplan.cost.further import JOIN, further_pieces, joined
from moeplan.cost.pieces import Alike, Priced, alike, price
from moeplan.cost.pricing import Loads, Pricing, loads
from moeplan.cost.synchronisation import optimizer, shared
from moeplan.program import keeps
from moeplan.spec.calibration import Pattern, source_of

Floats = NDArray[np.float64]
CLASSES = (*Parts._fields, "tensor", "context", "expert")
"""What the columns of `Form.pieces` hold: seconds of compute by what bounds it, then communication."""

WHATEVER = {"stream": "roofline", "cast": "roofline", "host": "assumed"}
"""Sources of classes that no table decides: passes over HBM are rooflines, launches assumed."""

TRAVELS: tuple[Pattern, ...] = ("point_to_point", "reduce_scatter", "all_gather")
"""Patterns of hops between positions, of gradients and of parameters."""


class Form(NamedTuple):
    """One step of one layout; numbers are arrays without axes, so that forms can be stacked (`step.stacked`)."""

    pieces: Floats
    """Seconds of each kind of piece in each direction for one micro-batch [rows, classes]."""
    forward: Floats
    """How often a position's forward runs each row [positions, rows]."""
    backward: Floats
    """The same of its backward, with what it computes again."""
    positions: Floats
    """Ones [positions]."""
    microbatches: Floats
    """Whole ones; a short last one counts as the part that it is."""
    bubble: Floats
    """As `bubble.Idle`, whose passes are those of the mean position but for the slowest [3]."""
    path: Floats
    """[3]"""
    turns: Floats
    """[2]"""
    directions: Floats
    hop_s: Floats
    """From one position to the next: the mean, and the slowest, which a full pipeline waits for [2]."""
    hops: Floats
    """How many of them the step waits for while the pipeline fills and drains, and once it is full [2]."""
    scatter_s: Floats
    """Gradients of each position summed, once per step [positions]."""
    gather_s: Floats
    """New weights of each position gathered, once per step [positions]."""
    regather_s: Floats
    """Weights gathered for each micro-batch's forward, where no rank holds them whole; in a pipeline they stay whole
    between micro-batches, as PyTorch's FSDP keeps them there [positions]."""
    rescatter_s: Floats
    """Gradients summed after each micro-batch's backward there [positions]."""
    optimizer_s: Floats
    ahead: Floats
    """Chunks by which a position's last backward ends before the first position's, in its own backward [positions]."""
    gpus: Floats
    hides_gradients: Floats
    """1 where gradients are summed behind compute, else 0."""
    hides_parameters: Floats
    sources: tuple[str, ...]
    """Where the seconds of each class come from: the weakest of its rows [classes]."""
    travel_source: str
    """The same of what ends a step: gradients, weights and hops."""


def form(pricing: Pricing, batch: Batch, schedule: str) -> Form:
    """The step of `pricing`, whose graph is a mesh; SpecError for a schedule without a closed form.

    In DualPipe a position holds its stage for half of the micro-batches and its opposite's for the others.
    """
    case, graph, machine, _ = pricing
    full, last = (loads(case, graph, batch, n) for n in (0, batch.microbatches - 1))
    found = alike(case, graph)
    further = further_pieces(pricing, found)
    rows = [_row(pricing, what, number, full) for what, number in _kinds(found)]
    if further:
        there, back = joined(pricing, full[-1])
        nothing_again = [0.0] * len(CLASSES)
        rows.append(_Row(JOIN, _columns(there, 0.0), _columns(back, 0.0), nothing_again, there.sources, "roofline"))
    counts = _counts(pricing, found, further, [row.what for row in rows])
    positions, virtual = len(graph.positions), len(graph.stages) // len(graph.positions)
    if schedule == "dualpipe":
        counts = (counts + counts[::-1]) / 2
    scatter, gather = _once(pricing)
    hops_s = _hops_s(pricing, full)
    split, nothing = case.memory.zero == 3 and positions == 1, np.zeros(positions)
    hides = case.execution.hidden
    return Form(
        pieces=np.array([seconds for row in rows for seconds in (row.forward, row.backward, row.again)]),
        forward=np.asarray(np.kron(counts, [1.0, 0.0, 0.0]), dtype=np.float64),
        backward=np.asarray(np.kron(counts, [0.0, 1.0, 1.0]), dtype=np.float64),
        positions=np.ones(positions),
        microbatches=np.array(batch.microbatches - 1 + last[0].tokens / full[0].tokens),
        **{name: np.array(value) for name, value in idle(schedule, positions, virtual)._asdict().items()},
        hop_s=np.array([np.mean(hops_s), max(hops_s)]),
        hops=np.array(_hops(schedule, positions, virtual, batch.microbatches)),
        scatter_s=nothing if split else scatter,
        gather_s=nothing if split else gather,
        regather_s=gather if split else nothing,
        rescatter_s=scatter if split else nothing,
        optimizer_s=np.array(optimizer(pricing).seconds),
        ahead=np.arange(positions) / virtual,
        gpus=np.array(float(sum(len(group) for position in graph.positions for group in position.ranks))),
        hides_gradients=np.array(float("gradients" in hides)),
        hides_parameters=np.array(float("parameters" in hides)),
        sources=_sources(rows),
        travel_source=weakest(source_of(machine.calibration.network, name) for name in TRAVELS),
    )


class _Row(NamedTuple):
    what: Alike
    forward: list[float]
    backward: list[float]
    again: list[float]
    """The forward once more, where it is recomputed."""
    compute: Mapping[str, str]
    """Sources of its matrix products and attention, by class."""
    travel: str
    """Source of its dispatch and combine."""


def _sources(rows: list[_Row]) -> tuple[str, ...]:
    """The weakest source of each class."""
    return tuple(
        WHATEVER.get(name)
        or weakest(
            row.travel if name in ("tensor", "context", "expert") else row.compute.get(name, "roofline")
            for row in rows
            if row.forward[column] or row.backward[column]
        )
        for column, name in enumerate(CLASSES)
    )


def _kinds(found: Mapping[Alike, list[int]]) -> Iterator[tuple[Alike, int]]:
    """Each kind of piece, as it stands at one position, with the number of one such piece."""
    met = set()
    for what, numbers in found.items():
        kind = what._replace(position=0)
        if kind not in met:
            met.add(kind)
            yield what, numbers[0]


def _row(pricing: Pricing, what: Alike, number: int, at: Loads) -> _Row:
    """One kind of piece. What is recomputed with its dispatch sends rows again; Megatron-LM's also brings them back."""
    graph = pricing.graph
    forward, backward = (price(pricing, what, at[what.position], direction) for direction in "FB")
    sent, returned = (_routed(pricing, number, direction, at) for direction in "FB")
    kept = keeps(graph.pieces[number], pricing.recompute)
    again = [0.0] * len(CLASSES)
    if kept != "activations":
        whole = pricing.case.execution.kernels == "fused"
        again = _columns(forward, sum(cost.seconds for cost in sent[: 1 + whole]) if kept == "nothing" else 0.0)
    there, back = (sum(cost.seconds for cost in costs) for costs in (sent, returned))
    return _Row(what, _columns(forward, there), _columns(backward, back), again, forward.sources, sent[0].source)


def _columns(priced: Priced, expert_s: float) -> list[float]:
    return [*priced.parts, priced.tensor, priced.context, expert_s]


def _routed(pricing: Pricing, number: int, direction: str, at: Loads) -> list[Cost]:
    """Dispatch and combine around an experts piece; none around others."""
    if pricing.graph.pieces[number].kind != "experts":
        return [Cost(0.0, pricing.machine.calibration.node.source)]
    return [edge_cost(pricing, edge, direction, at) for edge in (number - 1, number)]


def _counts(
    pricing: Pricing, found: Mapping[Alike, list[int]], further: Sequence[Alike], kinds: Sequence[Alike]
) -> Floats:
    """Pieces of each kind at each position [positions, kinds]."""
    column = {what._replace(position=0): i for i, what in enumerate(kinds)}
    counts = np.zeros((len(pricing.graph.positions), len(kinds)))
    for what, numbers in found.items():
        counts[what.position, column[what._replace(position=0)]] += len(numbers)
    for what in further:
        counts[-1, column[what]] += pricing.case.model.mtp_layers
    return counts


def _hops_s(pricing: Pricing, at: Loads) -> list[float]:
    """Seconds of the first transfer from each position to the next; one of nothing on a single position."""
    graph, found = pricing.graph, dict[int, int]()
    for number, edge in enumerate(graph.edges):
        if edge.kind == "send":
            found.setdefault(graph.stages[graph.pieces[number].stage][0], number)
    return [edge_cost(pricing, number, "F", at).seconds for number in found.values()] or [0.0]


EXPOSED_HOPS = 0.15
"""Share of the hops that an interleaved schedule waits for once the pipeline is full (assumed)."""


def _hops(schedule: str, positions: int, virtual: int, microbatches: int) -> tuple[float, float]:
    """Hops that the step waits for: 2 (p - 1) while the pipeline fills and drains, and then for each micro-batch.

    In 1F1B two neighbours pass two micro-batches around in 2 (F + B) and two hops: one hop each. GPipe's pass behind
    compute; with v > 1 they are posted ahead, and 15 % of 2 m v are waited for.
    """
    if positions == 1:
        return 0.0, 0.0
    each = float(microbatches) if virtual == 1 else EXPOSED_HOPS * 2 * microbatches * virtual
    return 2.0 * (positions - 1), 0.0 if schedule == "gpipe" else each


def _once(pricing: Pricing) -> tuple[Floats, Floats]:
    """Seconds of summing gradients and of gathering weights at each position [positions] each."""
    scatter, gather = (np.zeros(len(pricing.graph.positions)) for _ in range(2))
    for one in shared(pricing):
        for position in pricing.graph.replicas[one.number].positions:
            (gather if one.kind == "all_gather" else scatter)[position] += one.cost.seconds
    return scatter, gather
