"""Seconds of one piece of the chain on one rank: compute by what bounds it, and communication inside the piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moeplan.cost import Cost, Parts, compute
from moeplan.cost import communication as network
from moeplan.cost.beside import together
from moeplan.cost.exposure import exposed
from moeplan.cost.patterns import blocks
from moeplan.cost.pricing import Pricing
from moeplan.layout import StageGraph
from moeplan.program import kind_keeps
from moeplan.resources import attention, mixer
from moeplan.resources.traffic import split_elements
from moeplan.resources.work import ELEMENT_BYTES, Load, again, backward, forward
from moeplan.spec.case import Case
from moeplan.spec.model import STATE, is_dense, window_of


class Alike(NamedTuple):
    """What the seconds of a piece depend on; pieces with the same of it are priced once."""

    kind: str
    moe: bool
    """Whether the layer has routed experts."""
    window: int
    position: int


class Priced(NamedTuple):
    """Seconds of one piece for one micro-batch in one direction."""

    parts: Parts
    """Compute, as the calibration's curves give it."""
    tensor: float
    """Collectives of tensor parallelism that compute waits for."""
    context: float
    """Keys and values of other context-parallel ranks, as far as attention waits for them."""
    sources: Mapping[str, str]
    """Of the rates of each part that has some; the others are rooflines or assumed."""

    @property
    def inside_s(self) -> float:
        """Communication inside the piece."""
        return self.tensor + self.context


def alike(case: Case, graph: StageGraph) -> dict[Alike, list[int]]:
    """Piece numbers by what their seconds depend on."""
    found: dict[Alike, list[int]] = {}
    for number, piece in enumerate(graph.pieces):
        moe = piece.layer < case.model.num_layers and not is_dense(case.model, piece.layer)
        window = window_of(case.model, piece.layer) if piece.kind == "attention" else 0
        found.setdefault(Alike(piece.kind, moe, window, graph.stages[piece.stage][0]), []).append(number)
    return found


def price(pricing: Pricing, what: Alike, load: Load, direction: str) -> Priced:
    """Seconds of a piece in `direction`, F or B, at one rank with `load`; B with the modules that it computes again.

    Where the whole piece is computed again, which is a forward of its own, they are part of it.
    """
    case, machine = pricing.case, pricing.machine
    dtype = case.workload.dtype
    work = forward(
        case.model,
        what.kind,
        load,
        seq_len=case.workload.seq_len,
        dtype=dtype,
        moe=what.moe,
        window=what.window,
        execution=case.execution,
    )
    if direction == "B":
        kept = kind_keeps(what.kind, pricing.recompute) == "activations"
        work = [*again(work, pricing.recompute.modules if kept else ()), *backward(work)]
    parts, sources = compute.parts(work, case.cluster.gpu, machine.calibration, case.execution, dtype)
    return Priced(
        parts, _tensor(pricing, what, load, direction), _context(pricing, what, load, direction, parts), sources
    )


def seconds(pricing: Pricing, priced: Priced) -> Cost:
    """All seconds of a piece in a step: kernels beside their launches, then the communication inside."""
    spent = together(compute.in_step(priced.parts, pricing.machine.calibration.constants))
    return Cost(spent + priced.inside_s, compute.weakest(priced.sources.values()))


def _tensor(pricing: Pricing, what: Alike, load: Load, direction: str) -> float:
    """All-gathers and reduce-scatters of the rows around tensor-parallel blocks, as far as compute waits for them."""
    graph, case = pricing.graph, pricing.case
    degree = graph.etp if what.kind == "experts" else graph.tp
    passed = split_elements(case.model, what.kind, direction, moe=what.moe)
    if degree == 1 or not passed:
        return 0.0
    groups = blocks(graph.positions[what.position].ranks, degree)
    size = (load.rows if what.kind == "experts" else load.tokens) * ELEMENT_BYTES[case.workload.dtype]
    total = sum(network.all_gather(*pricing.machine, groups, elements * size).seconds for elements in passed)
    return total * exposed(case, "tensor")


def _context(pricing: Pricing, what: Alike, load: Load, direction: str, parts: Parts) -> float:
    """Keys and values of the group's other ranks, gathered in a ring behind attention; in the backward also gradients.

    seconds = max(0, all-gather - hidden share of attention); the backward gathers once more and scatters gradients.
    """
    graph, case = pricing.graph, pricing.case
    if graph.cp == 1 or what.kind != "attention":
        return 0.0
    if what.window == STATE:
        return _by_heads(pricing, what, load)
    widths = attention.core(case.model, load.tp)
    buffer = load.tokens * graph.cp * (widths.keys + widths.values) * ELEMENT_BYTES[case.workload.dtype]
    passes = 1 if direction == "F" else 2
    total = passes * network.all_gather(*pricing.machine, context_groups(graph, what.position), buffer).seconds
    return max(0.0, total - (1 - exposed(case, "context")) * parts.attention)


def _by_heads(pricing: Pricing, what: Alike, load: Load) -> float:
    """Two all-to-alls around a mixer, whose ranks take all tokens of some heads: what enters the scan, and its output.

    The backward's are the same. Megatron-LM's context parallelism of Mamba-2; nothing hides them.
    """
    inside = mixer.widths(pricing.case.model, load.tp)
    size = load.tokens * ELEMENT_BYTES[pricing.case.workload.dtype]
    groups = context_groups(pricing.graph, what.position)
    passed = (inside.convolved + inside.output + inside.steps, inside.output)
    return sum(network.all_to_all(*pricing.machine, groups, elements * size).seconds for elements in passed)


def context_groups(graph: StageGraph, position: int) -> list[tuple[int, ...]]:
    """Ranks of a position that hold parts of the same sequences and the same heads."""
    size = graph.tp * graph.cp
    return [
        ranks[start + head : start + size : graph.tp]
        for ranks in graph.positions[position].ranks
        for start in range(0, len(ranks), size)
        for head in range(graph.tp)
    ]
