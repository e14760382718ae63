"""Host lists as Slurm writes them: node[01-04,07],rack1-[1-2]n[001-128]."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby, product
from math import prod

from moeplan.errors import SpecError

MOST_HOSTS = 2**20
"""A longer list is taken for a slip, such as a digit too many."""
_NAME = re.compile(r"[A-Za-z0-9._:;/@+-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)
_RIGHT = "right is such as node[01-04,07]"


def expand(text: str, where: str) -> tuple[str, ...]:
    """The names in `text` in its order, zeros in front kept; SpecError says at which character it is broken.

    A range counts from its first number, whose width all its numbers have at least: [08-11] is 08, 09, 10, 11. Source:
    hostlist_create in Slurm's src/common/hostlist.c; a padded end of another width, as in [1-004], is refused here.
    """
    if not text:
        raise SpecError(f"{where}: an empty host list; {_RIGHT}")
    hosts: list[str] = []
    for start, item in _items(text, where):
        parts = _parts(text, start, item, where)
        if prod(len(part) for part in parts) + len(hosts) > MOST_HOSTS:
            raise SpecError(f"{where}: {_short(text)} names more than {MOST_HOSTS} hosts")
        hosts += ("".join(chosen) for chosen in product(*parts))
    return tuple(hosts)


@lru_cache(maxsize=256)
def listed(text: str) -> tuple[str, ...]:
    """The names in `text`, of a file of ours; none where it is empty. SpecError as `expand`."""
    return expand(text, "cluster") if text else ()


def compress(hosts: Iterable[str]) -> str:
    """A short host list of which `expand` makes `hosts` again, in their order: the last number of a name varies."""
    return ",".join(_joined(key, list(group)) for key, group in groupby(hosts, _ends))


def _ends(host: str) -> tuple[str, str] | None:
    """What stands before and after the last number of a name; None where it has none of up to 18 digits."""
    match = _LAST_NUMBER.fullmatch(host)
    return (match[1], match[3]) if match and not match[1][-1:].isdigit() else None


def _joined(ends: tuple[str, str] | None, hosts: list[str]) -> str:
    if ends is None or len(hosts) == 1:
        return ",".join(hosts)
    before, after = ends
    runs: list[list[str]] = []
    for number in (host[len(before) : len(host) - len(after)] for host in hosts):
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(number)
        else:
            runs.append([number])
    inside = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{before}[{inside}]{after}"


def _items(text: str, where: str) -> list[tuple[int, str]]:
    """The parts of `text` between commas outside brackets, with where each starts."""
    found, start, opened = [], 0, -1
    for at, char in enumerate(f"{text},"):
        if char == "[":
            if opened >= 0:
                raise _broken(text, at, "a '[' inside brackets", where)
            opened = at
        elif char == "]":
            if opened < 0:
                raise _broken(text, at, "a ']' that closes nothing", where)
            opened = -1
        elif char == "," and (opened < 0 or at == len(text)):
            if opened >= 0:
                raise _broken(text, opened, "a '[' that is not closed", where)
            if at == start:
                raise _broken(text, at, "no name before the comma" if at < len(text) else "no name at the end", where)
            found.append((start, text[start:at]))
            start = at + 1
    return found


def _parts(text: str, start: int, item: str, where: str) -> list[list[str]]:
    """What one item is put together from: for every stretch of it the spellings that it may have."""
    parts = []
    for match in re.finditer(r"\[([^\]]*)\]|[^\[]+", item):
        at = start + match.start()
        if match[1] is not None:
            parts.append(_numbers(text, at + 1, match[1], where))
        elif _NAME.fullmatch(match[0]) and (parts or match[0][0] not in ".-"):
            parts.append([match[0]])
        else:
            wrong = next((i for i, char in enumerate(match[0]) if not _NAME.fullmatch(char)), 0)
            raise _broken(text, at + wrong, f"{match[0][wrong]!r}", where)
    return parts


def _numbers(text: str, start: int, inside: str, where: str) -> list[str]:
    found: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _broken(text, start, f"{piece!r} in brackets", where)
        low, high = match[1], match[2] or match[1]
        padded = high[0] == "0" and len(high) > 1 and len(high) != len(low)
        if int(high) < int(low) or padded:
            raise _broken(text, start, f"the range {piece!r}", where)
        if int(high) - int(low) + len(found) >= MOST_HOSTS:
            raise SpecError(f"{where}: {_short(text)} names more than {MOST_HOSTS} hosts")
        found += (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
        start += len(piece) + 1
    return found


def _broken(text: str, at: int, what: str, where: str) -> SpecError:
    return SpecError(f"{where}: host list {_short(text)}: {what} at character {at + 1}; {_RIGHT}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
