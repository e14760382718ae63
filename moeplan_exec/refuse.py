"""What the executor cannot run, by name and before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from moeplan.errors import SpecError
from moeplan.layout import StageGraph
from moeplan.plan import Plan, world_size
from moeplan.spec.execution import Execution
from moeplan.spec.model import GroupedQuery, Latent, ModelSpec, windows

ALGORITHMS = {
    "local": ("none",),
    "send": ("p2p",),
    "dispatch": ("flat", "two_level", "halo", "halo_chunked"),
    "combine": ("flat", "two_level", "halo", "halo_chunked"),
    "m2n": ("p2p", "deduplicated"),
    "n2m": ("p2p", "deduplicated"),
}
"""By kind of edge."""

RUNS = {
    "gated": True,
    "ffn_bias": False,
    "scoring": "softmax",
    "shared_gate": False,
    "expert_groups": 1,
    "routed_scale": 1.0,
    "head_bias": False,
    "norm": "rms",
    "rope_scaled": False,
    "pattern": "",
    "expert_latent": 0,
}
"""What the executor's transformer computes, by field of the model; without a pattern there is no mixer."""


def refuse(plan: Plan) -> None:
    """SpecError with the first thing in `plan` that cannot be run, and what can."""
    for reason in reasons(plan):
        raise SpecError(f"run: {reason}")


def check_world(plan: Plan, world: int) -> None:
    """SpecError unless as many ranks were started as `plan` uses."""
    if world != world_size(plan):
        raise SpecError(f"run: {world} ranks were started, the plan uses {world_size(plan)}")


def reasons(plan: Plan) -> Iterator[str]:
    """All that stands in the way of running `plan`, one line each."""
    graph = plan.graph
    yield from _model(plan.case.model, plan.case.workload.seq_len)
    for name, degree in _degrees(plan).items():
        if degree != 1:
            yield f"{name} {degree} cannot be run; tensor and context parallelism run with degree 1"
    yield from _carried_out(plan)
    if graph.shared_side != "attention":
        yield f"shared experts on the {graph.shared_side} side cannot be run; they run on the attention side"
    for edge in graph.edges:
        if edge.algorithm not in ALGORITHMS[edge.kind]:
            yield f"{edge.kind} by {edge.algorithm!r} cannot be run, {' and '.join(ALGORITHMS[edge.kind])} can"
    if plan.recompute.ffn == "full" and any(edge.kind == "m2n" for edge in graph.edges):
        yield "recompute ffn 'full' cannot be run across an M2N; 'none' and 'experts' can"
    if any(len(homes) != 1 for homes in graph.stages):
        yield "stages with several homes cannot be run; one position per stage can"
    yield from _expert_groups(graph)


def _carried_out(plan: Plan) -> Iterator[str]:
    """Ways of carrying out a step that the executor does not know."""
    for name in Execution.__struct_fields__:
        found, right = getattr(plan.case.execution, name), getattr(Execution(), name)
        if found != right and name != "exchange":
            yield f"execution.{name} {_text(found)} cannot be run, {_text(right)} can"
    if plan.case.memory.zero > 1:
        yield f"memory.zero {plan.case.memory.zero} cannot be run, 0 and 1 can"
    if plan.case.memory.mtp and plan.case.model.mtp_layers:
        yield f"memory.mtp true with mtp_layers {plan.case.model.mtp_layers} cannot be run, false can"
    if plan.case.memory.dropout:
        yield "memory.dropout true cannot be run, false can"
    if plan.case.memory.offload:
        yield f"memory.offload {plan.case.memory.offload:g} cannot be run, 0 can"
    if plan.recompute.modules:
        yield f"recompute of modules {', '.join(plan.recompute.modules)} cannot be run, of whole pieces can"


def _model(model: ModelSpec, seq_len: int) -> Iterator[str]:
    """What the executor's transformer does not compute."""
    if isinstance(model.attention, Latent):
        yield "attention of kind 'mla' cannot be run, 'gqa' can"
    else:
        yield from _grouped(model, model.attention, seq_len)
    for name, right in RUNS.items():
        found = getattr(model, name)
        if found != right:
            yield f"model.{name} {_text(found)} cannot be run, {_text(right)} can"


def _grouped(model: ModelSpec, shape: GroupedQuery, seq_len: int) -> Iterator[str]:
    for name in ("bias", "sinks", "output_gate"):
        if getattr(shape, name):
            yield f"attention.{name} true cannot be run, false can"
    if shape.qk_norm and shape.qk_norm_weights != "head":
        yield f"attention.qk_norm_weights {shape.qk_norm_weights!r} cannot be run, 'head' can"
    seen = min((w for w in windows(model, range(model.num_layers)) if w > 0), default=seq_len)
    if seen < seq_len:
        yield f"attention.window {seen} cannot be run on sequences of {seq_len} tokens; 0, or {seq_len} and more, can"


def _text(value: object) -> str:
    """`value` as a user writes it in TOML."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _degrees(plan: Plan) -> dict[str, int]:
    return {"tp": plan.graph.tp, "cp": plan.graph.cp, "etp": plan.graph.etp}


def _expert_groups(graph: StageGraph) -> Iterator[str]:
    for piece in graph.pieces:
        group = len(graph.positions[graph.stages[piece.stage][0]].ranks[0])
        if piece.kind == "experts" and group != graph.ep:
            yield f"{group} ranks that hold the experts of one piece in {graph.ep} shares cannot be run; one each can"
