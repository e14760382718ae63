"""Disaggregated: attention and FFN on disjoint ranks, layers dealt to p groups of each (DisagMoE, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moeplan.assembly import assemble, grid
from moeplan.errors import SpecError
from moeplan.layout import Disaggregated, Position, StageGraph, check_positive
from moeplan.mesh import divisors
from moeplan.spec.case import Case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.model import ModelSpec, has_ffn

NAME = "disaggregated"
DEEPEST = 64
SCHEDULES = ("af-pipe", "interleaved", "gpipe")


def check_degrees(model: ModelSpec, layout: Disaggregated, world: int) -> None:
    """SpecError with the substituted numbers unless groups are whole and experts divide."""
    check_positive(layout)
    one = layout.attention_gpus + layout.ffn_gpus
    pairs = layout.pairs
    rules = [
        (alternates(model), f"layers without an FFN in pattern {model.pattern!r}: attention and FFN do not alternate"),
        (pairs <= model.num_layers, f"pairs {pairs} > {model.num_layers} layers"),
        (
            one * layout.dp <= world,
            f"attention {layout.attention_gpus} + ffn {layout.ffn_gpus} = {one} ranks * dp {layout.dp} > {world}",
        ),
        (layout.attention_gpus % pairs == 0, f"attention {layout.attention_gpus} ranks % pairs {pairs} is not 0"),
        (layout.ffn_gpus % pairs == 0, f"ffn {layout.ffn_gpus} ranks % pairs {pairs} is not 0"),
        (layout.depth <= DEEPEST, f"depth {layout.depth} > {DEEPEST}: warm-ups are not that deep"),
        (layout.attention_gpus >= pairs and layout.ffn_gpus >= pairs, f"fewer ranks than pairs {pairs} on one side"),
    ]
    for right, message in rules:
        if not right:
            raise SpecError(f"layout: {message}")
    ep = layout.ffn_gpus // pairs
    if model.experts and model.experts % ep:
        raise SpecError(f"layout: {model.experts} experts % {ep} ranks of one FFN group is not 0")


def alternates(model: ModelSpec) -> bool:
    """Whether every layer has an FFN, for the FFN side to do."""
    return all(has_ffn(model, layer) for layer in range(model.num_layers))


def stages(case: Case, layout: Disaggregated) -> StageGraph:
    """The stage graph of `layout`: stage 2 l is attention of layer l, stage 2 l + 1 its FFN.

    In each copy the attention ranks come first, group by group, then the FFN ranks; GPUs beyond them stay idle.
    """
    check_degrees(case.model, layout, num_ranks(case.cluster))
    pairs, dp = layout.pairs, layout.dp
    attention, ffn = layout.attention_gpus // pairs, layout.ffn_gpus // pairs
    stride = layout.attention_gpus + layout.ffn_gpus
    positions = []
    for i in range(pairs):
        first = layout.attention_gpus + i * ffn
        positions.append(Position(name=f"A{i}", ranks=grid(i * attention, attention, dp, stride), spread="sequence"))
        positions.append(Position(name=f"F{i}", ranks=grid(first, ffn, dp, stride), spread="token"))
    return assemble(
        case.model,
        positions=positions,
        stages=[(s % (2 * pairs),) for s in range(2 * case.model.num_layers)],
        stage_of=lambda layer, side: 2 * layer + (side == "ffn"),
        ep=ffn,
        deduplicate=layout.deduplicate,
        sharded=case.memory.optimizer_shards != 1 and case.memory.zero > 0,
    )


class Frame(NamedTuple):
    """What is fixed while GPUs and NICs are allocated."""

    pairs: int
    dp: int
    micro_batch: int


WIDEST_PAIRS = 16


def frames(case: Case) -> Iterator[Frame]:
    """Every number of group pairs and of pipeline copies that leaves both sides a GPU per group.

    None where a layer has no FFN.
    """
    if not alternates(case.model):
        return
    world = num_ranks(case.cluster)
    for dp in (d for d in divisors(world) if d <= case.workload.global_batch):
        for pairs in range(1, min(case.model.num_layers, world // dp // 2, WIDEST_PAIRS) + 1):
            yield Frame(pairs, dp, 1)


def sides(case: Case, frame: Frame) -> tuple[list[int], list[int]]:
    """Sizes that one attention group and one FFN group may have; an FFN group divides the experts."""
    largest = num_ranks(case.cluster) // frame.dp // frame.pairs - 1
    return list(range(1, largest + 1)), [n for n in divisors(max(case.model.experts, 1)) if n <= largest]
