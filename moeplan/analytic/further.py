"""Modules that predict further tokens (MTP), as pieces of the last position.

Each is a whole layer, one with experts and full attention where the model has one, the logits once more, and a product
that joins hidden state and next embedding, 2 hidden x hidden (DeepSeek-V3, arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable

from moeplan.cost import compute
from moeplan.cost.pieces import Alike, Priced
from moeplan.cost.pricing import Pricing
from moeplan.resources.kernels import ELEMENT_BYTES, backward, product
from moeplan.resources.work import Load

JOIN = Alike("further", False, 0, 0)
"""The product of one module."""


def further_pieces(pricing: Pricing, found: Iterable[Alike]) -> list[Alike]:
    """Kinds of the pieces of one module, without position, among those `found`; none where modules are not trained."""
    if not pricing.case.memory.mtp or not pricing.case.model.mtp_layers:
        return []
    kinds = list(dict.fromkeys(what._replace(position=0) for what in found))
    layers = sorted(
        (what for what in kinds if what.kind == "attention"), key=lambda what: (not what.moe, what.window != 0)
    )
    ffn = "experts" if layers[0].moe else "dense"
    rest = (what for what in kinds if what.kind == "head" or (what.kind == ffn and what.moe == layers[0].moe))
    return [JOIN, layers[0], *rest]


def joined(pricing: Pricing, load: Load) -> tuple[Priced, Priced]:
    """Seconds of the product of one module, forward and backward; the two norms before it are left out."""
    case, machine = pricing.case, pricing.machine
    dtype, hidden = case.workload.dtype, case.model.hidden
    work = [product(load.tokens / load.tp, 2 * hidden, hidden, ELEMENT_BYTES[dtype])]
    priced = (
        compute.parts(w, case.cluster.gpu, machine.calibration, case.execution, dtype) for w in (work, backward(work))
    )
    one, other = (Priced(parts, 0.0, 0.0, sources) for parts, sources in priced)
    return one, other
