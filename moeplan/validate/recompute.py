"""What the column recompute means."""

from __future__ import annotations

import re
from typing import NamedTuple

from moeplan.layout import Module, Recompute
from moeplan.validate.outcome import Skip

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
    words = text.lower().split("/")[0].strip()
    if words.startswith("none") or not words:
        return Rule(Recompute())
    if words in BY_OPERATION:
        return Rule(Recompute(modules=("every_other_product",)))
    if words.startswith("full"):
        return _layers(words, layers)
    if not words.startswith("selective"):
        raise Skip("recompute: neither all layers nor modules by name")
    return _modules(words.removeprefix("selective").strip(" :"))


def _layers(words: str, layers: int) -> Rule:
    every = Recompute(attention="full", ffn="full")
    told = re.search(r"layers?\s*=\s*(\d+)", words)
    if not told:
        return Rule(every)
    some = int(told[1])
    if some >= layers:
        return Rule(every)
    kept = 2 * some < layers
    return Rule(Recompute() if kept else every, f"some layers computed again: taken as {'none' if kept else 'all'}")


def _modules(named: str) -> Rule:
    """Modules joined by +, or listed in brackets; a remark in brackets after modules is passed over."""
    outside, _, inside = named.partition("(")
    words = [word for part in (outside or inside.rstrip(")")).split("+") for word in part.split(",")]
    listed = [re.sub(r"[ -]", "_", word.strip()) for word in words]
    modules = [word for word in listed if word not in ("", "flash", "sequence_parallel")]
    if strange := set(modules) - set(MODULES) - {"moe"}:
        raise Skip(f"recompute: module {sorted(strange)[0]} is not known")
    chosen = tuple(dict.fromkeys(MODULES[word] for word in modules if word != "moe"))
    return Rule(
        Recompute(ffn="full" if "moe" in modules else "none", modules=chosen if modules else ("core_attention",))
    )
