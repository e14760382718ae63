"""Words of a free text that say something is there, told from those that say it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator

ENDS = r"[;,+()\[\]]|\s\|\s|(?<!comm)\.\s"
"""What a negation does not reach over."""
REACH = 100
"""Letters before and after a word among which a negation is looked for."""
HEADS = (
    r"overlap|graph|fsdp|zero|deep-?ep|hybrid-?ep|all-?to-?all|all-?gather|flex\b"
    r"|compil|fusion|offload|interleaved|drop|bubble|dualpipe|full"
)
"""Words that a negation before them is about: it reaches no further than the first."""
LETTER = rf"(?:(?!{HEADS})[a-z0-9./&-])"
BEFORE = rf"(?:\b|_)(?:no|not|non|without|w/o|never|disabl[a-z]*)[\s_-]+(?:{LETTER}+[\s_]+){{0,4}}{LETTER}*$|\bno$"
AFTER = (
    r"^\w*(?:\s+(?:comm\w*|a2a|of|for|[tepdc]+p\d*|is|are|was|were|turned|switched|set to))*"
    r"(?:\s*[:=(]?\s*(?:off|false|disabled?|(?:not |un|in)(?:used|enabled|active))\b"
    r"|\s*=\s*(?:no|none|0)\b|:\s+(?:no|none|0)\b)"
)
"""Text before and after a word, in its own part of the sentence, that says it is not there."""


def mentions(pattern: str, text: str) -> Iterator[tuple[re.Match[str], bool]]:
    """Every place of `pattern` in `text`, and whether the words around it leave it standing."""
    for found in re.finditer(pattern, text):
        yield found, not negated(text, found.start(), found.end())


def negated(text: str, start: int, end: int) -> bool:
    """Whether what stands from `start` to `end` is said not to be: "no X", "without X", "X off", "X=false"."""
    before = re.split(ENDS, text[max(0, start - REACH) : start])[-1]
    after = re.split(r"[;,+]", text[end : end + REACH])[0]
    return bool(re.search(BEFORE, before) or re.search(AFTER, after))


def says(pattern: str, text: str) -> bool:
    """Whether `text` says that what `pattern` stands for is there."""
    return any(stands for _, stands in mentions(pattern, text))


def denies(pattern: str, text: str) -> bool:
    """Whether `text` names what `pattern` stands for, and only to say that it is not there."""
    told = [stands for _, stands in mentions(pattern, text)]
    return bool(told) and not any(told)
