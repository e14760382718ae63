"""Seconds of single layers and kernels beside `layers.csv`: forward and backward together."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from moeplan.cost import communication as network
from moeplan.cost import compute
from moeplan.resources import attention
from moeplan.resources.work import Compute, Load, backward, forward
from moeplan.spec.cluster import Gpu
from moeplan.spec.execution import Execution, Linear
from moeplan.spec.model import GroupedQuery, Latent, ModelSpec
from moeplan.validate.kernels import as_measured
from moeplan.validate.names import Names
from moeplan.validate.outcome import Outcome, Skip
from moeplan.validate.tables import Layer

SIZE = 2
TYPES: tuple[tuple[str, Linear], ...] = (("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"), ("block", "fp8_block"), ("fp8", "fp8"))
DISPATCHERS: tuple[tuple[str, Literal["deepep", "hybridep"]], ...] = (("hybridep", "hybridep"), ("deepep", "deepep"))
FIELDS = {
    "tokens": r"(?:tokens/GPU (\d+)|(\d+) tokens/GPU)",
    "hidden": r"hidden (\d+)",
    "experts": r"(\d+) experts",
    "top_k": r"top-(\d+)",
    "width": r"ffn (\d+)",
    "ep": r"EP(\d+)",
}
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


def predict_layer(row: Layer, names: Names) -> Outcome:
    """Seconds of the row's layer or kernel, beside the row's.

    A layer with experts is router, dispatch, experts and combine, one after another, with fused kernels and their
    launches; single parts are timed as kernels, without. Skip where the row has no time, or is nothing that moeplan
    plans or can tell the shape of.
    """
    if not (row.forward_ms or row.backward_ms):
        raise Skip("no time published")
    gpu = names.part(row.hardware, row.gpus).gpu
    if "TFLOPS" in row.forward_ms:
        return _rate(row, names, gpu)
    measured = sum(float(text) for text in (row.forward_ms, row.backward_ms) if text) * 1e-3
    return Outcome(row.id, "layers", _seconds(row, names, gpu), measured, accelerator=gpu.name)


def _seconds(row: Layer, names: Names, gpu: Gpu) -> float:
    part = row.layer.split(" (")[0]
    if part == "MoE layer" and "dispatch" in row.layer:
        return _whole(row, names, gpu)
    if part.startswith("moe."):
        return _part(row, names, gpu, part.removeprefix("moe."))
    if part == "attention" and row.config:
        return _attention(row, names, gpu)
    if part.startswith("attn."):
        raise Skip("attention of DeepSeek-V4 is not planned")
    raise Skip("tokens or shape not published, or beside other work")


def shape_of(row: Layer) -> Shape:
    """What the row's configuration says; Skip where it lacks a number."""
    found = {name: re.search(pattern, row.config) for name, pattern in FIELDS.items()}
    missing = [name for name, match in found.items() if match is None]
    if missing:
        raise Skip(f"{', '.join(missing)} not published")
    return Shape(*(int(next(filter(None, match.groups()))) for match in found.values() if match))


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
    dtype, library = row.dtype.lower(), row.dispatcher.lower()
    linear = next((kind for word, kind in TYPES if word in dtype), "same")
    named = next((kind for word, kind in DISPATCHERS if word in library), "all_to_all")
    return Execution(linear=linear, kernels="fused", dispatcher=named)  # type: ignore[arg-type]


def _load(shape: Shape) -> Load:
    return Load(shape.tokens, shape.tokens * shape.top_k, local_experts=shape.experts / shape.ep)


def _whole(row: Layer, names: Names, gpu: Gpu) -> float:
    """Router, dispatch, experts and combine of one layer, and their backward."""
    shape, execution = shape_of(row), _execution(row)
    model, machine = (
        model_of(shape, gated=bool(re.search(GATED, row.config.lower()))),
        names.machine(row.hardware, row.gpus),
    )
    total = 4 * _dispatch(row, names, shape, execution)
    for kind in ("router", "experts"):
        work = forward(model, kind, _load(shape), seq_len=shape.tokens, dtype="bf16", execution=execution)
        for some in (work, backward(work)):
            total += compute.seconds(some, gpu, machine.calibration, "bf16", execution).seconds
    return total


