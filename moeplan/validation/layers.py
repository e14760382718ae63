"""Seconds of single layers and kernels beside `layers.csv`: forward and backward together, or the one published."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from msgspec import structs

from moeplan.cost import communication as network
from moeplan.cost import compute
from moeplan.resources import attention
from moeplan.resources.work import Compute, Load, backward, forward
from moeplan.spec.cluster import Gpu
from moeplan.spec.execution import Execution
from moeplan.spec.model import GroupedQuery, Latent, ModelSpec
from moeplan.validation.cells import COUNT, Times, count, times_of
from moeplan.validation.collectives import check_size
from moeplan.validation.kernels import as_measured
from moeplan.validation.names import Names
from moeplan.validation.outcome import Outcome, Skip, skipping
from moeplan.validation.tables import Layer
from moeplan.validation.words import linear

SIZE = 2
KINDS: tuple[Literal["router", "experts"], ...] = ("router", "experts")
DISPATCHERS: tuple[tuple[str, Literal["deepep", "hybridep"]], ...] = (("hybridep", "hybridep"), ("deepep", "deepep"))
FIELDS = {
    "tokens": f"(?:tokens/GPU {COUNT}|{COUNT} tokens/GPU)",
    "hidden": f"hidden {COUNT}",
    "experts": f"{COUNT} experts",
    "top_k": f"top-{COUNT}",
    "width": f"ffn {COUNT}",
    "ep": f"EP{COUNT}",
}
STRANGE = "tokens or shape not published, or beside other work"
GATED = r"swiglu(?! off)"
WIDTHS = {
    "MLA": Latent(heads=128, q_lora_rank=1536, kv_lora_rank=512, nope_head_dim=128, rope_head_dim=64, v_head_dim=128)
}
"""Heads of attention kernels that a row names by their kind: those of DeepSeek-V3."""


class Shape(NamedTuple):
    """A layer with experts as a row describes it."""

    tokens: int
    hidden: int
    experts: int
    top_k: int
    width: int
    ep: int


class Job(NamedTuple):
    """A row with its machine, how it computes, and the passes that were timed."""

    row: Layer
    names: Names
    gpu: Gpu
    execution: Execution
    passes: tuple[bool, bool]
    """Whether forward and backward count."""

    def timed(self, work: list[Compute]) -> list[list[Compute]]:
        """`work` and what its backward is, as far as they count."""
        return [some for some, counts in zip((work, backward(work)), self.passes, strict=True) if counts]


def predict_layer(row: Layer, names: Names) -> Outcome:
    """Seconds of the row's layer or kernel, beside the row's; of one pass where only that was published.

    A layer with experts is router, dispatch, experts and combine, one after another, with fused kernels and their
    launches; single parts are timed as kernels, without. Skip where the row has no time, or is nothing that moeplan
    plans, prices or can tell the shape of; SpecError where a number of it cannot be read.
    """
    times = times_of(row)
    if times == (None, None, False):
        raise Skip("no time published", "forward_ms, backward_ms: both are empty: no time published")
    gpu = names.part(row.hardware, row.gpus).gpu
    passes = (times.forward is not None, times.backward is not None)
    job = Job(row, names, gpu, _execution(row), passes)
    if times.rates:
        seconds, measured = _rate(job, times)
    else:
        seconds, measured = _seconds(job), ((times.forward or 0.0) + (times.backward or 0.0)) * 1e-3
    return Outcome(row.id, "layers", seconds, measured, accelerator=gpu.name)


def _seconds(job: Job) -> float:
    row = job.row
    part = row.layer.split(" (")[0]
    if part == "MoE layer" and "dispatch" in row.layer:
        return _whole(job, shape_of(row))
    if part.startswith("moe."):
        return _part(job, shape_of(row), part.removeprefix("moe."))
    if part == "attention" and row.config:
        return _attention(job)
    if part.startswith("attn."):
        raise Skip("attention of DeepSeek-V4 is not planned")
    raise Skip(STRANGE, f"layer: {row.layer!r}: {STRANGE}")


def shape_of(row: Layer) -> Shape:
    """What the row's configuration says; Skip where it lacks a number, or where they do not go together."""
    found = {name: count(pattern, row.config, "config") for name, pattern in FIELDS.items()}
    if missing := [name for name, value in found.items() if value is None]:
        raise Skip(f"{', '.join(missing)} not published", f"config: {row.config!r}: {', '.join(missing)} not published")
    shape = Shape(*(value or 0 for value in found.values()))
    if row.gpus % shape.ep or shape.experts % shape.ep or shape.top_k > shape.experts:
        told = (
            f"config: {shape.experts} experts, top-{shape.top_k}, EP{shape.ep} and {row.gpus} GPUs do not go together"
        )
        raise Skip("experts, EP and GPUs do not go together", told)
    return shape


