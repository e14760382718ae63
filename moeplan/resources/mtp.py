"""Modules that predict further tokens (MTP), as work of the last pipeline stage: pieces, kernels and parameters.

Each module joins the hidden state with the next token's embedding by a matrix 2 hidden x hidden, passes one layer with
attention and experts (dense where the model has none), and the head once more, whose matrix it shares with the model
(DeepSeek-V3, arXiv 2412.19437, section 2.2). Rows go to experts and back as in any layer: its communication is that of
one dispatch and one combine more. Modules depend on each other, one after the other.
"""

from __future__ import annotations

from moeplan.layout import PieceKind
from moeplan.resources import parameters as count
from moeplan.resources.kernels import ELEMENT_BYTES, Compute, product
from moeplan.resources.work import Load, forward
from moeplan.spec.execution import Execution
from moeplan.spec.model import ModelSpec


def module_pieces(model: ModelSpec) -> tuple[PieceKind, ...]:
    """Kinds of the pieces of one module, in the order in which rows pass them."""
    return ("attention", "experts" if model.experts else "dense", "head")


def module_work(
    model: ModelSpec, load: Load, *, seq_len: int, dtype: str, execution: Execution | None = None
) -> list[Compute]:
    """Kernels of the forward pass of one module on a rank of the last stage; `resources.work.backward` gives the rest.

    The two norms before the join are left out: their bytes are a thousandth of the layer's.
    """
    execution = execution or Execution()
    join = product(load.tokens / load.tp, 2 * model.hidden, model.hidden, ELEMENT_BYTES[dtype])
    moe = model.experts > 0
    return [
        join,
        *(
            kernel
            for kind in module_pieces(model)
            for kernel in forward(model, kind, load, seq_len=seq_len, dtype=dtype, moe=moe, execution=execution)
        ),
    ]


def module_share(model: ModelSpec, tp: int, etp: int, ep: int) -> tuple[float, float]:
    """(dense, expert) parameters of one module on one rank of the last stage; embedding and head are the model's."""
    joined = 2 * model.hidden**2 + 4 * count.norm_parameters(model)
    mixed = count.attention_share(model, tp)
    if not model.experts:
        return joined + mixed + count.ffn_share(model, model.dense_width, tp), 0.0
    beside = count.router_parameters(model) + count.shared_share(model, tp)
    return joined + mixed + beside, model.experts / ep * count.expert_share(model, etp)
