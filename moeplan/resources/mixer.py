"""Mixers that read a state instead of earlier tokens: their matrices, vectors, what their scan does, and its work.

Mamba-2 (arXiv 2405.21060) and the gated delta rule (arXiv 2412.06464). Heads are divided over tensor-parallel ranks as
those of attention are; a group of a Mamba-2 mixer that fewer ranks share than there are is held by several.
"""

from __future__ import annotations

from typing import NamedTuple

from moeplan.resources.attention import Projection, shares
from moeplan.spec.model import Mamba2, Mixer, ModelSpec


class Widths(NamedTuple):
    """Elements per token inside a mixer on one tensor-parallel rank."""

    convolved: float
    """What the convolution reads and writes."""
    output: float
    """What the scan writes; the gate has as many."""
    steps: float
    """Step sizes and decays: one number each per head."""


def mixer_of(model: ModelSpec) -> Mixer:
    """The model's mixer; a model that `spec.model.check_model` has passed has one wherever its pattern says M."""
    if model.mixer is None:
        raise TypeError(f"model {model.name} has no mixer")
    return model.mixer


def projections(model: ModelSpec) -> list[Projection]:
    """All matrices of one mixer, in the order in which rows pass them."""
    m, hidden = mixer_of(model), model.hidden
    if isinstance(m, Mamba2):
        inner = m.heads * m.head_dim
        return [
            Projection("in", hidden, 2 * inner, m.heads),
            Projection("in", hidden, 2 * m.groups * m.state, m.groups),
            Projection("in", hidden, m.heads, m.heads),
            Projection("output", inner, hidden, m.heads, from_heads=True),
        ]
    keys, values = m.key_heads * m.key_head_dim, m.value_heads * m.value_head_dim
    return [
        Projection("in", hidden, 2 * keys, m.key_heads),
        Projection("in", hidden, 2 * values, m.value_heads),
        Projection("decay", hidden, 2 * m.value_heads, m.value_heads),
        Projection("output", values, hidden, m.value_heads, from_heads=True),
    ]


def widths(model: ModelSpec, tp: int = 1) -> Widths:
    """Widths inside one mixer on one of `tp` ranks."""
    m = mixer_of(model)
    if isinstance(m, Mamba2):
        inner, shared = m.heads * m.head_dim / tp, 2 * m.groups * m.state / min(tp, m.groups)
        return Widths(inner + shared, inner, m.heads / tp)
    keys, values = 2 * m.key_heads * m.key_head_dim / min(tp, m.key_heads), m.value_heads * m.value_head_dim / tp
    return Widths(keys + values, values, 2 * m.value_heads / tp)


def vectors(model: ModelSpec, tp: int = 1) -> float:
    """Parameters of one mixer that are no matrices, on one of `tp` ranks.

    The convolution's weights (and bias), per head a decay and a step bias (Mamba-2: and a skip), and the norm of the
    scan's output: all of it in Mamba-2, one head in the gated delta rule.
    """
    m, w = mixer_of(model), widths(model, tp)
    if isinstance(m, Mamba2):
        return w.convolved * (m.conv + m.conv_bias) + 3 * m.heads / tp + w.output
    return w.convolved * m.conv + 2 * m.value_heads / tp + m.value_head_dim


def parameters(model: ModelSpec, tp: int = 1) -> float:
    """Parameters of one mixer that one of `tp` ranks holds, without the norm before it."""
    return sum(p.inputs * p.outputs / shares(p, tp) for p in projections(model)) + vectors(model, tp)


def scan_flop(model: ModelSpec, tp: int = 1) -> float:
    """FLOP per token of one forward pass over the state, on one of `tp` ranks.

    Mamba-2: 7 inner state, of which the chunked algorithm has as many within a twentieth at chunks of 128. Gated delta
    rule: 8 key_head_dim value_head_dim per value head, four products of a vector and the state. Both as Megatron-LM
    counts them (training.py, 2026).
    """
    m = mixer_of(model)
    if isinstance(m, Mamba2):
        return 7 * m.heads * m.head_dim * m.state / tp
    return 8 * m.value_heads * m.key_head_dim * m.value_head_dim / tp


def conv_flop(model: ModelSpec, tp: int = 1) -> float:
    """FLOP per token of the convolution's forward pass on one of `tp` ranks: 2 per weight."""
    return 2 * widths(model, tp).convolved * mixer_of(model).conv


def kept_elements(model: ModelSpec, tp: int = 1) -> float:
    """Elements per token that autograd keeps inside one mixer on one of `tp` ranks, its input and residual left out.

    What the convolution reads and writes, the scan's output before and after its norm and gate, the gate, and the step
    sizes; states at the borders of chunks are computed again (mamba_ssm, flash-linear-attention).
    """
    w = widths(model, tp)
    return 2 * w.convolved + 3 * w.output + w.steps


def stream_elements(model: ModelSpec, tp: int = 1) -> float:
    """Elements per token that convolution, scan, norm and gate read and write in one forward pass (fused kernels)."""
    w = widths(model, tp)
    return 3 * w.convolved + 6 * w.output + 2 * w.steps
