"""Seconds and bytes of the two sides of disaggregated layouts, in closed form: what the integer program chooses from.

All are for the groups with most layers and leave out what only the schedule knows; the search checks with the schedule.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from moeplan.cost.compute import seconds
from moeplan.cost.durations import Machine
from moeplan.layout import Disaggregated, Piece, Recompute
from moeplan.layouts.disaggregated import Frame, sides
from moeplan.optimize.evaluate import usable_bytes
from moeplan.options import NicOption, OptionTable, SideOption
from moeplan.resources import parameters as count
from moeplan.resources.memory import piece_bytes
from moeplan.resources.traffic import ROUTE_BYTES
from moeplan.resources.work import ELEMENT_BYTES, Load, backward, forward
from moeplan.schedule import Shape
from moeplan.schedules import af_pipe
from moeplan.spec.case import Case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.workload import gradient_bytes


class Sizes(NamedTuple):
    """One allocation inside a frame: GPUs of one group of each side."""

    frame: Frame
    attention: int
    ffn: int


class Sides:
    """Seconds and bytes of both sides of disaggregated layouts of one case."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case, self.machine = case, machine
        self.piece_s = cache(self._piece_s)
        self.live = cache(self._live)

    def microbatches(self, frame: Frame, attention: int) -> int:
        """Micro-batches of a step with `attention` ranks per attention group."""
        return -(-self.case.workload.global_batch // (frame.micro_batch * attention * frame.dp))

    def attention_s(self, frame: Frame, attention: int, again: str) -> float:
        """Compute seconds per step of the attention group with most layers."""
        tokens = frame.micro_batch * self.case.workload.seq_len
        return (
            self._full(frame, attention) * self._layers(frame) * self.piece_s("attention", tokens, 1, again != "none")
        )

    def ffn_s(self, sizes: Sizes, again: str) -> float:
        """Compute seconds per step of the slowest FFN group: one with most layers, or the last one, with the head."""
        frame, layers = sizes.frame, self.case.model.num_layers
        tokens = frame.micro_batch * self.case.workload.seq_len * sizes.attention
        once = self.piece_s("experts", tokens, sizes.ffn, again != "none")
        last = -(-(layers - (layers - 1) % frame.pairs) // frame.pairs)
        with_head = last * once + self.piece_s("head", tokens, sizes.ffn, False)
        return self._full(frame, sizes.attention) * max(self._layers(frame) * once, with_head)

    def _full(self, frame: Frame, attention: int) -> int:
        """Micro-batches that are full: the last one may be short."""
        return max(1, self.case.workload.global_batch // (frame.micro_batch * attention * frame.dp))

    def _layers(self, frame: Frame) -> int:
        return -(-self.case.model.num_layers // frame.pairs)

    def _piece_s(self, kind: str, tokens: int, ranks: int, again: bool) -> float:
        """Seconds of F and B of one piece for `tokens` spread over `ranks`, and of F once more if computed again."""
        case, model = self.case, self.case.model
        load = Load(tokens / ranks, tokens * model.top_k / ranks, local_experts=model.experts / ranks)
        work = forward(model, kind, load, seq_len=case.workload.seq_len, dtype=case.workload.dtype)
        parts = [work, backward(work), *([work] if again else [])]
        return sum(seconds(w, case.cluster.gpu, self.machine.calibration, case.workload.dtype).seconds for w in parts)

    def _live(self, pairs: int, microbatches: int, depth: int) -> tuple[int, int]:
        """Most chunks alive at the first attention and the first FFN group, from the schedule itself.

        The most is reached within the first groups of micro-batches, so that more of them than four change nothing.
        """
        microbatches = min(microbatches, 4 * 2 * pairs * depth)
        shape = Shape(2 * pairs, 2 * self.case.model.num_layers, microbatches, depth=depth)
        rows = [af_pipe.row(shape, position) for position in (0, 1)]
        counts = [np.cumsum([1 if step[0].kind == "F" else -1 for step in row]).max() for row in rows]
        return int(counts[0]), int(counts[1])

    def side_bytes(self, sizes: Sizes, recompute: Recompute, side: str, depth: int = 1) -> float:
        """Peak HBM bytes of a rank of the first group of `side`: static, live chunks and what a backward needs."""
        case, model, frame = self.case, self.case.model, sizes.frame
        live = self.live(frame.pairs, self.microbatches(frame, sizes.attention), depth)[side == "ffn"]
        tokens = frame.micro_batch * case.workload.seq_len
        routed = tokens * sizes.attention / sizes.ffn
        load = Load(tokens, 0.0) if side == "attention" else Load(routed, routed * model.top_k)
        kind = "attention" if side == "attention" else "experts"
        piece = Piece(kind=kind, layer=model.num_layers - 1, stage=0)  # type: ignore[arg-type]
        kept = piece_bytes(case, piece, recompute, load, riding=True)
        return self.static_bytes(sizes, side) + live * kept.alive + kept.transient

    def static_bytes(self, sizes: Sizes, side: str) -> float:
        """Bytes of weights, gradients and optimizer state of a rank of the first group of `side`."""
        model, memory, frame = self.case.model, self.case.memory, sizes.frame
        fixed = memory.weight_bytes + gradient_bytes(memory)
        if side == "ffn":
            parameters = count.expert_parameters(model) * model.experts / sizes.ffn
            shards = memory.optimizer_shards or frame.dp
            return self._layers(frame) * parameters * (fixed + memory.optimizer_bytes / shards)
        parameters = count.attention_parameters(model) + count.router_parameters(model) + count.shared_parameters(model)
        shards = memory.optimizer_shards or sizes.attention * frame.dp
        embedding = count.embedding_parameters(model)
        return (self._layers(frame) * parameters + embedding) * (fixed + memory.optimizer_bytes / shards)

    def volume_bytes(self, frame: Frame, *, deduplicate: bool) -> float:
        """Bytes that leave the attention side of one copy per step: routed rows, and gradients of what came back."""
        model, workload = self.case.model, self.case.workload
        row = model.hidden * ELEMENT_BYTES[workload.dtype]
        out = model.top_k * (row + ROUTE_BYTES) * (0.5 if deduplicate else 1.0)
        tokens = workload.global_batch * workload.seq_len / frame.dp
        return tokens * model.num_layers * (out + model.top_k * row)

    def table(self, frame: Frame, *, deduplicate: bool) -> OptionTable:
        """All that the allocation of `frame` may choose from.

        An FFN option is priced beside the largest attention group that leaves it room, which has the most rows.
        """
        case, pairs, node = self.case, frame.pairs, self.case.cluster.node
        attention_sizes, ffn_sizes = sides(case, frame)
        per_pair = num_ranks(case.cluster) // frame.dp // pairs

        def option(side: str, size: int, sizes: Sizes, again: str) -> SideOption:
            rule = Recompute(**{side: again})  # type: ignore[arg-type]
            spent = self.attention_s(frame, size, again) if side == "attention" else self.ffn_s(sizes, again)
            gpus = pairs * size
            return SideOption(
                name=f"{gpus} {again}",
                gpus=gpus,
                nics=gpus * node.nics // node.gpus,
                recompute=again,
                seconds=spent,
                hbm_bytes=self.side_bytes(sizes, rule, side),
            )

        attention = [
            option("attention", m, Sizes(frame, m, 1), again) for m in attention_sizes for again in ("none", "full")
        ]
        ffn = [
            option("ffn", n, Sizes(frame, per_pair - n, n), again) for n in ffn_sizes for again in ("none", "experts")
        ]
        limit = usable_bytes(case)
        reach = sorted({(a.nics, f.nics) for a in attention for f in ffn if a.hbm_bytes <= limit >= f.hbm_bytes})
        total = node.nics * case.cluster.nodes // frame.dp
        nics = [NicOption(a, f) for a, f in reach if a and f and a + f <= total] if case.cluster.nodes > 1 else []
        reached = node.nic_bytes_per_s * self.machine.calibration.network.efficiency
        return OptionTable(
            tuple(attention), tuple(ffn), tuple(nics), self.volume_bytes(frame, deduplicate=deduplicate), reached
        )

    def bound_s(self, layout: Disaggregated, recompute: Recompute) -> float:
        """No schedule of `layout` is faster: the slower side's compute."""
        frame = Frame(layout.pairs, layout.dp, layout.micro_batch)
        sizes = Sizes(frame, layout.attention_gpus // layout.pairs, layout.ffn_gpus // layout.pairs)
        return max(self.attention_s(frame, sizes.attention, recompute.attention), self.ffn_s(sizes, recompute.ffn))

    def least_bytes(self, layout: Disaggregated, recompute: Recompute) -> float:
        """A rank of the first group of either side holds no less: `side_bytes` leaves out buffers and logits."""
        frame = Frame(layout.pairs, layout.dp, layout.micro_batch)
        sizes = Sizes(frame, layout.attention_gpus // layout.pairs, layout.ffn_gpus // layout.pairs)
        return max(self.side_bytes(sizes, recompute, side, layout.depth) for side in ("attention", "ffn"))
