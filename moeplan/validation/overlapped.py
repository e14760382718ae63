"""Which communication the words about overlap in a free text are about, and whether they say that it is hidden."""

from __future__ import annotations

import re

from moeplan.validation.negation import REACH, negated

OWNERS = {
    "tensor": r"a?tp\d*|tensor",
    "expert": r"ep\d*|a2a|alltoall|experts?|moe",
    "gradients": r"dp\d*|grads?|gradients?",
    "parameters": r"params?|parameters?",
    "context": r"cp\d*|context",
    "": r"pp\d*|p2p|pipeline|optimizer|offload\w*|host",
}
"""Words for what an overlap is of; what no setting says is of no name. One without any is that of experts."""
FILLERS = r"comm\.?|communications?|1f1b|plain|and|or|the|parallel|reduce|gather"
BETWEEN = r"[\s_/&,-]+"


def overlaps(text: str) -> dict[str, bool]:
    """By what is communicated: whether `text`, in small letters, says that it overlaps; nothing where it does not say.

    Words before "overlap" count as in "EP A2A overlap", those after it as in "overlap of TP", overlap_grad_reduce and
    "overlapped DP, TP and PP communication". What is said last counts.
    """
    found: dict[str, bool] = {}
    for one in re.finditer(r"overlap(?:ped|ping|s)?", text):
        named = (
            _before(text[max(0, one.start() - REACH) : one.start()])
            or _after(text[one.end() : one.end() + REACH], adjective=one[0].endswith(("ped", "ping")))
            or ["expert"]
        )
        found |= dict.fromkeys(named, not negated(text, one.start(), one.end()))
    return {name: stands for name, stands in found.items() if name}


def _before(text: str) -> list[str]:
    """Owners in the words that end `text`, back to the first that is neither an owner nor between owners."""
    words = [word for word in re.split(BETWEEN, re.split(r"[;,+()\[\]]", text)[-1]) if word]
    return _owners(words[::-1])


def _after(text: str, *, adjective: bool) -> list[str]:
    """Owners in the words that `text` begins with, where they are joined to what stands before it, an `adjective`."""
    joined = re.match(r"\s+([\w\s/&,-]*)", text) if adjective else None
    joined = joined or re.match(r"(?:\s+of\s+|\s+(?=\w+\s*=)|[_-])([\w\s/&-]*)", text)
    return _owners([word for word in re.split(BETWEEN, joined[1]) if word]) if joined else []


def _owners(words: list[str]) -> list[str]:
    found = []
    for word in words:
        owner = next((name for name, pattern in OWNERS.items() if re.fullmatch(pattern, word)), None)
        if owner is not None:
            found.append(owner)
        elif not re.fullmatch(FILLERS, word):
            break
    return found
