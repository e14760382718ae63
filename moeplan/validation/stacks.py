"""What a source's software does without saying so: `rows,where,hidden,settings,unknown,note`.

`rows` are prefixes of ids or whole ids, `settings` are those of `--set` separated by `;`, and `hidden` names
communication that runs behind compute. A line with a condition (`where`, column=text, one of several texts with |)
comes after the row's own words, the others before them. `unknown` says what else may be true: "name: alternative |
alternative", several settings of one alternative joined by &. Names that are columns count only where the cell is
empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from moeplan.errors import SpecError
from moeplan.spec.record import Record
from moeplan.validation.alike import Told, source_of, told
from moeplan.validation.tables import Run, Text, read_table
from moeplan.validation.words import as_usual, execution_settings, hidden, usually_hidden

Sources: TypeAlias = frozenset[tuple[str, str]]
"""Publications: the prefix of their rows' ids and what those rows have as source."""


class Unknown(NamedTuple):
    """Something that the row does not say."""

    name: str
    alternatives: tuple[tuple[str, ...], ...]
    """What it may be beside what is taken: each alternative is a few settings, as in `--set`."""


class Stack(Record):
    """One line of the table."""

    rows: Text
    where: str = ""
    hidden: str = ""
    settings: str = ""
    unknown: str = ""
    note: str = ""


class Stacks:
    """Practices of sources, and what a table of runs tells about its own empty cells."""

    def __init__(self, lines: Sequence[Stack] = (), runs: Sequence[Run] = (), sources: Sources | None = None) -> None:
        """`runs` is the whole table that rows are from; without it nothing is taken from other rows.

        `sources` are the publications that the lines are about, by prefix and source; None is any with the prefix.
        """
        self._lines = tuple(lines)
        self._told = told(runs)
        self._sources = sources

    def knows(self, run: Run) -> bool:
        """Whether `run` is of a publication that the lines are about, so that its prefix means that publication."""
        return self._sources is None or (source_of(run), run.source) in self._sources

    def tells(self, run: Run) -> bool:
        """Whether a line is about the software of `run`."""
        return bool(self._of(run))

    def whole(self, run: Run) -> Told:
        """`run` with the cells that other rows of its table tell."""
        return self._told.get(run.id, Told(run, {}, {}))

    def settings(self, run: Run) -> list[str]:
        """All settings of case and layout that follow from the row's words and its source, in the order they act."""
        lines = self._of(run)
        before = [setting for line in lines if not line.where for setting in _split(line.settings, ";")]
        after = [setting for line in lines if line.where for setting in _split(line.settings, ";")]
        usual = [name for line in lines for name in line.hidden.split()] if lines else usually_hidden(run)
        named = hidden(run, usual)
        behind = f"execution.hidden={list(named)}"
        anyway = [] if lines else as_usual(run)
        return [*before, *anyway, *execution_settings(run), *([behind] if named else []), *after]

    def unknown(self, run: Run) -> list[Unknown]:
        """What the source leaves open for `run`, of which the last line that says something counts."""
        found: dict[str, Unknown] = {}
        for line in self._of(run):
            for entry in _split(line.unknown, ";"):
                name, _, text = entry.partition(":")
                if not getattr(run, name.strip(), ""):
                    others = tuple(tuple(_split(alternative, "&")) for alternative in _split(text, "|"))
                    found[name.strip()] = Unknown(name.strip(), others)
        return list(found.values())

    def _of(self, run: Run) -> list[Stack]:
        return [line for line in self._lines if _applies(line, run)] if self.knows(run) else []


def sources_of(runs: Sequence[Run]) -> Sources:
    """The publications that `runs` are from."""
    return frozenset((source_of(run), run.source) for run in runs)


def read_stacks(path: Path, runs: Sequence[Run] = (), sources: Sources | None = None) -> Stacks:
    """The practices in the CSV file `path`; SpecError as `read_table`, and for a condition on no column of a run."""
    lines = read_table(path, Stack)
    for line in lines:
        column = line.where.partition("=")[0]
        if line.where and column not in Run.__struct_fields__:
            raise SpecError(f"{path} ({line.rows}): where {line.where!r}: no column {column!r} of runs")
    return Stacks(lines, runs, sources)


def _split(text: str, mark: str) -> list[str]:
    return [part.strip() for part in text.split(mark) if part.strip()]


def _applies(line: Stack, run: Run) -> bool:
    if not {run.id, source_of(run)} & set(line.rows.split()):
        return False
    column, _, texts = line.where.partition("=")
    return not column or any(text in str(getattr(run, column) or "") for text in texts.split("|"))
