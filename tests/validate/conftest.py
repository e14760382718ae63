"""Small tables in the columns of the published ones."""

import csv

import pytest

from moeplan.validation.flop import read_conventions
from moeplan.validation.names import PUBLISHED, Names
from moeplan.validation.runs import Runs
from moeplan.validation.stacks import read_stacks
from moeplan.validation.tables import Collective, Gemm, Layer, Run, read_table

KINDS = {"runs": Run, "collectives": Collective, "gemm": Gemm, "layers": Layer}
RUN = {
    "id": "OWN-1",
    "model": "tiny-moe",
    "hardware": "dgx-h100",
    "gpus": 8,
    "pp": 2,
    "ep": 4,
    "etp": 1,
    "micro_batch": 1,
    "global_batch": 32,
    "seq_len": 512,
    "dtype": "BF16",
    "measured_step_s": 0.1,
}


@pytest.fixture
def table(tmp_path):
    """table("runs", {column: value}, ...): a CSV file with those rows, other cells empty."""

    def write(kind, *rows):
        path = tmp_path / f"{kind}.csv"
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, KINDS[kind].__struct_fields__, restval="")
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write


@pytest.fixture
def run_row():
    """run_row(column=value, ...): a run of tiny-moe on 8 GPUs with some columns changed; None empties one."""
    return lambda **changes: Run(**{name: value for name, value in (RUN | changes).items() if value is not None})


@pytest.fixture(scope="session")
def names():
    return Names([PUBLISHED / "names.csv"])


@pytest.fixture
def runs(names):
    return Runs(names, read_conventions(PUBLISHED / "conventions.csv"))


@pytest.fixture(scope="session")
def stacks(published_runs):
    return read_stacks(PUBLISHED / "stacks.csv", list(published_runs.values()))


@pytest.fixture(scope="session")
def published_runs():
    return {run.id: run for run in read_table(PUBLISHED / "runs.csv", Run)}
