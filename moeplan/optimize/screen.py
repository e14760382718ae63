"""Cheap lower bounds on a mesh layout's step and memory, so that few layouts have to be built and simulated.

Both hold for every schedule of the family: a position computes all its micro-batches, and the last position starts
only after one micro-batch has passed all the others, which it must pass again on the way back.
"""

from __future__ import annotations

from functools import cache

from moeplan.cost import communication as network
from moeplan.cost.compute import seconds
from moeplan.cost.durations import Machine
from moeplan.layout import Colocated, Recompute, split_evenly
from moeplan.resources import parameters as count
from moeplan.resources.work import ELEMENT_BYTES, Load, backward, forward
from moeplan.spec.case import Case
from moeplan.spec.workload import gradient_bytes

RECOMPUTE = tuple(
    Recompute(attention=a, ffn=f)  # type: ignore[arg-type]
    for a in ("none", "full")
    for f in ("none", "experts", "full")
)
"""All rules, cheapest in time first per side."""


class Screen:
    """Bounds for one case on one machine; remembers the seconds of a layer by micro-batch and degrees."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case, self.machine = case, machine
        self.layer = cache(self._layer)
        self.exchange = cache(self._exchange)

    def step_s(self, layout: Colocated, recompute: Recompute) -> float:
        """No schedule of `layout` is faster: max over positions i of m layers(i) + layers of stages 0..i-1, both ways."""
        model, batch = self.case.model, self.case.workload.global_batch
        microbatches = -(-batch // (layout.micro_batch * layout.dp))
        b = min(layout.micro_batch, -(-batch // layout.dp))
        one = self.layer(b, layout.tp, layout.ep, recompute)
        one += self.exchange(b, layout.tp, layout.ep) * (5 if recompute.ffn == "full" else 4)
        full = microbatches - (batch % (layout.micro_batch * layout.dp) != 0)
        counts = split_evenly(model.num_layers, layout.pp * layout.vpp)
        return one * max(full * sum(counts[i :: layout.pp]) + sum(counts[:i]) for i in (0, layout.pp - 1))

    def static_bytes(self, layout: Colocated) -> float:
        """The first position holds no less: its layers' dense parameters over tp, its experts over ep."""
        model, memory = self.case.model, self.case.memory
        per_stage = layout.tp * layout.dp
        layers = sum(split_evenly(model.num_layers, layout.pp * layout.vpp)[:: layout.pp])
        shards = memory.optimizer_shards
        fixed = memory.weight_bytes + gradient_bytes(memory)
        dense = (count.attention_parameters(model) + count.shared_parameters(model)) / layout.tp
        experts = count.expert_parameters(model) * model.experts / layout.ep
        dense *= fixed + memory.optimizer_bytes / (shards or layout.dp)
        experts *= fixed + memory.optimizer_bytes / (shards or per_stage // layout.ep)
        moe = max(layers - model.dense_layers, 0)
        return layers * dense + moe * experts

    def _layer(self, sequences: int, tp: int, ep: int, recompute: Recompute) -> float:
        """Compute seconds of one MoE layer and micro-batch, recomputation included."""
        case = self.case
        tokens = sequences * case.workload.seq_len
        load = Load(tokens, tokens * case.model.top_k / tp, tp, 1, case.model.experts / ep)
        total = 0.0
        for kind, again in (("attention", recompute.attention != "none"), ("experts", recompute.ffn != "none")):
            work = forward(case.model, kind, load, seq_len=case.workload.seq_len, dtype=case.workload.dtype)
            parts = [work, backward(work), *([work] if again else [])]
            calibration = self.machine.calibration
            total += sum(seconds(w, case.cluster.gpu, calibration, case.workload.dtype).seconds for w in parts)
        return total

    def _exchange(self, sequences: int, tp: int, ep: int) -> float:
        """Seconds of one all-to-all of the first expert group alone: no other group of the stage in its way."""
        case = self.case
        row = case.model.hidden * ELEMENT_BYTES[case.workload.dtype]
        size = sequences * case.workload.seq_len / tp * case.model.top_k * row
        return network.all_to_all(*self.machine, [range(ep)], size).seconds
