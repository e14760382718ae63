"""MiniMax-M2: `model_type` minimax_m2, and minimax in older files of it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Routed, grouped_query, model_of, refuse_bias
from moeplan.spec.huggingface.layer_types import FULL
from moeplan.spec.model import Count, ModelSpec, Size
from moeplan.spec.record import convert


class _Kinds(msgspec.Struct, kw_only=True):
    num_hidden_layers: Size
    attn_type_list: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None


class _MiniMax(Routed, kw_only=True):
    num_local_experts: Size
    head_dim: Size | None = 128
    intermediate_size: Size
    scoring_func: Literal["sigmoid"]
    use_routing_bias: Literal[True]
    use_qk_norm: Literal[True]
    qk_norm_type: Literal["per_layer"]
    shared_intermediate_size: Literal[0] = 0
    sliding_window: None = None
    use_mtp: bool = False
    num_mtp_modules: Count = 0


def minimax(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """MiniMax-M2: full attention whose QK norm spans all heads, sigmoid scores; linear attention is refused."""
    _refuse_linear(convert(raw, _Kinds, where=where), where)
    config = convert(raw, _MiniMax, where=where)
    refuse_bias(config, where)
    return model_of(
        config,
        structs.replace(grouped_query(config, where), qk_norm=True, qk_norm_weights="all"),
        name,
        where,
        {
            "experts": config.num_local_experts,
            "expert_width": config.intermediate_size,
            "scoring": "sigmoid",
            "mtp_layers": config.num_mtp_modules if config.use_mtp else 0,
        },
    )


def _refuse_linear(kinds: _Kinds, where: str) -> None:
    """SpecError at the first layer that is not said to have full attention."""
    lists: dict[str, tuple[tuple[object, ...], object]] = {
        "attn_type_list": (kinds.attn_type_list or (), 1),
        "layer_types": (kinds.layer_types or (), FULL),
    }
    if not any(given for given, _ in lists.values()):
        raise SpecError(f"{where}: attn_type_list is missing; right: 1 for each of {kinds.num_hidden_layers} layers")
    for key, (given, right) in lists.items():
        if given and len(given) != kinds.num_hidden_layers:
            raise SpecError(f"{where}: {key} has {len(given)} entries for num_hidden_layers {kinds.num_hidden_layers}")
        for layer, found in enumerate(given):
            if found != right:
                raise SpecError(f"{where}: {key}[{layer}] {found!r} is not read; right: {right!r} (full attention)")