def model_of(shape: Shape, *, gated: bool) -> ModelSpec:
    """A model with that layer; what the layer does not have is small."""
    return ModelSpec(
        name="layer",
        num_layers=1,
        hidden=shape.hidden,
        vocab=1,
        attention=GroupedQuery(heads=1, kv_heads=1, head_dim=128),
        experts=shape.experts,
        top_k=shape.top_k,
        expert_width=shape.width,
        gated=gated,
    )


def _execution(row: Layer) -> Execution:
    library = row.dispatcher.lower()
    named = next((kind for word, kind in DISPATCHERS if word in library), "all_to_all")
    return Execution(linear=linear(row.dtype), kernels="fused", dispatcher=named)  # type: ignore[arg-type]


def _load(shape: Shape) -> Load:
    return Load(shape.tokens, shape.tokens * shape.top_k, local_experts=shape.experts / shape.ep)


def _work(job: Job, shape: Shape, kind: Literal["router", "experts"], *, gated: bool) -> list[Compute]:
    model = model_of(shape, gated=gated)
    return forward(model, kind, _load(shape), seq_len=shape.tokens, dtype="bf16", execution=job.execution)


def _whole(job: Job, shape: Shape) -> float:
    """Router, dispatch, experts and combine of one layer, and their backward."""
    gated = bool(re.search(GATED, job.row.config.lower()))
    total = 2 * sum(job.passes) * _dispatch(job, shape)
    calibration = job.names.calibration(job.row.hardware)
    with skipping():
        for kind in KINDS:
            for some in job.timed(_work(job, shape, kind, gated=gated)):
                total += compute.seconds(some, job.gpu, calibration, "bf16", job.execution).seconds
    return total


def _dispatch(job: Job, shape: Shape) -> float:
    """One exchange of all rows."""
    gpus = job.row.gpus
    check_size(gpus, shape.ep)
    machine, size = job.names.machine(job.row.hardware, gpus), shape.tokens * shape.top_k * shape.hidden * SIZE
    groups = [range(start, start + shape.ep) for start in range(0, gpus, shape.ep)]
    with skipping():
        return network.dispatch(*machine, groups, size, shape.top_k, job.execution.dispatcher).seconds


def _part(job: Job, shape: Shape, part: str) -> float:
    """One part of a layer with experts, as kernels alone."""
    if part in ("dispatch", "combine"):
        return sum(job.passes) * _dispatch(job, shape)
    if part not in ("router", "grouped_gemm"):
        raise Skip("the fastest of several launches, nobody says which")
    gated = not re.search("gelu|relu", job.row.config.lower())
    work = _work(job, shape, "router" if part == "router" else "experts", gated=gated)
    products = [kernel for kernel in work if kernel.kind == "grouped_gemm"]
    return _alone(job, products or work[:2])


def _alone(job: Job, work: list[Compute]) -> float:
    """Seconds of kernels and their backward without launches."""
    calibration = as_measured(job.names.calibration(job.row.hardware))
    with skipping():
        each = [compute.parts(some, job.gpu, calibration, job.execution, "bf16")[0] for some in job.timed(work)]
    return sum(sum(parts) - parts.host for parts in each)


def _attention(job: Job) -> float:
    """The attention core of the model that the configuration begins with."""
    config = job.row.config
    model = job.names.model(config.split(" MoE layers")[0])
    tokens = count(f"seq {COUNT}", config, "config")
    sequences = count(f"micro-batch {COUNT}", config, "config")
    if tokens is None or sequences is None:
        raise Skip("sequence or micro-batch not published")
    return _core(job, model, tokens, sequences)


def _core(job: Job, model: ModelSpec, seq_len: int, sequences: int) -> float:
    load = Load(float(seq_len * sequences), 0.0)
    work = forward(model, "attention", load, seq_len=seq_len, dtype="bf16", moe=False)
    kernels = [kernel for kernel in work if kernel.kind == "attention"]
    return _alone(job._replace(execution=Execution()), kernels)


def _rate(job: Job, times: Times) -> tuple[float, float]:
    """An attention kernel by its rates: forward and backward of one sequence, 1 and 2.5 times its FLOP."""
    layer = job.row.layer
    seq_len = count(f"attention seq {COUNT}", layer, "layer")
    heads = next((shape for word, shape in WIDTHS.items() if word in layer), None)
    if seq_len is None or heads is None:
        raise Skip(STRANGE, f"layer: {layer!r}: {STRANGE}")
    model = structs.replace(model_of(Shape(1, 7168, 1, 1, 1, 1), gated=True), attention=heads)
    widths = attention.core(model)
    flop = 2 * seq_len * attention.pairs_per_token(seq_len) * (widths.queries + widths.output)
    rates = zip((1.0, 2.5), (times.forward, times.backward), strict=True)
    measured = sum(flop * share / (rate * 1e12) for share, rate in rates if rate)
    return _core(job, model, seq_len, 1), measured
