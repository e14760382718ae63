"""What a schedule is: the order of compute actions per position, as data, and the rules every order must obey."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moeplan.errors import ScheduleError

KINDS = "FBIW"
"""F forward, B full backward, I input gradient, W weight gradient."""


class Action(NamedTuple):
    """One micro-batch at one virtual stage."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Step = tuple[Action, ...]
"""One action, or a pair that overlaps, written 0F3&3B5."""

Steps = tuple[tuple[Step, ...], ...]
"""Steps of each position."""


class Shape(NamedTuple):
    """All that a generator may know."""

    positions: int
    stages: int
    """Virtual stages; stage s lives at position s % positions."""
    microbatches: int
    group: int = 0
    """Micro-batches that pass one chunk before the next chunk begins; 0 means as many as there are positions."""
    depth: float = 1.0
    """Pipeline latency of one stage and its transfer over that of the stage alone (DisagMoE's x)."""


_ACTION = re.compile(rf"(\d+)([{KINDS}])(\d+)")


def to_text(steps: Sequence[Step]) -> str:
    """The steps of one position as text, `0F0 1F0 0B0`."""
    return " ".join("&".join(map(str, step)) for step in steps)


def from_text(text: str, *, where: str) -> tuple[Step, ...]:
    """The steps written in `text`; ScheduleError names `where` and the step that is not one."""

    def action(word: str, step: int) -> Action:
        match = _ACTION.fullmatch(word) if len(word) <= 24 else None
        if match is None:
            raise ScheduleError(f"{where}: step {step} {word[:40]!r} is not stage, one of {KINDS}, micro-batch (0F3)")
        return Action(int(match[1]), match[2], int(match[3]))

    return tuple(tuple(action(word, i) for word in step.split("&")) for i, step in enumerate(text.split()))


def dependencies(action: Action, stages: int) -> tuple[tuple[Action, ...], ...]:
    """What precedes `action`: each entry lists alternatives, of which a legal schedule holds exactly one.

    F needs F of the stage before; B and I need F of their own stage and the input gradient (B or I) of the stage
    after; W needs I of its own stage.
    """
    stage, kind, microbatch = action
    if kind == "F":
        return ((Action(stage - 1, "F", microbatch),),) if stage > 0 else ()
    if kind == "W":
        return ((Action(stage, "I", microbatch),),)
    own = ((Action(stage, "F", microbatch),),)
    if stage + 1 == stages:
        return own
    return (*own, (Action(stage + 1, "B", microbatch), Action(stage + 1, "I", microbatch)))


def check(steps: Steps, homes: Sequence[Sequence[int]], microbatches: int) -> None:
    """ScheduleError unless every action stands once, at its home, in an order that ends.

    `homes[stage]` lists the positions of a stage; micro-batch m is at home at homes[stage][m % len(homes[stage])].
    """
    _check_complete(steps, homes, microbatches)
    _check_order(steps, len(homes))


def _check_complete(steps: Steps, homes: Sequence[Sequence[int]], microbatches: int) -> None:
    positions = len({position for stage in homes for position in stage})
    if len(steps) != positions:
        raise ScheduleError(f"schedule: {len(steps)} positions, the layout has {positions}")
    seen: set[Action] = set()
    for position, row in enumerate(steps):
        for number, step in enumerate(row):
            for action in step:
                wrong = _misplaced(action, position, homes, microbatches)
                if wrong or action in seen:
                    raise ScheduleError(
                        f"schedule: position {position}, step {number}: {action} {wrong or 'stands twice'}"
                    )
                seen.add(action)
    for stage in range(len(homes)):
        for m in range(microbatches):
            kinds = "".join(k for k in KINDS if Action(stage, k, m) in seen)
            if kinds not in ("FB", "FIW"):
                raise ScheduleError(
                    f"schedule: stage {stage}, micro-batch {m} has {kinds or 'nothing'};"
                    " F and B, or F, I and W, are due"
                )


def _misplaced(action: Action, position: int, homes: Sequence[Sequence[int]], microbatches: int) -> str:
    if not (action.stage < len(homes) and action.microbatch < microbatches):
        return f"is outside of {len(homes)} stages, {microbatches} micro-batches"
    at_home = homes[action.stage][action.microbatch % len(homes[action.stage])]
    return "" if at_home == position else f"belongs to position {at_home}"


def _check_order(steps: Steps, stages: int) -> None:
    done: set[Action] = set()
    at = [0] * len(steps)
    moved = True
    while moved:
        moved = False
        for position, row in enumerate(steps):
            while at[position] < len(row) and _ready(row[at[position]], done, stages):
                done.update(row[at[position]])
                at[position] += 1
                moved = True
    stuck = [(p, row[at[p]]) for p, row in enumerate(steps) if at[p] < len(row)]
    if stuck:
        waits = "; ".join(
            f"position {p}, step {at[p]}: {to_text([s])} waits for {_missing(s, done, stages)}" for p, s in stuck
        )
        raise ScheduleError(f"schedule: deadlock: {waits}")


def _ready(step: Step, done: set[Action], stages: int) -> bool:
    return all(any(a in done for a in options) for action in step for options in dependencies(action, stages))


def _missing(step: Step, done: set[Action], stages: int) -> str:
    needs = (options for action in step for options in dependencies(action, stages))
    return " ".join("|".join(map(str, options)) for options in needs if not any(a in done for a in options))


def in_groups(shape: Shape, position: int, kind: str) -> list[Action]:
    """All actions of `kind` at `position`: micro-batches by groups, each group through every chunk before the next.

    Made for the padded shape (stages a multiple of positions, micro-batches a multiple of the group): the caller
    deletes the phantoms with `without_phantoms`, which cannot make a cycle.
    """
    group = shape.group or shape.positions
    chunks = -(-shape.stages // shape.positions)
    order = range(chunks) if kind == "F" else range(chunks - 1, -1, -1)
    return [
        Action(chunk * shape.positions + position, kind, m)
        for first in range(0, padded_microbatches(shape), group)
        for chunk in order
        for m in range(first, first + group)
    ]


def padded_microbatches(shape: Shape) -> int:
    """Micro-batches rounded up to whole groups."""
    group = shape.group or shape.positions
    return -(-shape.microbatches // group) * group


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """`warmup` forwards, then one forward and one backward in turn, then the remaining backwards."""
    warmup = min(warmup, len(forwards))
    steady = [a for pair in zip(forwards[warmup:], backwards, strict=False) for a in pair]
    return [*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :]]


def without_phantoms(actions: Iterable[Action], shape: Shape) -> tuple[Step, ...]:
    """`actions` as steps, less those of stages and micro-batches that exist only in the padded shape."""
    return tuple((a,) for a in actions if a.stage < shape.stages and a.microbatch < shape.microbatches)
