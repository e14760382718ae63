"""Parameters of modules that predict further tokens (MTP), on one rank of the last pipeline stage.

Each module joins the hidden state with the next token's embedding by a matrix 2 hidden x hidden, passes one layer with
attention and experts (dense where the model has none), and the head once more, whose matrix it shares with the model
(DeepSeek-V3, arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

from moeplan.resources import parameters as count
from moeplan.spec.model import ModelSpec, moe_layers


def module_share(model: ModelSpec, tp: int, etp: int, ep: int) -> tuple[float, float]:
    """(dense, expert) parameters of one module on one rank of the last stage; embedding and head are the model's."""
    joined = 2 * model.hidden**2 + 4 * count.norm_parameters(model)
    mixed = count.attention_share(model, tp)
    if not moe_layers(model):
        return joined + mixed + count.ffn_share(model, model.dense_width, tp), 0.0
    beside = count.router_parameters(model) + count.shared_share(model, tp)
    return joined + mixed + beside, model.experts / ep * count.expert_share(model, etp)
