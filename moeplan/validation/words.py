"""What the words of a run's row say about how its step was carried out, as `--set` settings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeplan.validation.negation import denies, mentions, says
from moeplan.validation.outcome import Skip
from moeplan.validation.overlapped import overlaps
from moeplan.validation.tables import Run

LINEAR = (
    (r"fp4", "nvfp4"),
    (r"mx", "mxfp8"),
    (r"block|1x128|128x128", "fp8_block"),
    (r"fp8|float8", "fp8"),
    (r"bf16|bfloat16|fp16|float16", "same"),
)
"""Element types of linear layers by a word in the column dtype, narrowest first. A plain FP8 has scales per tensor."""
DISPATCHERS = {
    r"hybrid-?ep": "hybridep",
    r"deep-?ep|\bflex\b": "deepep",
    r"all-?to-?all": "all_to_all",
    r"all-?gather": "all_gather",
}
"""Dispatchers by their words; Megatron-LM's flex dispatcher runs DeepEP unless another is named."""
SCHEDULES = {
    r"v-half": "v-half",
    r"v-min": "v-min",
    r"\bzbv\b|zb-v": "zbv",
    r"zb-h2": "zb-h2",
    r"zero[\s_-]?bubble|zb-h1": "zb-h1",
    r"dualpipe": "dualpipe",
    r"gpipe": "gpipe",
}
"""Pipeline schedules that are neither 1F1B nor interleaved 1F1B; zero bubble without a further name is ZB-H1."""
GRAPHS = ((r"full.iteration", "step"), (r"cuda[\s_-]?graph|te graphs", "layers"))
ANY_GRAPHS = r"(?:cuda[\s_-]?|te )?graphs?\b|full.iteration"
SHARDED = r"fsdp|hsdp|full_shard"
"""Fully sharded data parallelism, which is ZeRO-3 too."""
STAGE = r"\bzero(?:[\s_-]*optimi[sz]\w*)?[\s_-]*(?:stage)?[\s_:=-]*(\d+)\b"
"""ZeRO by its number: "ZeRO-1", "zero3", "ZeRO stage 2", "zero_stage=1"."""
SEQUENCE_PARALLEL = r"sequence[\s_-]?parallel(?:ism)?"
ASYNC_TP = r"async[\s_-]?tp"
FLASH = r"flash[\s_-]?att(?:entio)?n(?:[\s_-]*v?(?P<version>[1-4]))?|\bfa-?(?P<short>[1-4])\b"
"""FlashAttention, with the number of its version where it is told."""
FUSED = r"fused (?:elementwise )?kernels|kernel fusion"
FUSING = r"\bmegatron(?:[\s_-]*(?:lm|core|bridge))?\b(?!-deepspeed)|\bnemo\b|transformer[ _]engine|\bte\b"
DISTRIBUTED = r"(?:use[\s_-])?distributed[\s_-]optimi[sz]er"
SETTING = r"\b(?:execution|memory)\.[a-z_.]+=[^\s;,+]+"
"""A setting as in `--set`, for what no word says: memory.bytes_per_parameter=16."""
CAPACITY = r"capacity[\s_-]*factor[\s_:=]*(?:of |is )?([-+]?\.?\d[\w.+-]*)"
LEAST_CAPACITY, MOST_CAPACITY = 1.0, 1000.0


def said(run: Run) -> str:
    """The row's words about software, in small letters."""
    return run.dispatcher_or_overlap.lower()


def execution_settings(run: Run) -> list[str]:
    """Settings of `execution` and `memory` that the row's own words give; nothing for what they do not mention."""
    text, notes = said(run), run.notes.lower()
    found = [f"execution.linear={linear(run.dtype)}"]
    if dispatcher := named_last(DISPATCHERS, text):
        found.append(f"execution.dispatcher={dispatcher}")
    if graphs := _graphs(text):
        found.append(f"execution.graphs={graphs}")
    if (factor := capacity(f"{run.model}; {text}; {notes}".lower())) is not None:
        found.append(f"execution.capacity={factor}")
    if says("compile", text):
        found.append("execution.kernels=compiled")
    if says(r"loss fusion|ce fusion|all opts", f"{text}; {notes}"):
        found.append("execution.loss=fused")
    if says(FUSED, text):
        found.append("execution.kernels=fused")
    if says("unfused attention", f"{text}; {notes}"):
        found.append("execution.flash_attention=false")
    if denies(SEQUENCE_PARALLEL, text):
        found.append("execution.sequence_parallel=false")
    return [*found, *_flash(text), *sharding(run), *re.findall(SETTING, run.dispatcher_or_overlap)]


def _flash(text: str) -> list[str]:
    """Which attention kernel `text` names: FlashAttention-2 and older ones, or none that keeps scores inside."""
    told = list(mentions(FLASH, text))
    if told and not any(stands for _, stands in told):
        return ["execution.flash_attention=false"]
    numbers = [one["version"] or one["short"] for one, stands in told if stands]
    return ["execution.attention_kernel=flash2"] if numbers and (numbers[-1] or "3") < "3" else []


def _graphs(text: str) -> str | None:
    """What is in CUDA graphs; None where the text does not say."""
    told = next((value for pattern, value in GRAPHS if says(pattern, text)), None)
    return told or ("none" if denies(ANY_GRAPHS, text) else None)