def _dispatch(row: Layer, names: Names, shape: Shape, execution: Execution) -> float:
    machine, size = names.machine(row.hardware, row.gpus), shape.tokens * shape.top_k * shape.hidden * SIZE
    groups = [range(start, start + shape.ep) for start in range(0, row.gpus, shape.ep)]
    return network.dispatch(*machine, groups, size, shape.top_k, execution.dispatcher).seconds


def _part(row: Layer, names: Names, gpu: Gpu, part: str) -> float:
    """One part of a layer with experts, as kernels alone."""
    shape, execution = shape_of(row), _execution(row)
    if part in ("dispatch", "combine"):
        return 2 * _dispatch(row, names, shape, execution)
    if part not in ("router", "grouped_gemm"):
        raise Skip("the fastest of several launches, nobody says which")
    gated = not re.search("gelu|relu", row.config.lower())
    kind = "router" if part == "router" else "experts"
    work = forward(
        model_of(shape, gated=gated), kind, _load(shape), seq_len=shape.tokens, dtype="bf16", execution=execution
    )
    products = [kernel for kernel in work if kernel.kind == "grouped_gemm"]
    return _alone(products or work[:2], names, row, gpu, execution)


def _alone(work: list[Compute], names: Names, row: Layer, gpu: Gpu, execution: Execution) -> float:
    """Seconds of kernels and their backward without launches."""
    calibration = as_measured(names.calibration(row.hardware))
    both = [compute.parts(some, gpu, calibration, execution, "bf16")[0] for some in (work, backward(work))]
    return sum(sum(parts) - parts.host for parts in both)


def _attention(row: Layer, names: Names, gpu: Gpu) -> float:
    """The attention core of the model that the configuration begins with."""
    model = names.model(row.config.split(" MoE layers")[0])
    tokens, sequences = (re.search(pattern, row.config) for pattern in (r"seq (\d+)", r"micro-batch (\d+)"))
    if tokens is None or sequences is None:
        raise Skip("sequence or micro-batch not published")
    return _core(model, int(tokens[1]), int(sequences[1]), names, row, gpu)


def _core(model: ModelSpec, seq_len: int, sequences: int, names: Names, row: Layer, gpu: Gpu) -> float:
    load = Load(float(seq_len * sequences), 0.0)
    work = forward(model, "attention", load, seq_len=seq_len, dtype="bf16", moe=False)
    return _alone([kernel for kernel in work if kernel.kind == "attention"], names, row, gpu, Execution())


def _rate(row: Layer, names: Names, gpu: Gpu) -> Outcome:
    """An attention kernel by its rates: forward and backward of one sequence, 1 and 2.5 times its FLOP."""
    tokens = re.search(r"attention seq (\d+)", row.layer)
    heads = next((shape for word, shape in WIDTHS.items() if word in row.layer), None)
    if tokens is None or heads is None:
        raise Skip("tokens or shape not published, or beside other work")
    forward_rate, backward_rate = (float(text.split()[0]) * 1e12 for text in (row.forward_ms, row.backward_ms))
    shape = model_of(Shape(1, 7168, 1, 1, 1, 1), gated=True)
    model = ModelSpec(**{name: getattr(shape, name) for name in shape.__struct_fields__} | {"attention": heads})
    seq_len = int(tokens[1])
    widths = attention.core(model)
    flop = 2 * seq_len * attention.pairs_per_token(seq_len) * (widths.queries + widths.output)
    measured = flop / forward_rate + 2.5 * flop / backward_rate
    return Outcome(row.id, "layers", _core(model, seq_len, 1, names, row, gpu), measured, accelerator=gpu.name)
