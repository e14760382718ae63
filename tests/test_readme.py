"""The README shows what the tool prints today."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from moeplan import cli
from moeplan.cli import app
from moeplan.spec.execution import Execution
from moeplan.spec.huggingface import FAMILIES
from moeplan.spec.shipped import shipped
from moeplan.validation import validate
from moeplan.validation.pairs import pair_score
from moeplan.validation.scores import score

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_sample_is_what_the_command_prints(monkeypatch, capsys, tmp_path):
    (sample,) = re.findall(r"```\n\$ (moeplan optimize .*?)\.\.\.\n```", README, flags=re.DOTALL)
    command, *expected = sample.splitlines()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed[: len(expected)] == expected


def test_a_table_of_ones_own_is_read_as_told(command_line, tmp_path):
    runs, names = re.findall(r"```csv\n(.*?)```", README, flags=re.DOTALL)
    files = tmp_path / "mine.csv", tmp_path / "names.csv"
    for file, text in zip(files, (runs, names), strict=True):
        file.write_text(text)
    code, out, _ = command_line("validate", "--runs", files[0], "--names", files[1])
    assert code == 0
    (row,) = [line for line in out.splitlines() if "A-1" in line]
    assert "true" in row.split()
    titles = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert not [title for title in titles if "words not understood" in title or "disagree" in title]


SOURCES = ("BRG", "DGX", "MLP", "N24", "SMX")
EXACT = ("SMX", "CIG", "SEQ")
DENSE, MOE = (lambda o, kind=kind: o.kind == kind for kind in ("dense", "moe"))
FIGURES = [
    ("step time as shipped, all", "step_time", lambda o: True),
    ("- dense", "step_time", DENSE),
    ("- MoE", "step_time", MOE),
    ("step time from kernels and links alone, all", "step_time_no_constants", lambda o: True),
    ("- dense", "step_time_no_constants", DENSE),
    ("- MoE", "step_time_no_constants", MOE),
    ("step time of a model that the constants never saw, all", "step_time_left_out", lambda o: True),
    ("- dense", "step_time_left_out", DENSE),
    ("- dense, of BRG, DGX, MLP, N24, SMX", "step_time_left_out", lambda o: DENSE(o) and o.source in SOURCES),
    ("- MoE", "step_time_left_out", MOE),
    ("step time of runs from elsewhere", "step_time", lambda o: True),
    ("peak memory of SMX, CIG, SEQ", "peak_memory", lambda o: o.source in EXACT),
    ("peak memory, other rows", "peak_memory", lambda o: o.source not in EXACT),
    ("peak memory of runs from elsewhere", "peak_memory", lambda o: True),
    ("FLOP per token", "flop", lambda o: True),
    ("matrix products", "gemm", lambda o: True),
    ("collectives of 1 MiB and more", "collectives", lambda o: True),
    ("single layers and kernels", "layers", lambda o: True),
    ("parameters", "parameters", lambda o: True),
]
"""How a row of the table begins, in its order, and what it is about."""


def test_how_far_to_trust_it_is_what_validate_finds():
    """Median and 90th percentile of every row, within a tenth of what is written or half a point."""
    section = README.split("## How far to trust it")[1].split("## ")[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    *told, shipped_pairs, unseen_pairs = (row for row in table if not row[0].startswith("---"))
    found = validate()
    assert len(told) == len(FIGURES)
    for (start, measure, wanted), row in zip(FIGURES, told, strict=True):
        assert row[0].startswith(start)
        rows = found.elsewhere if "elsewhere" in start else found.outcomes
        scored = score(o for o in rows if o.measure == measure and wanted(o))
        assert int(row[1].split(" ")[0].replace(",", "")) == scored.rows
        assert [_percent(text) for text in row[2:4]] == pytest.approx(_percents(*scored[1:3]), rel=0.1, abs=0.5), row
    for row, pairs in ((shipped_pairs, found.pairs), (unseen_pairs, found.pairs_left_out)):
        scored = pair_score(pairs)
        written = [_percent(text) for text in row[2:4]]
        assert written == pytest.approx(_percents(scored["median_ape"], scored["p90_ape"]), rel=0.1, abs=0.5)


def _percent(text):
    return float(text.split(" %")[0])


def _percents(*values):
    return [100 * value for value in values]


def test_everything_that_ships_or_may_be_set_is_named():
    words = set(re.findall(r"[\w.-]+", README))
    assert set(shipped("cluster")) <= words
    assert "generic" in words
    assert set(FAMILIES) - {"minimax", "llama4_text"} <= words
    for name in Execution.__struct_fields__:
        assert {f"execution.{name}", f".{name}"} & words, name
        for value in _values(Execution.__annotations__[name]):
            assert value in words, (name, value)


def test_every_command_is_in_the_table():
    for command in app.registered_commands:
        assert f"| `moeplan {command.callback.__name__}" in README
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands:
            assert f"| `moeplan {group.name} {command.name or command.callback.__name__}" in README


def _values(annotation):
    """Words of a Literal, as they stand in its source."""
    return re.findall(r'"([a-z_0-9]+)"', annotation)
