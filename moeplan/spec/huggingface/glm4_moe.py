"""GLM-4.5 and GLM-4.6: `model_type` glm4_moe."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from moeplan.spec.huggingface.common import grouped_query, model_of
from moeplan.spec.huggingface.deepseek import Grouped, routed
from moeplan.spec.model import Count, Epsilon, ModelSpec
from moeplan.spec.record import convert


class _Glm4(Grouped, kw_only=True):
    rms_norm_eps: Epsilon = 1e-5
    n_shared_experts: Count | None = 1
    first_k_dense_replace: Count = 1
    norm_topk_prob: bool = True
    use_qk_norm: bool = False


def glm4_moe(raw: dict[str, Any], name: str, where: str) -> ModelSpec:
    """GLM-4.5: DeepSeek-V3's experts behind grouped-query attention, whose q, k and v may have biases.

    `partial_rotary_factor` is passed over: it turns fewer pairs, and no count depends on it.
    """
    config = convert(raw, _Glm4, where=where)
    attention = structs.replace(
        grouped_query(config, where), qk_norm=config.use_qk_norm, bias=config.attention_bias, output_bias=False
    )
    fields = routed(config, True)
    fields["scoring"] = "sigmoid"
    return model_of(config, attention, name, where, fields)
