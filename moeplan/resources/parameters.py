"""Parameter counts, derived from a model's shape, piece by piece: matrices, biases, norms, learned logits."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from moeplan.resources import attention, mixer
from moeplan.spec.model import ModelSpec, has_ffn, has_state, is_dense, row_width


def norm_parameters(model: ModelSpec) -> int:
    """Parameters of one norm: hidden, twice with a bias. A layer has two (attention, FFN), the model one more."""
    return model.hidden * (2 if model.norm == "layer_bias" else 1)


def attention_parameters(model: ModelSpec) -> int:
    """Parameters of one attention block: its matrices and biases, learned logits, and the norms before and inside it.

    Grouped queries: hidden (q + 2 kv) + q hidden, q = heads head_dim, kv = kv_heads head_dim; QK norm adds 2 head_dim
    (q + kv where it spans all heads), biases q + 2 kv + hidden, sinks heads. Latent attention: the matrices of
    `resources.attention.projections`, and a norm of each narrow vector.
    """
    matrices = sum(p.inputs * p.outputs + p.bias for p in attention.projections(model))
    return matrices + attention.sinks(model) + attention.whole_parameters(model) + norm_parameters(model)


def mixer_parameters(model: ModelSpec) -> int:
    """Parameters of one mixer (`resources.mixer`) and the norm before it."""
    return round(mixer.parameters(model)) + norm_parameters(model)


def mixer_share(model: ModelSpec, tp: int, *, state: bool) -> float:
    """Parameters of one attention block, or with `state` of one mixer, that one of `tp` ranks holds."""
    return mixer.parameters(model, tp) + norm_parameters(model) if state else attention_share(model, tp)


def attention_share(model: ModelSpec, tp: int) -> float:
    """Parameters of one attention block that one of `tp` ranks holds.

    Divided: matrices by heads, with their biases, and learned logits. Whole on each: norms, matrices into narrow
    vectors, the output's bias, and what key-value heads fewer than ranks leave undivided.
    """
    total = attention.sinks(model) / tp + attention.whole_parameters(model) + norm_parameters(model)
    for p in attention.projections(model):
        parts = attention.shares(p, tp)
        total += p.inputs * p.outputs / parts + (p.bias if p.from_heads else p.bias / parts)
    return total


def router_parameters(model: ModelSpec) -> int:
    """Parameters of one router: hidden experts; a bias and, with sigmoid scores, a correction add experts each.

    The gate of the shared experts is counted here too: hidden; and what brings rows to `expert_latent` and back.
    """
    each = model.hidden + model.ffn_bias + (model.scoring == "sigmoid")
    return model.experts * each + model.shared_gate * model.hidden + latent_parameters(model)


def latent_parameters(model: ModelSpec) -> int:
    """Parameters of the two projections around the routed experts of one layer: 2 hidden expert_latent, or none."""
    return 2 * model.hidden * model.expert_latent


def ffn_matrices(model: ModelSpec) -> int:
    """Matrices of one FFN: gate, up and down, or up and down."""
    return 3 if model.gated else 2


def ffn_parameters(model: ModelSpec, width: int, rows: int = 0) -> int:
    """Parameters of one FFN of inner `width`: matrices hidden width, and biases (matrices - 1) width + hidden.

    `rows` is the width of what it reads and writes, if not hidden.
    """
    rows = rows or model.hidden
    biases = (ffn_matrices(model) - 1) * width + rows
    return ffn_matrices(model) * rows * width + model.ffn_bias * biases


def ffn_share(model: ModelSpec, width: int, shards: int, rows: int = 0) -> float:
    """Parameters of one FFN that one of `shards` tensor-parallel ranks holds: all divided but the last bias."""
    last = model.ffn_bias * (rows or model.hidden)
    return (ffn_parameters(model, width, rows) - last) / shards + last


def expert_parameters(model: ModelSpec) -> int:
    """Parameters of one routed expert: 3 hidden expert_width, or 2 without a gate, and its biases.

    `expert_latent` stands for hidden where the model has it.
    """
    return ffn_parameters(model, model.expert_width, row_width(model))


def expert_share(model: ModelSpec, shards: int) -> float:
    """Parameters of one routed expert that one of `shards` tensor-parallel ranks holds (`ffn_share`)."""
    return ffn_share(model, model.expert_width, shards, row_width(model))


def shared_parameters(model: ModelSpec) -> int:
    """Parameters of one layer's shared experts together, without their gate."""
    return model.shared_experts * ffn_parameters(model, model.shared_width or model.expert_width)


