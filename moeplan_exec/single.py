"""The reference: the same model in one process, written straight, without stages, dispatch or hand-made gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeplan.spec.model import ModelSpec, grouped, is_dense
from moeplan.spec.workload import Workload
from moeplan_exec import data
from moeplan_exec.adam import moments_of, update
from moeplan_exec.parameters import Initialise, all_shapes, first_values

Weights = dict[str, Tensor]


@dataclass
class Reference:
    """What one process computed, by step."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    choices: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """(step, layer) to expert numbers [sequences, seq_len, k]."""
    margin: float = float("inf")
    """Smallest gap between the last expert chosen and the first left out, as probabilities."""


def train(
    model: ModelSpec,
    workload: Workload,
    *,
    steps: int,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    lr: float = 1e-3,
    initialise: Initialise | None = None,
) -> Reference:
    """Train `model` for some steps on all sequences of each step at once."""
    weights = {n: first_values(seed, n, s, initialise).to(dtype).requires_grad_() for n, s in all_shapes(model).items()}
    moments = {name: moments_of(weight.detach()) for name, weight in weights.items()}
    reference = Reference()
    for step in range(steps):
        size = {"seq_len": workload.seq_len, "vocab": model.vocab}
        loss = _loss(model, weights, data.sequences(seed, step, range(workload.global_batch), **size), step, reference)
        loss.backward()  # type: ignore[no-untyped-call]
        reference.losses.append(loss.item())
        reference.gradients.append({})
        for name, weight in weights.items():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            reference.gradients[-1][name] = gradient
            update(weight.detach(), gradient, moments[name], step=step + 1, lr=lr)
            weight.grad = None
    return reference


def _loss(model: ModelSpec, weights: Weights, tokens: Tensor, step: int, reference: Reference) -> Tensor:
    """Mean cross entropy of tokens [B, S + 1]."""
    x = weights["embedding"][tokens[:, :-1]]
    for layer in range(model.num_layers):
        x = x + _attention(model, weights, f"layers.{layer}.attention", x)
        h = _norm(model, x, weights[f"layers.{layer}.ffn_norm"])
        if is_dense(model, layer):
            x = x + _ffn(weights, f"layers.{layer}.dense", h)
        else:
            x = x + _experts(model, weights, layer, h, step, reference)
    output = weights["embedding" if model.tied_embeddings else "head.weight"]
    logits = _norm(model, x, weights["head.norm"]) @ output.T
    return -logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean()


def _norm(model: ModelSpec, x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + model.norm_eps).rsqrt() * weight


def _ffn(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    gate = x @ weights[f"{prefix}.gate"].T
    return (gate * gate.sigmoid() * (x @ weights[f"{prefix}.up"].T)) @ weights[f"{prefix}.down"].T


def _attention(model: ModelSpec, weights: Weights, prefix: str, x: Tensor) -> Tensor:
    """x [B, S, H]."""
    a, (batch, length) = grouped(model), x.shape[:2]
    h = _norm(model, x, weights[f"{prefix}.norm"])
    q, k, v = ((h @ weights[f"{prefix}.{n}"].T).view(batch, length, -1, a.head_dim).transpose(1, 2) for n in "qkv")
    if a.qk_norm:
        q, k = _norm(model, q, weights[f"{prefix}.q_norm"]), _norm(model, k, weights[f"{prefix}.k_norm"])
    q, k = _rotate(model, q), _rotate(model, k)
    k, v = (t.repeat_interleave(a.heads // a.kv_heads, dim=1) for t in (k, v))
    scores: Tensor = q @ k.transpose(-1, -2) / a.head_dim**0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    y: Tensor = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    return y.transpose(1, 2).reshape(batch, length, -1) @ weights[f"{prefix}.o"].T


def _rotate(model: ModelSpec, x: Tensor) -> Tensor:
    """Each pair (x_i, x_{i + d/2}) turned by position * theta^(-2 i / d); x [B, heads, S, d]."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * model.rope_theta ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    turned = torch.view_as_complex(torch.stack([x[..., :half], x[..., half:]], -1)) * torch.polar(
        torch.ones_like(angles), angles
    ).to(torch.complex128 if x.dtype == torch.float64 else torch.complex64)
    return torch.cat([turned.real, turned.imag], -1)


def _experts(model: ModelSpec, weights: Weights, layer: int, h: Tensor, step: int, reference: Reference) -> Tensor:
    """Shared experts plus the weighted sum of each token's chosen experts; h [B, S, H]."""
    probabilities = (h @ weights[f"layers.{layer}.router"].T).softmax(-1)
    gate, choice = probabilities.topk(model.top_k, -1)
    reference.choices[(step, layer)] = choice
    if model.top_k < model.experts:
        best = probabilities.detach().topk(model.top_k + 1, -1).values
        reference.margin = min(reference.margin, float((best[..., -2] - best[..., -1]).min()))
    if model.normalize_top_k:
        gate = gate / gate.sum(-1, keepdim=True)
    y = _ffn(weights, f"layers.{layer}.shared", h) if model.shared_experts else torch.zeros_like(h)
    for expert in range(model.experts):
        share = (gate * (choice == expert)).sum(-1, keepdim=True)
        y = y + share * _ffn(weights, f"layers.{layer}.experts.{expert}", h)
    return y
