"""Seconds and bytes of the two sides of disaggregated layouts, in closed form: what the integer program chooses from.

All are for the groups with most layers, bytes for the fullest, and leave out what only the schedule knows; the search
checks with the schedule.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeplan.cost.compute import seconds
from moeplan.cost.durations import Machine
from moeplan.cost.edges import limit_of
from moeplan.cost.patterns import once_per_node
from moeplan.layout import Disaggregated, Piece, Recompute
from moeplan.layouts.disaggregated import Frame, sides
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.options import NicOption, OptionTable, SideOption
from moeplan.resources import parameters as count
from moeplan.resources.memory import piece_bytes
from moeplan.resources.work import ELEMENT_BYTES, Load, backward, forward
from moeplan.schedule import Shape
from moeplan.schedules import af_pipe
from moeplan.spec.case import Case
from moeplan.spec.cluster import domain_gpus, domains, homes, num_ranks
from moeplan.spec.model import has_state, is_dense, moe_layers, row_width, window_of
from moeplan.spec.workload import bytes_of_one


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
        self.network_s = cache(self._network_s)
        self.crossing = cache(self._crossing)
        self.attentions = cache(self._attentions)
        self.groups = cache(self._groups)

    def microbatches(self, frame: Frame, attention: int) -> int:
        """Micro-batches of a step with `attention` ranks per attention group."""
        return -(-self.case.workload.global_batch // (frame.micro_batch * attention * frame.dp))

    def attention_s(self, frame: Frame, attention: int, again: str) -> float:
        """Compute seconds per step of the slowest attention group."""
        sequences = min(frame.micro_batch, -(-self.case.workload.global_batch // (attention * frame.dp)))
        tokens = sequences * self.case.workload.seq_len
        slowest = max(
            sum(n * self.piece_s("attention", tokens, 1, again != "none", *kind) for kind, n in group)
            for group in self.attentions(frame.pairs)
        )
        return self._full(frame, attention) * slowest

    def ffn_s(self, sizes: Sizes, again: str) -> float:
        """Compute seconds per step of the slower of two FFN groups: the first, with most layers, and the head's."""
        frame = sizes.frame
        last = (self.case.model.num_layers - 1) % frame.pairs
        sequences = min(frame.micro_batch * sizes.attention, -(-self.case.workload.global_batch // frame.dp))
        tokens = sequences * self.case.workload.seq_len
        dense_s, moe_s = (self.piece_s(kind, tokens, sizes.ffn, again != "none") for kind in ("dense", "experts"))
        first, with_head = (
            dense * dense_s + moe * moe_s for dense, moe in (self.layers(frame, 0), self.layers(frame, last))
        )
        with_head += self.piece_s("head", tokens, sizes.ffn, False)
        return self._full(frame, sizes.attention) * max(first, with_head)

    def layers(self, frame: Frame, group: int) -> tuple[int, int]:
        """Dense and MoE layers of a group."""
        return self.groups(frame.pairs)[group]

    def _groups(self, pairs: int) -> list[tuple[int, int]]:
        """Dense and MoE layers of each group."""
        dense = [is_dense(self.case.model, layer) for layer in range(self.case.model.num_layers)]
        return [(sum(mine), len(mine) - sum(mine)) for mine in (dense[group::pairs] for group in range(pairs))]

    def _attentions(self, pairs: int) -> set[tuple[tuple[tuple[bool, int], int], ...]]:
        """What attention groups have, each once: how many layers of each (before experts or not, window)."""
        model = self.case.model
        kinds = [(not is_dense(model, layer), window_of(model, layer)) for layer in range(model.num_layers)]
        return {tuple(sorted(Counter(kinds[group::pairs]).items())) for group in range(pairs)}

    def _full(self, frame: Frame, attention: int) -> int:
        """Micro-batches that are full, or one: the last one may be short."""
        return max(1, self.case.workload.global_batch // (frame.micro_batch * attention * frame.dp))

    def _piece_s(self, kind: str, tokens: int, ranks: int, again: bool, moe: bool = True, window: int = 0) -> float:
        """Seconds of F and B of one piece for `tokens` spread over `ranks`, and of F once more if computed again."""
        case, model = self.case, self.case.model
        load = Load(tokens / ranks, tokens * model.top_k / ranks, local_experts=model.experts / ranks)
        dtype, seq_len = case.workload.dtype, case.workload.seq_len
        work = forward(
            model, kind, load, seq_len=seq_len, dtype=dtype, moe=moe, window=window, execution=case.execution
        )
        parts = [work, backward(work), *([work] if again else [])]
        return sum(seconds(w, case.cluster.gpu, self.machine.calibration, dtype, case.execution).seconds for w in parts)

    def _live(self, pairs: int, microbatches: int, depth: int) -> tuple[int, int]:
        """Most chunks alive at the first attention and the first FFN group; more than four groups change nothing."""
        microbatches = min(microbatches, 4 * 2 * pairs * depth)
        shape = Shape(2 * pairs, 2 * self.case.model.num_layers, microbatches, depth=depth)
        return af_pipe.most_alive(shape, 0), af_pipe.most_alive(shape, 1)

    def side_bytes(self, sizes: Sizes, recompute: Recompute, side: str, depth: int = 1) -> float:
        """Peak HBM bytes of a rank of `side`: static, live chunks and what a backward needs of the first group.

        Where the group has dense and MoE layers, every chunk counts as the one that keeps less. Of other groups only
        static bytes count.
        """
        case, model, frame = self.case, self.case.model, sizes.frame
        live = self.live(frame.pairs, self.microbatches(frame, sizes.attention), depth)[side == "ffn"]
        sequences = min(frame.micro_batch, -(-case.workload.global_batch // (sizes.attention * frame.dp)))
        tokens = sequences * case.workload.seq_len
        routed = min(tokens * sizes.attention, case.workload.global_batch * case.workload.seq_len) / sizes.ffn
        load = Load(tokens, 0.0) if side == "attention" else Load(routed, routed * model.top_k)
        kept = []
        mine = reversed(range(0, model.num_layers, frame.pairs))
        own = {(is_dense(model, layer), has_state(model, layer)): layer for layer in mine}
        for layer in own.values():
            ffn = "dense" if is_dense(model, layer) else "experts"
            piece = Piece(kind="attention" if side == "attention" else ffn, layer=layer, stage=0)  # type: ignore[arg-type]
            kept.append(piece_bytes(case, piece, recompute, load))
        alive, transient = min(part.alive for part in kept), min(part.transient for part in kept)
        first = self._static_bytes(sizes, side, 0) + live * alive + transient
        return max(first, self.static_bytes(sizes, side))

    def static_bytes(self, sizes: Sizes, side: str) -> float:
        """Bytes of weights, gradients and optimizer state of a rank of the fullest group of `side`; norms left out."""
        return max(self._static_bytes(sizes, side, group) for group in range(sizes.frame.pairs))

    def _static_bytes(self, sizes: Sizes, side: str, group: int) -> float:
        """Of a rank of one group; the embedding is in the first."""
        model, memory, frame = self.case.model, self.case.memory, sizes.frame
        dense, moe = self.layers(frame, group)

        def each(replicas: int) -> float:
            return bytes_of_one(memory, replicas)

        if side == "ffn":
            experts = count.expert_parameters(model) * model.experts / sizes.ffn
            return moe * experts * each(frame.dp) + dense * count.dense_parameters(model) * each(sizes.ffn * frame.dp)
        routing = count.router_parameters(model) + count.shared_parameters(model)
        mine = [has_state(model, layer) for layer in range(group, model.num_layers, frame.pairs)]
        states = sum(mine) * count.mixer_parameters(model) if model.mixer else 0
        parameters = states + mine.count(False) * count.attention_parameters(model) + moe * routing
        holders = sizes.attention + (sizes.ffn if model.tied_embeddings else 0)
        embedding = 0.0 if group else count.embedding_parameters(model) * each(holders * frame.dp)
        return parameters * each(sizes.attention * frame.dp) + embedding

    def volume_bytes(self, frame: Frame, ffn: int, *, deduplicate: bool) -> float:
        """Bytes that leave the attention side of one copy per step for other nodes.

        Routed rows forward, and the gradients of what came back; nothing where a copy fits into one node. With
        deduplication a row crosses once per node: of n nodes, n (1 - (1 - 1 / n)^k) / k of the copies, or fewer where
        the model's routing keeps a token to some groups of experts.
        """
        model, workload, gpus = self.case.model, self.case.workload, domain_gpus(self.case.cluster)
        if num_ranks(self.case.cluster) // frame.dp <= gpus or not model.top_k:
            return 0.0
        row, k, nodes = row_width(model) * ELEMENT_BYTES[workload.dtype], model.top_k, -(-ffn // gpus)
        limit = limit_of(model, nodes)
        once = nodes * float(once_per_node(np.array(1 / nodes), k, nodes, limit)) / k if deduplicate else 1.0
        tokens = workload.global_batch * workload.seq_len / frame.dp
        return tokens * moe_layers(model) * k * row * 2 * once

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
        nics = [NicOption(a, f) for a, f in reach if a and f and a + f <= total] if domains(case.cluster) > 1 else []
        reached = node.nic_bytes_per_s * self.machine.calibration.network.efficiency
        return OptionTable(
            tuple(attention),
            tuple(ffn),
            tuple(nics),
            self.volume_bytes(frame, max(ffn_sizes), deduplicate=deduplicate),
            reached,
        )

    def bound_s(self, layout: Disaggregated, recompute: Recompute) -> float:
        """No schedule of `layout` is faster: the slower side's compute, and what crosses the first groups' NICs."""
        frame = Frame(layout.pairs, layout.dp, layout.micro_batch)
        sizes = Sizes(frame, layout.attention_gpus // layout.pairs, layout.ffn_gpus // layout.pairs)
        compute = max(self.attention_s(frame, sizes.attention, recompute.attention), self.ffn_s(sizes, recompute.ffn))
        return max(compute, self.network_s(sizes, deduplicate=layout.deduplicate))

    def _network_s(self, sizes: Sizes, *, deduplicate: bool) -> float:
        """Seconds per step for which the NICs of the first groups send: rows forward and gradients back.

        A_0 sends rows to F_0 and gradients to the last F; F_0 sends gradients to A_0 and rows to the next A. The first
        layer has nothing before it, dense layers are left out.
        """
        case, node, (frame, attention, ffn) = self.case, self.case.cluster.node, sizes
        moe, last, after = self.layers(frame, 0)[1], frame.pairs - 1, 1 % frame.pairs
        if domains(case.cluster) == 1 or not moe:
            return 0.0
        rows = {pair: self.crossing(sizes, *pair, deduplicate) for pair in ((0, 0), (0, last), (after, 0))}
        sent = {range(attention): (0, last), range(frame.pairs * attention, frame.pairs * attention + ffn): (after, 0)}
        most = max(
            (rows[0, 0] * moe + rows[other] * (moe - 1)) / len({rank * node.nics // node.gpus for rank in ranks})
            for ranks, other in sent.items()
        )
        tokens = case.workload.global_batch * case.workload.seq_len / frame.dp
        row = case.model.hidden * ELEMENT_BYTES[case.workload.dtype]
        return most * tokens * row / (node.nic_bytes_per_s * self.machine.calibration.network.efficiency)

    def _crossing(self, sizes: Sizes, source: int, target: int, deduplicate: bool) -> float:
        """Rows per token and layer that leave their node between attention group `source` and FFN group `target`.

        A node with a share f of the FFN group gets 1 - (1 - f)^k rows of a token, or k f with all copies.
        """
        frame, attention, ffn = sizes
        first, k = frame.pairs * attention + target * ffn, self.case.model.top_k
        homes, shares = (
            self.in_domains(range(begin, begin + size)) / size
            for begin, size in ((source * attention, attention), (first, ffn))
        )
        nodes = int((shares > 0).sum())
        rows = once_per_node(shares, k, nodes, limit_of(self.case.model, nodes)) if deduplicate else k * shares
        return float((homes * (rows.sum() - rows)).sum())

    def in_domains(self, ranks: range) -> NDArray[np.float64]:
        """How many of `ranks` each NVLink domain has [domains]."""
        cluster = self.case.cluster
        of_rank = np.array(homes(cluster))[np.arange(ranks.start, ranks.stop) // cluster.node.gpus]
        return np.asarray(np.bincount(of_rank, minlength=domains(cluster)), dtype=np.float64)

    def least_bytes(self, layout: Disaggregated, recompute: Recompute) -> float:
        """A rank of the first group of either side holds no less: `side_bytes` leaves out buffers and logits."""
        frame = Frame(layout.pairs, layout.dp, layout.micro_batch)
        sizes = Sizes(frame, layout.attention_gpus // layout.pairs, layout.ffn_gpus // layout.pairs)
        return max(self.side_bytes(sizes, recompute, side, layout.depth) for side in ("attention", "ffn"))
