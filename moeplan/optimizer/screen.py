"""Cheap lower bounds on a mesh layout's step and memory, so that few layouts have to be built and simulated.

Both hold for every schedule of the family: a position computes all its micro-batches, and the last position starts
only after one micro-batch has passed all the others, which it must pass again on the way back.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal

from moeplan.cost import communication as network
from moeplan.cost.compute import seconds
from moeplan.cost.durations import Machine
from moeplan.cost.edges import routed_cost
from moeplan.cost.exposure import exposed
from moeplan.layout import Colocated, Piece, Recompute
from moeplan.mesh import layers_of
from moeplan.resources import parameters as count
from moeplan.resources.kernels import NARROW_BYTES
from moeplan.resources.memory import piece_bytes
from moeplan.resources.traffic import split_elements
from moeplan.resources.work import ELEMENT_BYTES, Load, backward, forward
from moeplan.spec.case import Case
from moeplan.spec.model import ModelSpec, has_ffn, has_state, is_dense, moe_windows, row_width, windows
from moeplan.spec.workload import bytes_of_one


class Screen:
    """Bounds for one case on one machine; remembers the seconds of a layer by micro-batch and degrees."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case, self.machine = case, machine
        self.layer = cache(self._layer)
        self.exchange = cache(self._exchange)
        self.kept = cache(self._kept)
        self.head = cache(self._head)

    def step_s(self, layout: Colocated, recompute: Recompute) -> float:
        """No schedule of `layout` is faster: max over i of m layers(i) + layers of stages 0..i-1, both ways.

        What stages 0..i-1 compute again may be done before the gradient comes, and does not count.
        """
        batch = self.case.workload.global_batch
        microbatches = -(-batch // (layout.micro_batch * layout.dp))
        b = min(layout.micro_batch, -(-batch // layout.dp))
        stage_s = self._stages_s(layout, recompute, b)
        passed_s = self._stages_s(layout, Recompute(), b)
        full = microbatches - (batch % (layout.micro_batch * layout.dp) != 0)
        last = full * self.head(b, layout.tp)
        ends = {0: 0.0, layout.pp - 1: last}
        return max(full * sum(stage_s[i :: layout.pp]) + sum(passed_s[:i]) + head_s for i, head_s in ends.items())

    def _stages_s(self, layout: Colocated, recompute: Recompute, b: int) -> list[float]:
        """Seconds of each stage for a micro-batch of `b` sequences, both ways."""
        there_s, back_s = (self.exchange(b, layout.tp, layout.ep, rows) for rows in (self.case.execution.rows, "same"))
        exchanges_s = there_s * (2 if recompute.ffn == "full" else 1) + 3 * back_s
        moe_s = [
            sum(n * (self.layer(b, layout.tp, layout.ep, recompute, w) + exchanges_s) for w, n in stage.items())
            for stage in self.stages(layout)
        ]
        dense_s = [
            sum(n * self.layer(b, layout.tp, 1, recompute, w, moe=False) for w, n in stage.items())
            for stage in self.dense(layout)
        ]
        return [sum(both) for both in zip(moe_s, dense_s, strict=True)]

    def stages(self, layout: Colocated) -> list[dict[int, int]]:
        """MoE layers of each stage by the window that their attention sees."""
        return [moe_windows(self.case.model, layers) for layers in self._layers(layout)]

    def dense(self, layout: Colocated) -> list[Counter[int]]:
        """Dense layers of each stage by the window that their attention sees."""
        model = self.case.model
        return [Counter(windows(model, mine)) - Counter(moe_windows(model, mine)) for mine in self._layers(layout)]

    def _layers(self, layout: Colocated) -> list[range]:
        ends = accumulate(layers_of(self.case.model.num_layers, layout), initial=0)
        return [range(start, end) for start, end in pairwise(ends)]

    def static_bytes(self, layout: Colocated) -> float:
        """The first position holds no less: its layers' dense parameters over tp, its experts over ep."""
        model, memory = self.case.model, self.case.memory
        per_stage = layout.tp * layout.dp
        layers = sum(layers_of(model.num_layers, layout)[:: layout.pp])
        moe = sum(sum(stage.values()) for stage in self.stages(layout)[:: layout.pp])
        bare = 0 if _some_without_ffn(model) else count.dense_parameters(model)
        ffn = moe * count.shared_parameters(model) + (layers - moe) * bare
        mixers = count.attention_parameters(model)
        mixers = min(mixers, count.mixer_parameters(model)) if model.mixer else mixers
        dense = (layers * mixers + ffn) / layout.tp
        experts = moe * count.expert_parameters(model) * model.experts / layout.ep
        return dense * bytes_of_one(memory, layout.dp) + experts * bytes_of_one(memory, per_stage // layout.ep)

    def least_bytes(self, layout: Colocated, recompute: Recompute, schedule: str) -> float:
        """The first position holds no less: static bytes, and what its live chunks keep.

        Live chunks are m under GPipe, else min(m vpp, pp) for one chunk per position, and
        min(m vpp, 2 (pp - 1) + (vpp - 1) pp + 1) for several.
        """
        batch, pp, vpp = self.case.workload.global_batch, layout.pp, layout.vpp
        microbatches = -(-batch // (layout.micro_batch * layout.dp))
        live = min(microbatches * vpp, pp if vpp == 1 else 2 * (pp - 1) + (vpp - 1) * pp + 1)
        live = microbatches if schedule == "gpipe" else live
        layers = min(sum(stage.values()) for stage in self.stages(layout))
        b = min(layout.micro_batch, -(-batch // layout.dp))
        return self.static_bytes(layout) + live * layers * self.kept(b, layout.tp, recompute)

    def _kept(self, sequences: int, tp: int, recompute: Recompute) -> float:
        """Bytes that one MoE layer keeps per micro-batch: the least where some have attention, some a mixer."""
        case = self.case
        tokens = sequences * case.workload.seq_len
        load = Load(tokens, tokens * case.model.top_k / tp, tp)
        model = case.model
        last = {has_state(model, layer): layer for layer in range(model.num_layers) if not is_dense(model, layer)}
        if not last:
            return 0.0
        kinds: tuple[Literal["attention", "experts"], ...] = ("attention", "experts")
        return min(
            sum(piece_bytes(case, Piece(kind=kind, layer=layer, stage=0), recompute, load).alive for kind in kinds)
            for layer in last.values()
        )

    def _layer(self, sequences: int, tp: int, ep: int, recompute: Recompute, window: int, *, moe: bool = True) -> float:
        """Compute seconds of one layer, MoE or dense, and micro-batch, recomputation included.

        Where some layers have no FFN, those without experts count as if none had one.
        """
        case = self.case
        tokens = sequences * case.workload.seq_len
        load = Load(tokens, tokens * case.model.top_k / tp, tp, 1, case.model.experts / ep)
        total = 0.0
        ffn = "experts" if moe else "dense"
        kinds = (("attention", recompute.attention != "none"), (ffn, recompute.ffn != "none"))
        for kind, again in kinds[:1] if not moe and _some_without_ffn(case.model) else kinds:
            seq_len, dtype = case.workload.seq_len, case.workload.dtype
            work = forward(
                case.model,
                kind,
                load,
                seq_len=seq_len,
                dtype=dtype,
                moe=moe,
                window=window,
                execution=case.execution,
            )
            parts = [work, backward(work), *([work] if again else [])]
            calibration = self.machine.calibration
            total += sum(seconds(w, case.cluster.gpu, calibration, dtype, case.execution).seconds for w in parts)
        return total + 2 * exposed(case, "tensor") * self._tensor_parallel(sequences, tp, moe)

    def _head(self, sequences: int, tp: int) -> float:
        """Compute seconds of the head and one micro-batch, forward and backward."""
        case = self.case
        load = Load(sequences * case.workload.seq_len, 0.0, tp)
        work = forward(
            case.model,
            "head",
            load,
            seq_len=case.workload.seq_len,
            dtype=case.workload.dtype,
            execution=case.execution,
        )
        gpu, calibration, dtype = case.cluster.gpu, self.machine.calibration, case.workload.dtype
        return sum(seconds(w, gpu, calibration, dtype, case.execution).seconds for w in (work, backward(work)))

    def _tensor_parallel(self, sequences: int, tp: int, moe: bool) -> float:
        """Seconds of the collectives around one attention block, and a dense FFN, one way, of the first group alone."""
        size = sequences * self.case.workload.seq_len * ELEMENT_BYTES[self.case.workload.dtype]
        passed = split_elements(self.case.model, "attention", "F", moe=moe)
        alone = moe or _some_without_ffn(self.case.model)
        passed += () if alone else split_elements(self.case.model, "dense", "F", moe=False)
        return sum(network.all_gather(*self.machine, [range(tp)], elements * size).seconds for elements in passed)

    def _exchange(self, sequences: int, tp: int, ep: int, rows: str) -> float:
        """Seconds that compute waits for one dispatch of the first expert group alone, by the fastest allowed way.

        No other group of the stage is in its way; what routes the rows does not count. `rows` as `execution.rows`.
        """
        case = self.case
        element = NARROW_BYTES["fp8_block"] if rows == "fp8" else ELEMENT_BYTES[case.workload.dtype]
        size = sequences * case.workload.seq_len / tp * case.model.top_k * row_width(case.model) * element
        size *= case.execution.capacity or 1.0
        cost = routed_cost(case, self.machine, [range(ep)], size, case.execution.exchange)
        return cost.seconds / self.machine.calibration.constants.expert_bandwidth


def _some_without_ffn(model: ModelSpec) -> bool:
    """Whether some layers of `model` have no FFN at all."""
    return not all(has_ffn(model, layer) for layer in range(model.num_layers))
