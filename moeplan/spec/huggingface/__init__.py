"""HuggingFace `config.json` files: one function per model family, matched by the exact `model_type`.

Key names and defaults are those of the configuration classes in `transformers` (DeepSeek-MoE: the published
configuration_deepseek.py). Not read, since no count, byte or FLOP depends on them: the numbers of a rope scaling,
dropout, auxiliary loss, checkpoint precision. Remote code (`auto_map`) is never loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from moeplan.errors import SpecError
from moeplan.spec.huggingface.dbrx import dbrx
from moeplan.spec.huggingface.deepseek import deepseek, deepseek_v2, deepseek_v3
from moeplan.spec.huggingface.dense import llama, qwen3
from moeplan.spec.huggingface.glm4_moe import glm4_moe
from moeplan.spec.huggingface.gpt_oss import gpt_oss
from moeplan.spec.huggingface.hunyuan import hunyuan
from moeplan.spec.huggingface.llama4 import llama4, llama4_text
from moeplan.spec.huggingface.minimax import minimax
from moeplan.spec.huggingface.mixtral import mixtral
from moeplan.spec.huggingface.nemotron_h import nemotron_h
from moeplan.spec.huggingface.phimoe import phimoe
from moeplan.spec.huggingface.qwen3_next import qwen3_next
from moeplan.spec.huggingface.qwen_moe import qwen2_moe, qwen3_moe
from moeplan.spec.model import ModelSpec
from moeplan.spec.record import read_json

FAMILIES: dict[str, Callable[[dict[str, Any], str, str], ModelSpec]] = {
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "deepseek": deepseek,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "gpt_oss": gpt_oss,
    "llama": llama,
    "qwen3": qwen3,
    "qwen2_moe": qwen2_moe,
    "kimi_k2": deepseek_v3,
    "glm4_moe": glm4_moe,
    "phimoe": phimoe,
    "dbrx": dbrx,
    "llama4": llama4,
    "llama4_text": llama4_text,
    "hunyuan_v1_moe": hunyuan,
    "minimax_m2": minimax,
    "minimax": minimax,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
}
"""Reader by `model_type`."""


def read_config(path: Path) -> ModelSpec:
    """The model in `path`, a config.json or the folder that holds one; named after its folder, or the file's stem.

    SpecError names the file and the key: a family that is not read, a missing key, a wrong type, a size out of range.
    """
    file = path / "config.json" if path.is_dir() else path
    raw = read_json(file)
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        raise SpecError(f"{file}: model_type is missing; read: {', '.join(FAMILIES)}")
    if kind not in FAMILIES:
        raise SpecError(f"{file}: model_type {kind!r} is not read; read: {', '.join(FAMILIES)}")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return FAMILIES[kind](raw, name, str(file))
