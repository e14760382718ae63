"""Parameter counts, derived from a model's shape, piece by piece. No linear layer has a bias."""

from __future__ import annotations

from moeplan.spec.model import ModelSpec, is_dense


def norm_parameters(model: ModelSpec) -> int:
    """Parameters of one RMSNorm: hidden. A layer has two (attention, FFN), the model one more before the head."""
    return model.hidden


def attention_parameters(model: ModelSpec) -> int:
    """Parameters of one attention block: hidden (q + 2 kv) + q hidden + hidden, and 2 head_dim with QK norm.

    q = heads head_dim, kv = kv_heads head_dim; the third term is the norm before the block.
    """
    shape = model.attention
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    qk_norm = 2 * shape.head_dim if shape.qk_norm else 0
    return model.hidden * (queries + 2 * keys) + queries * model.hidden + norm_parameters(model) + qk_norm


def router_parameters(model: ModelSpec) -> int:
    """Parameters of one router: hidden experts."""
    return model.hidden * model.experts


def expert_parameters(model: ModelSpec) -> int:
    """Parameters of one routed expert, a gated FFN (gate, up, down): 3 hidden expert_width."""
    return 3 * model.hidden * model.expert_width


def shared_parameters(model: ModelSpec) -> int:
    """Parameters of one layer's shared experts together: shared_experts 3 hidden expert_width."""
    return model.shared_experts * expert_parameters(model)


def dense_parameters(model: ModelSpec) -> int:
    """Parameters of one dense FFN, gated: 3 hidden dense_width."""
    return 3 * model.hidden * model.dense_width


def embedding_parameters(model: ModelSpec) -> int:
    """Parameters of the input embedding: vocab hidden, without padding of the vocabulary."""
    return model.vocab * model.hidden


def head_parameters(model: ModelSpec) -> int:
    """Parameters of the output head without the norm before it: vocab hidden, or 0 where it is the embedding."""
    return 0 if model.tied_embeddings else embedding_parameters(model)


def layer_parameters(model: ModelSpec, layer: int) -> int:
    """Parameters of layer number `layer`, all its experts included: attention + norm + (dense | router + experts)."""
    return _layer(model, model.experts, dense=is_dense(model, layer))


def total_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model: embedding + layers + final norm + head."""
    return _model(model, model.experts)


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token meets: as `total_parameters` with top_k routed experts per layer (and the shared)."""
    return _model(model, model.top_k)


def _layer(model: ModelSpec, experts: int, *, dense: bool) -> int:
    common = attention_parameters(model) + norm_parameters(model)
    if dense:
        return common + dense_parameters(model)
    return common + router_parameters(model) + experts * expert_parameters(model) + shared_parameters(model)


def _model(model: ModelSpec, experts: int) -> int:
    dense, sparse = model.dense_layers, model.num_layers - model.dense_layers
    layers = dense * _layer(model, experts, dense=True) + sparse * _layer(model, experts, dense=False)
    return embedding_parameters(model) + layers + norm_parameters(model) + head_parameters(model)
