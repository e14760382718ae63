"""What other rows of a table say about a row's empty cells, and ladders whose rows state only what they add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from moeplan.validation.tables import Run

NEEDED: dict[str, tuple[str, ...]] = {"dispatcher_or_overlap": (), "recompute": ("pp",), "vpp": ("pp",)}
"""Columns that may be taken from another row of the same source, machine and model, and what else must be the same."""
SAME = ("dtype", "gpus", "tp", "pp", "vpp", "ep", "cp", "micro_batch", "seq_len", "recompute", "source")
"""What else makes a row more alike; ties go to the row that stands nearest."""
ADDS = ("+", "all opts")
"""How the words of a row begin that adds to the row before it."""


class Told(NamedTuple):
    """A row with cells of other rows."""

    run: Run
    borrowed: dict[str, str]
    """The row that a column is from."""
    values: dict[str, tuple[object, ...]]
    """All values that rows which would do have in a column that is empty here."""


def told(rows: Sequence[Run]) -> dict[str, Told]:
    """Every row of a table by id, empty cells taken from the row of the same source that is most alike.

    Only virtual stages, recompute and dispatcher are taken, which tables leave out of some releases and print in
    others. Whoever scores the row should know that they were: see `settings.setting`.
    """
    whole = ladders(rows)
    places = {run.id: place for place, run in enumerate(whole)}
    jobs: dict[tuple[str, str, str], list[Run]] = {}
    for run in whole:
        jobs.setdefault(_job(run), []).append(run)
    return {run.id: _told(run, jobs[_job(run)], places) for run in whole}


def _job(run: Run) -> tuple[str, str, str]:
    return source_of(run), run.hardware, run.model


def source_of(run: Run) -> str:
    """The id up to its first dash: which publication the row is from."""
    return run.id.split("-")[0]


def _told(run: Run, others: Sequence[Run], places: dict[str, int]) -> Told:
    cells: dict[str, object] = {}
    borrowed: dict[str, str] = {}
    values: dict[str, tuple[object, ...]] = {}
    for column, needed in NEEDED.items():
        if getattr(run, column) or (column == "vpp" and (run.pp or 1) == 1):
            continue
        fits = [row for row in others if getattr(row, column) and _agree(run, row, needed)]
        if fits:
            best = max(fits, key=lambda row: (_alike(run, row), -abs(places[row.id] - places[run.id])))
            cells[column], borrowed[column] = getattr(best, column), best.id
            values[column] = tuple(dict.fromkeys(getattr(row, column) for row in fits))
    return Told(structs.replace(run, **cells), borrowed, values)


def _agree(run: Run, row: Run, columns: Sequence[str]) -> bool:
    return all(getattr(run, column) == getattr(row, column) for column in columns)


def _alike(run: Run, row: Run) -> int:
    return sum(getattr(run, column) == getattr(row, column) for column in SAME)


def ladders(rows: Sequence[Run]) -> list[Run]:
    """`rows`, those whose words begin with one of `ADDS` with the words of the row before them in front.

    A row continues the one before it only with the same source, model, machine and number of GPUs.
    """
    found: list[Run] = []
    for run in rows:
        if found and run.dispatcher_or_overlap.startswith(ADDS) and _continues(found[-1], run):
            words = f"{found[-1].dispatcher_or_overlap}; {run.dispatcher_or_overlap}"
            found.append(structs.replace(run, dispatcher_or_overlap=words))
        else:
            found.append(run)
    return found


def _continues(before: Run, run: Run) -> bool:
    same = ("source", "model", "hardware", "gpus")
    return source_of(before) == source_of(run) and _agree(before, run, same)
