"""What the column recompute means."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from msgspec.structs import replace

from moeplan.layout import Module, Recompute
from moeplan.validation.outcome import Skip

MODULES: dict[str, Module] = {
    "core_attn": "core_attention",
    "core_attention": "core_attention",
    "layernorm": "norm",
    "rmsnorm": "norm",
    "norm": "norm",
    "moe_act": "activation",
    "act": "activation",
    "mlp": "dense",
    "mla_up_proj": "latent_up",
    "shared_expert": "shared_experts",
    "shared_experts": "shared_experts",
}
"""Names of modules in Megatron-LM's option --recompute-modules, and short forms."""
FFN: dict[str, Literal["full", "experts"]] = {"moe": "full", "experts": "experts"}
"""Names of modules that `Recompute.ffn` holds, the wider first."""
NOTHING = r"none|no\b|not\b|without\b|off\b|false\b|disabled\b|$"
"""How a cell begins that says that nothing is computed again."""
REMARKS = ("", "flash", "sequence_parallel")
LAYERS = r"layers?\s*[=:]?\s*(\d+)|(\d+)(?:\s*(?:/|of)\s*\d+)?\s+layers?"
"""How many layers are computed again: "layers=4", "4 layers", "4 of 32 layers"."""
BY_OPERATION = ("selective ac", "per-op sac")
"""torchtitan's selective checkpointing by operation keeps attention and every second matrix product."""


class Rule(NamedTuple):
    """What is computed again."""

    recompute: Recompute
    note: str = ""
    """How the row's own rule differs; empty where it does not."""


def recompute_rule(text: str, layers: int = 0) -> Rule:
    """The rule that the column names; nothing is computed again where it is empty.

    `layers` are those of a pipeline stage, of which some sources recompute a number: all of them are taken where that
    is half or more, else none. Selective alone is the attention core (arXiv 2205.05198). Skip for other words.
    """
    words = re.split(r"/(?!\s*\d)", text.lower())[0].strip()
    if re.match(NOTHING, words):
        return Rule(Recompute())
    if words in BY_OPERATION:
        return Rule(Recompute(modules=("every_other_product",)))
    if words.startswith("full"):
        return _layers(words, layers)
    named = _named(words.removeprefix("selective").strip(" :"))
    if not words.startswith("selective") and not set(named) & {*MODULES, *FFN}:
        alike = "recompute: neither all layers nor modules by name"
        raise Skip(alike, f"recompute: {text!r} is neither none, full, nor selective with modules by name")
    return _modules(named)


def _layers(words: str, layers: int) -> Rule:
    every = Recompute(attention="full", ffn="full")
    told = re.search(LAYERS, words)
    if not told:
        return Rule(every)
    some = int(told[1] or told[2])
    if not some:
        return Rule(Recompute())
    if some >= layers:
        return Rule(every)
    kept = 2 * some < layers
    return Rule(Recompute() if kept else every, f"some layers computed again: taken as {'none' if kept else 'all'}")


def _named(text: str) -> list[str]:
    """Modules joined by +, or listed in brackets; a remark in brackets after modules is passed over."""
    outside, _, inside = text.partition("(")
    words = [word for part in (outside or inside.rstrip(")")).split("+") for word in part.split(",")]
    listed = [re.sub(r"[ -]", "_", word.strip()) for word in words]
    return [word for word in listed if word not in REMARKS]


def _modules(named: list[str]) -> Rule:
    """What `named` modules come to; the attention core where none is named."""
    if strange := set(named) - set(MODULES) - set(FFN):
        raise Skip(
            f"recompute: module {sorted(strange)[0]} is not known",
            f"recompute: module {sorted(strange)[0]} is not known; right is {', '.join((*MODULES, *FFN))}",
        )
    whole = ["shared_experts"] if "moe" in named else []
    chosen = tuple(dict.fromkeys(MODULES[word] for word in [*named, *whole] if word in MODULES))
    wide = Recompute(modules=chosen if named else ("core_attention",))
    return Rule(next((replace(wide, ffn=value) for name, value in FFN.items() if name in named), wide))