def linear(dtype: str) -> str:
    """What linear layers multiply in; bf16 where the column is empty. Skip for an unknown element type."""
    if not dtype:
        return "same"
    for pattern, name in LINEAR:
        if re.search(pattern, dtype.lower()):
            return name
    alike = "dtype: neither 16 bits nor a known narrower type"
    raise Skip(alike, f"dtype: {dtype!r} is neither 16 bits nor a known narrower type (fp8, fp8_block, mxfp8, nvfp4)")


def named_last(words: dict[str, str], text: str) -> str | None:
    """The value of the word that stands last in `text`: later steps of a ladder replace what came before."""
    places = [(one.start(), value) for word, value in words.items() for one, stands in mentions(word, text) if stands]
    return max(places)[1] if places else None


def capacity(text: str) -> float | None:
    """Rows per expert over the mean where tokens are dropped; 1 where no factor is named; None where none are.

    Skip for a factor that is no number from 1, the mean, to 1,000.
    """
    told = next((one for one, stands in mentions(CAPACITY, text) if stands), None)
    if told is None:
        return 1.0 if says(r"token[\s_-]?drop(?!less)", text) else None
    try:
        factor = float(told[1].rstrip("."))
    except ValueError:
        factor = 0.0
    if not LEAST_CAPACITY <= factor <= MOST_CAPACITY:
        raise Skip(
            "capacity factor: no number from 1 to 1000", f"capacity factor: {told[1]} is no number from 1 to 1000"
        )
    return factor


def sharded(run: Run) -> bool:
    """Whether data-parallel ranks divide weights too: FSDP, or ZeRO-3."""
    return says(SHARDED, said(run)) or _stage(said(run)) == 3


def _stage(text: str) -> int | None:
    """The last ZeRO stage that `text` names; Skip where there is none such."""
    told = [int(one[1]) for one, stands in mentions(STAGE, text) if stands]
    if told and told[-1] > 3:
        alike = "dispatcher_or_overlap: no stage of ZeRO"
        raise Skip(alike, f"dispatcher_or_overlap: ZeRO {told[-1]}: stages are 0 to 3")
    return told[-1] if told else None


def sharding(run: Run) -> list[str]:
    """What data-parallel ranks divide: ZeRO by its number, all with FSDP unless weights stay after the forward pass."""
    text, found = " ".join((said(run), *re.findall(r"fsdp=\d+", run.notes.lower()))), []
    stage = _stage(text)
    if says(SHARDED, text) or stage == 3:
        found.append(f"memory.zero={2 if 'no reshard' in text else 3}")
        shards = re.search(r"shard (\d+)", text) or re.search(r"fsdp=?(\d+)", text)
        dp = run.dp or run.gpus
        if shards and int(shards[1]) not in (dp, dp * (run.cp or 1), run.gpus):
            found.append(f"memory.optimizer_shards={shards[1]}")
    elif stage is not None:
        found.append(f"memory.zero={stage}")
    elif says(DISTRIBUTED, text) or denies(DISTRIBUTED, text):
        found.append(f"memory.zero={int(says(DISTRIBUTED, text))}")
    return found


def as_usual(run: Run) -> list[str]:
    """What the software that a row names does anyway, where nobody says more of it: Megatron-LM and those on it fuse
    elementwise kernels, by default or by Transformer Engine; PyTorch's FSDP keeps fp32 parameters alone, and casts what
    it gathers (arXiv 2304.11277, section 4.4)."""
    if says(FUSING, said(run)):
        return ["execution.kernels=fused"]
    return ["memory.bytes_per_parameter=16", "memory.weight_bytes=0"] if says(SHARDED, said(run)) else []


def usually_hidden(run: Run) -> tuple[str, ...]:
    """What runs behind compute where nobody says more: FSDP gathers the next layer's weights while one computes, and
    scatters its gradients (arXiv 2304.11277, section 3.3)."""
    return ("gradients", "parameters") if sharded(run) else ()


def hidden(run: Run, usually: Sequence[str] = ()) -> tuple[str, ...]:
    """Communication that runs behind compute: what the software hides `usually`, and what the row's words say."""
    text = said(run)
    told = overlaps(text)
    if says(ASYNC_TP, text) or says(r"tp (?:comm )?overlap|overlapped dp/tp", run.notes.lower()):
        told["tensor"] = True
    elif re.search(r"tp\d* vanilla", text) or denies(ASYNC_TP, text):
        told["tensor"] = False
    if says("dualpipe", text):
        told.setdefault("expert", True)
    found = {name for name in usually if told.get(name, True)} | {name for name, stands in told.items() if stands}
    return tuple(sorted(found))


def tells_overlap(run: Run) -> bool:
    """Whether the row's words say what runs behind compute, or do so by what is sharded."""
    text = said(run)
    return bool(overlaps(text)) or bool(re.search(ASYNC_TP, text)) or sharded(run)


def schedule_named(run: Run) -> str | None:
    """The pipeline schedule that the row names, unless it is 1F1B or its interleaved form."""
    return named_last(SCHEDULES, said(run))


def left_out(run: Run) -> list[str]:
    """What the row did that no setting says."""
    found = ["offloaded activations taken as kept"] if says("offload", said(run)) else []
    return [*found, *(["orthogonalisation of Muon is not counted"] if says("muon", run.notes.lower()) else [])]
