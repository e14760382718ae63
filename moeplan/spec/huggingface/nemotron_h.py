"""Nemotron-H: `model_type` nemotron_h (Nemotron-H, Nemotron Nano 2, Nemotron-3)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.huggingface.common import Config, Fields, grouped_query, model_of, refuse_bias
from moeplan.spec.model import PATTERN, Count, Epsilon, Mamba2, ModelSpec, Scale, Size
from moeplan.spec.record import convert

_LETTERS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


class _NemotronH(Config, kw_only=True):
    num_hidden_layers: Size | None = None  # type: ignore[assignment]
    hybrid_override_pattern: str | None = None
    layers_block_type: tuple[str, ...] | None = None
    mamba_num_heads: Size
    mamba_head_dim: Size
    ssm_state_size: Size
    n_groups: Size
    conv_kernel: Size = 4
    use_conv_bias: bool = True
    use_bias: bool = False
    mlp_bias: bool = False
    mamba_proj_bias: bool = False
    mlp_hidden_act: Literal["relu2"] = "relu2"
    layer_norm_epsilon: Epsilon = 1e-5
    intermediate_size: Size = 21_504
    attention_head_dim: Size | None = 128
    sliding_window: None = None
    n_routed_experts: Count | None = 8
    num_experts_per_tok: Count | None = 2
    moe_intermediate_size: Count | None = 7688
    moe_shared_expert_intermediate_size: Count | None = 7688
    n_shared_experts: Count | None = 1
    moe_latent_size: Count | None = None
    n_group: Size = 1
    topk_group: Size = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: Scale = 1.0
    num_nextn_predict_layers: Count = 0


def nemotron_h(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """Nemotron-H: Mamba-2, attention, experts or a dense FFN of two matrices in the order of the file's pattern.

    Each block has its own norm and residual; a mixer and the FFN behind it are one layer here, so that `num_layers` is
    less than the file's `num_hidden_layers`. Modules that predict further tokens have attention and experts.
    """
    config = convert({"rope_theta": 10000.0} | raw, _NemotronH, where=where)
    refuse_bias(config, where)
    for key in ("use_bias", "mlp_bias", "mamba_proj_bias"):
        if getattr(config, key):
            raise SpecError(f"{where}: {key} true is not read; right: false")
    pattern = _pattern(config, where)
    layers = sum(letter in "M*" for letter in pattern)
    config = structs.replace(config, num_hidden_layers=layers, rms_norm_eps=config.layer_norm_epsilon)
    if config.head_dim is None:
        config = structs.replace(config, head_dim=config.attention_head_dim)
    mixer = Mamba2(
        heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        state=config.ssm_state_size,
        groups=config.n_groups,
        conv=config.conv_kernel,
        conv_bias=config.use_conv_bias,
    )
    fields: Fields = {
        "pattern": pattern,
        "mixer": mixer if "M" in pattern else None,
        "gated": False,
        "dense_width": config.intermediate_size if "-" in pattern else 0,
        **(_experts(config) if "E" in pattern else {}),
    }
    return model_of(config, grouped_query(config, where), name, where, fields)


def _pattern(config: _NemotronH, where: str) -> str:
    """Letters of all blocks; SpecError where they are missing, unknown, or not as many as `num_hidden_layers`.

    Two FFN blocks in a row, or one in front, make no layers of a mixer and at most one FFN: refused.
    """
    key, pattern = "hybrid_override_pattern", config.hybrid_override_pattern
    if config.layers_block_type is not None:
        key = "layers_block_type"
        if strange := set(config.layers_block_type) - set(_LETTERS):
            raise SpecError(f"{where}: {key} {min(strange)!r} is not read; right: {', '.join(_LETTERS)}")
        pattern = "".join(_LETTERS[kind] for kind in config.layers_block_type)
    if not pattern:
        raise SpecError(f"{where}: hybrid_override_pattern and layers_block_type are missing")
    if not PATTERN.fullmatch(pattern):
        raise SpecError(f"{where}: {key} {pattern!r} is not read; right: M or *, each followed by E, - or nothing")
    if config.num_hidden_layers not in (None, len(pattern)):
        found = config.num_hidden_layers
        raise SpecError(f"{where}: {len(pattern)} blocks in {key} for num_hidden_layers {found}")
    return pattern


def _experts(config: _NemotronH) -> Fields:
    return {
        "experts": config.n_routed_experts or 0,
        "top_k": config.num_experts_per_tok or 0,
        "expert_width": config.moe_intermediate_size or 0,
        "expert_latent": config.moe_latent_size or 0,
        "shared_experts": 1 if config.n_shared_experts and config.moe_shared_expert_intermediate_size else 0,
        "shared_width": (config.moe_shared_expert_intermediate_size or 0) if config.n_shared_experts else 0,
        "normalize_top_k": config.norm_topk_prob,
        "scoring": "sigmoid",
        "expert_groups": config.n_group,
        "top_k_groups": config.topk_group,
        "routed_scale": config.routed_scaling_factor,
        "mtp_layers": config.num_nextn_predict_layers,
    }
