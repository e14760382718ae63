"""What the words of a run's row say about how its step was carried out, as `--set` settings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeplan.validation.outcome import Skip
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
    r"zero-?bubble|zb-h1": "zb-h1",
    r"dualpipe": "dualpipe",
    r"gpipe": "gpipe",
}
"""Pipeline schedules that are neither 1F1B nor interleaved 1F1B; zero bubble without a further name is ZB-H1."""
GRAPHS = ((r"no (cuda )?graphs", "none"), (r"full.iteration", "step"), (r"cuda-?\s?graph|te graphs", "layers"))
SHARDED = r"fsdp|hsdp|full_shard|zero-?3"
"""Fully sharded data parallelism."""


def said(run: Run) -> str:
    """The row's words about software, in small letters."""
    return run.dispatcher_or_overlap.lower()


def execution_settings(run: Run) -> list[str]:
    """Settings of `execution` and `memory` that the row's own words give; nothing for what they do not mention."""
    text, notes = said(run), run.notes.lower()
    found = [f"execution.linear={linear(run.dtype)}"]
    if dispatcher := named_last(DISPATCHERS, text):
        found.append(f"execution.dispatcher={dispatcher}")
    if graphs := next((value for pattern, value in GRAPHS if re.search(pattern, text)), None):
        found.append(f"execution.graphs={graphs}")
    if (factor := capacity(f"{run.model} {text} {notes}".lower())) is not None:
        found.append(f"execution.capacity={factor}")
    if "compile" in text:
        found.append("execution.kernels=compiled")
    if re.search(r"loss fusion|ce fusion|all opts", f"{text} {notes}"):
        found.append("execution.loss=fused")
    if "unfused attention" in notes:
        found.append("execution.flash_attention=false")
    return found + sharding(run)


def linear(dtype: str) -> str:
    """What linear layers multiply in; bf16 where the column is empty. Skip for an unknown element type."""
    if not dtype:
        return "same"
    for pattern, name in LINEAR:
        if re.search(pattern, dtype.lower()):
            return name
    raise Skip("dtype: neither 16 bits nor a known narrower type")


def named_last(words: dict[str, str], text: str) -> str | None:
    """The value of the word that stands last in `text`: later steps of a ladder replace what came before."""
    places = [(match.start(), value) for pattern, value in words.items() for match in re.finditer(pattern, text)]
    return max(places)[1] if places else None


def capacity(text: str) -> float | None:
    """Rows per expert over the mean where tokens are dropped; 1 where no factor is named; None where none are."""
    told = re.search(r"capacity factor (?:of )?(\d+(?:\.\d+)?)", text)
    if told:
        return float(told[1])
    return 1.0 if re.search(r"token-?\s?drop(?!less)", text) else None


def sharding(run: Run) -> list[str]:
    """What data-parallel ranks divide: ZeRO by its number, all with FSDP unless weights stay after the forward pass."""
    text, found = " ".join((said(run), *re.findall(r"fsdp=\d+", run.notes.lower()))), []
    if re.search(SHARDED, text):
        found.append(f"memory.zero={2 if 'no reshard' in text else 3}")
        shards = re.search(r"shard (\d+)", text) or re.search(r"fsdp=?(\d+)", text)
        dp = run.dp or run.gpus
        if shards and int(shards[1]) not in (dp, dp * (run.cp or 1), run.gpus):
            found.append(f"memory.optimizer_shards={shards[1]}")
    elif told := re.search(r"zero-?([012])\b", text):
        found.append(f"memory.zero={told[1]}")
    return found


def hidden(run: Run, usually: Sequence[str] = ()) -> tuple[str, ...]:
    """Communication that runs behind compute: what the software hides `usually`, and what the row's words say."""
    text = said(run)
    found = set(usually)
    if re.search(r"tp (comm )?overlap|async-?\s?tp|overlapped dp/tp", f"{text} {run.notes.lower()}"):
        found.add("tensor")
    elif re.search(r"tp\d* vanilla", text):
        found.discard("tensor")
    if re.search(r"no[_ ](ep_)?overlap|(?<!tp )overlap off", text):
        found.discard("expert")
    elif re.search(r"ep_a2a_overlap|(ep|a2a)[\w ]* overlap|[;+] overlap on|dualpipe", text):
        found.add("expert")
    return tuple(sorted(found))


def schedule_named(run: Run) -> str | None:
    """The pipeline schedule that the row names, unless it is 1F1B or its interleaved form."""
    return named_last(SCHEDULES, said(run))


def left_out(run: Run) -> list[str]:
    """What the row did that no setting says."""
    found = ["offloaded activations taken as kept"] if "offload" in said(run) else []
    return [*found, *(["orthogonalisation of Muon is not counted"] if "muon" in run.notes.lower() else [])]
