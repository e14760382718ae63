"""Predictions beside published measurements: how far moeplan is from what others ran.

Step times are those of the closed form (`analytic`), which is the simulated step within a few per cent where nothing is
hidden behind anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from moeplan.calibrate.constants import fit
from moeplan.errors import SpecError
from moeplan.resources.parameters import total_parameters
from moeplan.spec.given import path_of, wrong_type
from moeplan.spec.model import moe_layers
from moeplan.spec.record import Record
from moeplan.spec.shipped import load_model, shipped
from moeplan.validation.collectives import predict_collective
from moeplan.validation.constants import fitted, left_out, observed, timed, without_constants
from moeplan.validation.degrees import global_batch, seq_len
from moeplan.validation.disagreements import read_disagreements
from moeplan.validation.flop import read_conventions
from moeplan.validation.kernels import held_out, predict_gemm
from moeplan.validation.layers import predict_layer
from moeplan.validation.names import PUBLISHED, Names
from moeplan.validation.outcome import Outcome, Result, Skip, checked, skipped
from moeplan.validation.pairs import ratios, read_pairs
from moeplan.validation.runs import Runs
from moeplan.validation.scores import Validation, sorted_out
from moeplan.validation.set_aside import read_set_aside
from moeplan.validation.stacks import read_stacks, sources_of
from moeplan.validation.tables import Collective, Gemm, Layer, Run, Text, read_table
from moeplan.validation.unread import unread_counts

R = TypeVar("R", Collective, Gemm, Layer, Run)


class Tables(NamedTuple):
    """Files with measurements; None is no such table."""

    runs: Path | str | None = None
    collectives: Path | str | None = None
    gemm: Path | str | None = None
    layers: Path | str | None = None


class Files(NamedTuple):
    """`Tables` whose names are paths."""

    runs: Path | None = None
    collectives: Path | None = None
    gemm: Path | None = None
    layers: Path | None = None


class Counted(Record):
    """The published parameters of a model."""

    id: Text
    model: Text
    parameters: Annotated[int, msgspec.Meta(ge=1)]
    source: str = ""


def published() -> Files:
    """The tables that ship."""
    return Files(*(PUBLISHED / f"{name}.csv" for name in Files._fields))


def validate(
    tables: Tables | Files | None = None, names: Path | str | None = None, **files: Path | str | None
) -> Validation:
    """Every row of `tables` (those that ship by default) predicted and compared.

    `files` may name them one by one, as `moeplan validate` does: runs, collectives, gemm, layers. `names` says what
    models and machines are called, beside the names that ship. Parameter counts of shipped models are compared with the
    tables that ship only, and only there products are left for fits, pairs are told, figures are known to disagree, and
    runs that no constant was fitted to stand apart.
    What sources do without saying so counts for rows with the prefix and the source of a published one. SpecError with
    the file and the row for a table that cannot be read, or a name that nobody explains.
    """
    own = _files(tables, files)
    given = own or published()
    known = Names([PUBLISHED / "names.csv", *([path_of(names, "names")] if names is not None else [])])
    jobs = _read(given.runs, Run)
    runs = _runs(known, jobs, shipped_table=_ships(given.runs))
    products = _read(given.gemm, Gemm)
    ours = [row for row in products if held_out(row) or not _ships(given.gemm)]
    compared = list(_results(given.runs, jobs, runs.compare))
    steps = timed(compared, runs.forms)
    constants = fit(observed(steps))
    results = [
        *compared,
        *without_constants(steps),
        *(left_out(steps, constants) if own is None else ()),
        *_results(given.gemm, ours, lambda row: [_attempt(row.id, "gemm", lambda: predict_gemm(row, known))]),
        *_each(
            given.collectives,
            Collective,
            lambda row: [_attempt(row.id, "collectives", lambda: predict_collective(row, known))],
        ),
        *_each(given.layers, Layer, lambda row: [_attempt(row.id, "layers", lambda: predict_layer(row, known))]),
        *(_parameters(PUBLISHED / "parameters.csv") if own is None else ()),
    ]
    tokens = {run.id: global_batch(run) * seq_len(run) / run.gpus for run in jobs}
    known_pairs = read_pairs(PUBLISHED / "pairs.csv") if _ships(given.runs) else []
    found = sorted_out(results, len(products) - len(ours))
    told, unseen = (
        tuple(ratios(known_pairs, found.outcomes, tokens, measure)) for measure in ("step_time", "step_time_left_out")
    )
    return found._replace(
        pairs=told,
        pairs_left_out=unseen,
        constants=fitted(constants),
        unread=unread_counts(jobs),
        elsewhere=tuple(_elsewhere()) if own is None else (),
    )


def _elsewhere() -> Iterator[Outcome]:
    """The runs of the table apart, by the rules of a table of one's own: no fit has seen them, and no other score."""
    path = PUBLISHED / "elsewhere.csv"
    jobs = read_table(path, Run)
    known = Names([PUBLISHED / "names.csv", PUBLISHED / "elsewhere-names.csv"])
    runs = _runs(known, jobs, shipped_table=False)
    return (result for result in _results(path, jobs, runs.compare) if isinstance(result, Outcome))