def shared_share(model: ModelSpec, shards: int) -> float:
    """Parameters of one layer's shared experts that one of `shards` tensor-parallel ranks holds (`ffn_share`)."""
    return model.shared_experts * ffn_share(model, model.shared_width or model.expert_width, shards)


def dense_parameters(model: ModelSpec) -> int:
    """Parameters of one dense FFN: 3 hidden dense_width, or 2 without a gate, and its biases."""
    return ffn_parameters(model, model.dense_width)


def embedding_parameters(model: ModelSpec) -> int:
    """Parameters of the input embedding: vocab hidden, without padding of the vocabulary."""
    return model.vocab * model.hidden


def head_parameters(model: ModelSpec) -> int:
    """Parameters of the output head without the norm before it: vocab hidden, or 0 where it is the embedding.

    A bias adds vocab.
    """
    return (0 if model.tied_embeddings else embedding_parameters(model)) + model.head_bias * model.vocab


def layer_parameters(model: ModelSpec, layer: int) -> int:
    """Parameters of layer number `layer`, all its experts included: mixer + norm + (dense | router + experts)."""
    return _layer(model, model.experts, _kind(model, layer))


def total_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model: embedding + layers + final norm + head; modules that predict further tokens not.

    Those are in `mtp_parameters`; published totals leave them out.
    """
    return _model(model, model.experts)


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token meets: as `total_parameters` with top_k routed experts per layer (and the shared)."""
    return _model(model, model.top_k)


def mtp_parameters(model: ModelSpec, *, own_copies: bool) -> int:
    """Parameters of the multi-token-prediction modules, beside `total_parameters`.

    Each has one layer with attention and experts, a matrix 2 hidden x hidden, three norms (of the token, of the hidden
    state, before the head) and, with `own_copies`, an embedding and a head instead of the model's (DeepSeek-V3, arXiv
    2412.19437, section 2.2: shared; its checkpoint stores copies).
    """
    copies = 2 * embedding_parameters(model) if own_copies else 0
    joined = 2 * model.hidden * model.hidden + 3 * norm_parameters(model)
    return model.mtp_layers * (_layer(model, model.experts, _further(model)) + joined + copies)


def counted(model: ModelSpec) -> str:
    """Which layers the totals hold, for readers: MTP modules of a checkpoint are in none, nor are they planned."""
    if not model.mtp_layers:
        return "all layers"
    shared, own = (mtp_parameters(model, own_copies=copies) for copies in (False, True))
    beside = f"{shared:,} parameters more, or {own:,} with their own embedding and head"
    return f"{model.num_layers} layers, without {model.mtp_layers} MTP module{'s' * (model.mtp_layers > 1)} ({beside})"


class Kind(NamedTuple):
    """What one layer is made of."""

    state: bool
    """Whether it has the model's mixer instead of attention."""
    ffn: Literal["experts", "dense", ""]


def _kind(model: ModelSpec, layer: int) -> Kind:
    if not has_ffn(model, layer):
        return Kind(has_state(model, layer), "")
    return Kind(has_state(model, layer), "dense" if is_dense(model, layer) else "experts")


def _further(model: ModelSpec) -> Kind:
    """The layer of a module that predicts a further token: attention, and experts where the model has any."""
    return Kind(state=False, ffn="experts" if model.experts else "dense")


def _layer(model: ModelSpec, experts: int, kind: Kind) -> int:
    common = mixer_parameters(model) if kind.state else attention_parameters(model)
    if not kind.ffn:
        return common
    common += norm_parameters(model)
    if kind.ffn == "dense":
        return common + dense_parameters(model)
    return common + router_parameters(model) + experts * expert_parameters(model) + shared_parameters(model)


def _model(model: ModelSpec, experts: int) -> int:
    kinds = Counter(_kind(model, layer) for layer in range(model.num_layers))
    layers = sum(number * _layer(model, experts, kind) for kind, number in kinds.items())
    return embedding_parameters(model) + layers + norm_parameters(model) + head_parameters(model)
