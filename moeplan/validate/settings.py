"""What the words of a run's row mean for a layout, and what is taken where nothing was published."""

from __future__ import annotations

import re
from typing import NamedTuple

from moeplan.by_hand import ByHand
from moeplan.layout import Recompute
from moeplan.spec.model import ModelSpec
from moeplan.validate.outcome import Skip
from moeplan.validate.tables import Run

GIB = 1024**3
SEQ_LEN = 4096
"""Where no sequence length is published (assumed; the commonest of the tables)."""
MICROBATCHES_PER_STAGE = 4
"""Where no global batch is published: 4 pp micro-batches, so that the pipeline is full (assumed)."""
WIDE = ("bf16", "fp16", "amp_bf16", "fp16/bf16")
"""Element types, in small letters, that compute and weigh as bf16 does."""
UNPLANNED = {
    "fsdp": "fully sharded data parallelism (FSDP) is not planned",
    "dualpipe": "DualPipe is not planned",
    "v-half": "zero-bubble schedules are not planned",
    "v-min": "zero-bubble schedules are not planned",
    "zbv": "zero-bubble schedules are not planned",
    "zero-bubble": "zero-bubble schedules are not planned",
    "offload": "offloaded activations are not planned",
}
"""Words of the column dispatcher_or_overlap, in small letters, and what they name."""
SMALL_MODULES = {"core_attn", "layernorm", "norm", "rmsnorm", "moe_act", "act", "mlp", "mla_up_proj", "shared_expert"}
"""Modules whose recomputation takes little time; moeplan computes all of them again, or none."""


class Rule(NamedTuple):
    """What is computed again."""

    recompute: Recompute
    exact: bool
    """Whether memory follows; otherwise small modules that were computed again are taken as kept."""


def recompute_rule(text: str) -> Rule:
    """The rule that the column recompute names; nothing where it is empty.

    Selective recomputation of the attention core (arXiv 2205.05198) is what FlashAttention does anyway. Modules of
    `SMALL_MODULES` cost little time but free memory. Skip for what a rule of moeplan cannot say.
    """
    words = text.lower().split("/")[0].split("(")[0].strip()
    named = words.removeprefix("selective").strip(" :")
    if words.startswith("none") or not words:
        return Rule(Recompute(), exact=True)
    if words in ("full", "full ac"):
        return Rule(Recompute(attention="full", ffn="full"), exact=True)
    if not words.startswith("selective") or "ac" in named.split():
        raise Skip("recompute: neither all layers nor modules by name")
    if named in ("", "+ sequence parallel"):
        brackets = re.findall(r"\((.*?)\)", text)
        return Rule(Recompute(), exact=not brackets or brackets == ["flash"])
    modules = set(named.split("+"))
    if strange := modules - SMALL_MODULES - {"moe"}:
        raise Skip(f"recompute: module {sorted(strange)[0]} is not known")
    ffn = Recompute(ffn="full") if "moe" in modules else Recompute()
    return Rule(ffn, exact=modules <= {"moe", "core_attn"})


def check_planned(run: Run) -> None:
    """Skip where the row has an element type or a technique that no layout of moeplan has."""
    if run.dtype and run.dtype.lower() not in WIDE:
        raise Skip("FP8 and FP4 are not planned")
    if run.cp and run.cp > 1:
        raise Skip("context parallelism is not planned")
    for word, reason in UNPLANNED.items():
        if word in run.dispatcher_or_overlap.lower():
            raise Skip(reason)


def degrees(run: Run, model: ModelSpec) -> ByHand:
    """The layout of the row; what was not published is 1, ETP is TP, and EP as in `expert_parallel`."""
    if run.pp is None and run.vpp:
        raise Skip("virtual stages without pipeline stages")
    return ByHand(
        tp=run.tp,
        pp=run.pp,
        vpp=run.vpp if run.pp and run.pp > 1 else None,
        ep=run.ep or expert_parallel(run, model),
        etp=run.etp,
        micro_batch=run.micro_batch or 1,
    )


def expert_parallel(run: Run, model: ModelSpec) -> int:
    """EP where none is published: 1 without experts, else the largest that divides them and 8 GPUs of a stage."""
    per_stage = run.gpus // (run.pp or 1)
    fits = [d for d in range(1, 9) if model.experts % d == 0 and per_stage % (d * (run.etp or run.tp or 1)) == 0]
    return max(fits, default=1) if model.experts else 1


def seq_len(run: Run) -> int:
    """Tokens per sequence of the row."""
    return run.seq_len or SEQ_LEN


def global_batch(run: Run) -> int:
    """Sequences per step of the row; where none is published, enough that the pipeline is full."""
    pp = run.pp or 1
    data_parallel = max(1, run.gpus // ((run.tp or 1) * pp * (run.cp or 1)))
    return run.global_batch or MICROBATCHES_PER_STAGE * pp * data_parallel * (run.micro_batch or 1)


def memory_unit_bytes(run: Run) -> float:
    """Bytes of one unit of the row's peak memory: GiB where its notes say so, else GB, as the column's name does."""
    told = re.search(r"mem unit (GiB|GB)", run.notes) or re.search(r"(GiB)", run.notes)
    return GIB if told and told[1] == "GiB" else 1e9