def _files(tables: Tables | Files | None, files: Mapping[str, Path | str | None]) -> Files | None:
    """The files that were given one way or the other; None where none was."""
    if unknown := sorted(files.keys() - set(Files._fields)):
        raise SpecError(f"{unknown[0]}: is no table; there are {', '.join(Files._fields)}")
    if tables is not None and not isinstance(tables, Tables | Files):
        raise wrong_type(
            tables, "tables", "Tables(runs=...); a file alone is runs=..., collectives=..., gemm=... or layers=..."
        )
    named = {name: file for name, file in files.items() if file is not None}
    if tables is not None and named:
        raise SpecError(f"{next(iter(named))}: tables were given too; right is either")
    given = named if tables is None else {name: file for name, file in tables._asdict().items() if file is not None}
    return Files(**{name: path_of(file, name) for name, file in given.items()}) if given or tables is not None else None


def _ships(path: Path | None) -> bool:
    """Whether `path` is one of the tables that ship."""
    return path is not None and path.resolve() in {own.resolve() for own in published() if own}


def _runs(known: Names, jobs: list[Run], *, shipped_table: bool) -> Runs:
    """What compares `jobs`; figures are known to disagree, or are set aside, by id or prefix in the shipped table."""
    sources = sources_of(jobs if shipped_table else read_table(PUBLISHED / "runs.csv", Run))
    return Runs(
        known,
        read_conventions(PUBLISHED / "conventions.csv"),
        read_stacks(PUBLISHED / "stacks.csv", jobs, sources),
        read_disagreements(PUBLISHED / "disagreements.csv") if shipped_table else (),
        read_set_aside(PUBLISHED / "set_aside.csv") if shipped_table else {},
    )


def _each(path: Path | None, kind: type[R], compare: Callable[[R], list[Result]]) -> Iterator[Result]:
    return _results(path, _read(path, kind), compare)


def _read(path: Path | None, kind: type[R]) -> list[R]:
    """The rows of the table `path`; SpecError where it has none."""
    rows = read_table(path, kind) if path else []
    if path and not rows:
        raise SpecError(f"{path}: no rows below the header; one row for each measurement")
    return rows


def _results(path: Path | None, rows: list[R], compare: Callable[[R], list[Result]]) -> Iterator[Result]:
    """What `compare` makes of each row; an error names the file and the row."""
    for row in rows:
        try:
            yield from map(checked, compare(row))
        except SpecError as error:
            raise SpecError(f"{path} ({row.id}): {error}") from None


def _attempt(number: str, measure: str, predict: Callable[[], Outcome]) -> Result:
    try:
        return predict()
    except Skip as skip:
        return skipped(number, measure, skip)


def _parameters(path: Path) -> Iterator[Outcome]:
    """Parameters derived from each model's shape, beside the published total."""
    for row in read_table(path, Counted):
        model = load_model(row.model if row.model in shipped("model") else str(path.parent / row.model))
        kind = "moe" if moe_layers(model) else "dense"
        total = float(total_parameters(model))
        yield Outcome(row.id, "parameters", total, float(row.parameters), model.name, kind=kind)
