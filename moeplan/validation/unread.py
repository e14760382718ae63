"""Words of a row's software that nothing is made of: told, so that a row is not thought to be read where it is not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from moeplan.tables import Rows
from moeplan.validation.overlapped import FILLERS, OWNERS
from moeplan.validation.tables import Run
from moeplan.validation.words import (
    ANY_GRAPHS,
    ASYNC_TP,
    CAPACITY,
    DISPATCHERS,
    DISTRIBUTED,
    FLASH,
    FUSED,
    SCHEDULES,
    SEQUENCE_PARALLEL,
    SETTING,
    SHARDED,
    STAGE,
    said,
)

WORDS = (
    SETTING,
    r"cudagraph:\w+(?::(?:none|\[[^\]]*\]|\w+))?",
    *(*DISPATCHERS, *SCHEDULES, ANY_GRAPHS, rf"{ASYNC_TP}\d*", CAPACITY, STAGE),
    *(rf"(?:unfused attention|{FLASH})", FUSED, DISTRIBUTED, SEQUENCE_PARALLEL),
    *(rf"(?:megatron[_-])?(?:{SHARDED})\d*(?: shard \d+)?", r"no reshard(?: after \w+)?", r"layout \S+"),
    *(r"(?:torch\.)?compiled?", r"(?:loss|ce) fusion", r"all opts", r"token[\s_-]?drop\w*", r"capacity\b[^;]*"),
    *(r"(?:\w{1,40}_)?offload\w*(?:=\d+|\s*\([^)]*\))?", r"vanilla", r"overlap(?:ped|ping|s)?"),
    *(pattern for pattern in OWNERS.values() if pattern),
    FILLERS,
)
"""What is read."""
PLAIN = (
    *(r"1f1b", r"interleaved", r"pp schedule", r"vpp\d*", r"schedule", r"dropless", r"grouped (?:gemm|mlp)"),
    *(r"ga \d+", r"[gml]bs \d+", r"ets?p\d*", r"etp=tp", r"te (?:cuda )?graphs [\w,+]+"),
    *(r"asymmetric embed/loss stages", r"(?:un)?folded", r"parallel folding", r"larger mbs", r"mbs \d+"),
    *(
        r"n/?a",
        r"baseline",
        r"nccl",
        r"mcore",
        r"megatron(?:-\w+)?",
        r"nemo",
        r"te\b",
        r"transformer[ _]engine",
        r"deepspeed(?:-\w+)?",
        r"(?:py)?torch(?![_-])",
        r"mtp",
    ),
    *(
        r"no|not|non|without|w/o|off|on|ok|true|false|disabled?|enabled?|is|are|with|of|for|in|at|to|by|per|after|or|and",
    ),
    *(r"stage", r"style", r"kernels?", r"\d+ sms?", r"bidirectional", r"shards?", r"fwd"),
)
"""What changes nothing that moeplan counts, or is in a column of its own."""
_KNOWN = re.compile(
    "no reshard|" + "|".join(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])" for pattern in (*PLAIN, *WORDS))
)
_WORD = re.compile(r"[a-z][a-z0-9]*(?:[_.-][a-z0-9]+)*")
MOST = 8
"""Words that a report lists."""


def unread(run: Run) -> tuple[str, ...]:
    """Words of dispatcher_or_overlap of which nothing is made, in their order."""
    return tuple(dict.fromkeys(word for word in _WORD.findall(_KNOWN.sub(" ; ", said(run))) if len(word) > 1))


def unread_counts(runs: Iterable[Run]) -> dict[str, int]:
    """How many of `runs` have each word that is not understood, most first."""
    return dict(Counter(word for run in runs for word in unread(run)).most_common())


def unread_rows(counts: Mapping[str, int]) -> Rows:
    """The commonest words that are not understood, for readers."""
    return [{"rows": count, "not_understood": word} for word, count in list(counts.items())[:MOST]]
