"""Tables are read strictly: every column, and in every cell what it holds."""

import pytest

from moeplan.errors import SpecError
from moeplan.validation.names import PUBLISHED, Name, Names
from moeplan.validation.tables import Collective, Gemm, Layer, Run, numbered_rows, read_table


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [("runs", Run, 479), ("collectives", Collective, 644), ("gemm", Gemm, 6711), ("layers", Layer, 66)],
)
def test_every_published_row_is_read_and_has_an_id_and_a_source(name, kind, rows):
    read = read_table(PUBLISHED / f"{name}.csv", kind)
    assert len({row.id for row in read}) == len(read) == rows
    assert all(row.source for row in read)


def test_an_empty_cell_is_not_published(table):
    (run,) = read_table(table("runs", {"id": "A-1", "model": "m", "hardware": "h", "gpus": 8}), Run)
    assert (run.tp, run.measured_step_s, run.recompute) == (None, None, "")


def test_columns_of_ones_own_are_passed_over(table):
    path = table(
        "gemm", {"id": "A-1", "hardware": "h", "kind": "gemm", "dtype": "bf16", "m": 1, "n": 2, "k": 3, "latency_us": 4}
    )
    lines = path.read_text().splitlines()
    path.write_text(f"{lines[0]},mine\n{lines[1]},5\n\n")
    assert read_table(path, Gemm)[0].k == 3


def test_columns_that_may_be_empty_may_be_missing(tmp_path, table):
    (whole,) = read_table(table("runs", GOOD), Run)
    path = tmp_path / "short.csv"
    path.write_text("model,gpus,id,hardware\nm,8,A-1,h\n")
    assert read_table(path, Run) == [whole]
    needed = {"id", "model", "hardware", "gpus"}
    for name in needed:
        path.write_text(f"{','.join(needed - {name})}\n1,2,3\n")
        with pytest.raises(SpecError, match=rf"short.csv: no column '{name}'; needed are id, model, hardware, gpus; "):
            read_table(path, Run)


def test_rows_know_their_lines(table):
    path = table("runs", GOOD, GOOD | {"id": "A-2"})
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, "," * header.count(","), *rows]))
    assert [(line, row.id) for line, row in numbered_rows(path, Run)] == [(3, "A-1"), (4, "A-2")]


GOOD = {"id": "A-1", "model": "m", "hardware": "h", "gpus": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": "many"}, r"runs.csv line 2 \(A-1\): Expected `int`.*`\$.gpus`, not 'many'"),
        ({"gpus": "8.5"}, "Expected `int`"),
        ({"gpus": ""}, "missing required field `gpus`"),
        ({"tp": 0}, "`int` >= 1 - at `\\$.tp`, not '0'"),
        ({"measured_step_s": "-1"}, "`float` > 0.0"),
        ({"measured_step_s": "nan"}, "`float`"),
        ({"measured_step_s": "inf"}, "`float` <= "),
        ({"measured_mfu": "40 %"}, "Expected `float"),
        ({"id": ""}, "missing required field `id`"),
    ],
)
def test_a_wrong_cell_is_named_with_its_row(table, changes, message):
    with pytest.raises(SpecError, match=message) as caught:
        read_table(table("runs", GOOD | changes), Run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column 'id'; needed are id, hardware, kind, dtype, m, n, k, latency_us; the columns are id, source"),
        (b"id,source\n", "no column 'hardware'"),
        (b"\xff\xfe\x00", "not valid CSV"),
        (b'"id', "not valid CSV"),
    ],
)
def test_a_file_that_is_no_such_table(tmp_path, content, message):
    path = tmp_path / "gemm.csv"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read_table(path, Gemm)


def test_a_row_of_the_wrong_length(table):
    path = table("runs", GOOD)
    path.write_text(path.read_text().rstrip() + ",one more\n")
    with pytest.raises(SpecError, match=r"line 2 \(A-1\): 25 cells for 24 columns"):
        read_table(path, Run)


def test_a_second_row_with_the_same_id_is_refused(table):
    with pytest.raises(SpecError, match=r"runs.csv line 4: id 'A-1' is already in line 2; each row needs its own"):
        read_table(table("runs", GOOD, GOOD | {"id": "A-2"}, GOOD | {"tp": 2}), Run)


def test_rows_that_are_told_apart_by_two_columns(tmp_path):
    path = tmp_path / "names.csv"
    lines = ["kind,name,target,overrides", "model,a,b,", "hardware,a,b,"]
    path.write_text("\n".join(lines))
    assert len(read_table(path, Name, key=("kind", "name"))) == 2
    path.write_text("\n".join([*lines, "model,a,c,"]))
    with pytest.raises(SpecError, match=r"line 4: kind 'model', name 'a' is already in line 2"):
        Names([path])


def test_spaces_around_column_names_and_empty_rows_are_passed_over(table):
    path = table("runs", GOOD)
    header, row = path.read_text().splitlines()
    path.write_text("\n".join([header.replace(",gpus,", ", gpus ,"), "," * header.count(","), " , ", row, ""]))
    assert [run.gpus for run in read_table(path, Run)] == [8]


def test_a_column_that_is_there_twice_is_refused(table):
    path = table("runs", GOOD)
    header, row = path.read_text().splitlines()
    path.write_text(f"{header}, gpus\n{row},9\n")
    with pytest.raises(SpecError, match="two columns 'gpus'; the columns are id, source"):
        read_table(path, Run)


def test_a_number_without_end_is_no_number(table):
    with pytest.raises(SpecError, match=r"line 2 \(A-1\): notes: 99999999... has more than 50 digits"):
        read_table(table("runs", GOOD | {"notes": f"capacity factor {'9' * 5000}"}), Run)


def test_a_missing_file(tmp_path):
    with pytest.raises(SpecError, match=r"none.csv: No such file"):
        read_table(tmp_path / "none.csv", Run)
