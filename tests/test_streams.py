"""Where output goes: pipes that nobody reads, files, terminals, other encodings."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from moeplan import cli
from moeplan.plan_file import read_plan
from moeplan.report import print_table
from moeplan.spec.shipped import load_calibration

CASE = ["--model", "tiny-moe", "--cluster", "laptop", "--gpus", "4", "--seq-len", "64", "--global-batch", "8"]
PIPER = ["optimize", *CASE, "--family", "piper", "--set", "layout.pp=2"]
TREE = str(Path(__file__).parent / "fixtures" / "importers" / "three_levels.conf")
LOG = str(Path(__file__).parent / "fixtures" / "logs" / "rccl_2node_16gpu.log")


@pytest.fixture
def unread(monkeypatch, tmp_path):
    """unread("stdout", arguments): the exit code of moeplan where nobody reads what goes there."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as stream:
            monkeypatch.setattr(sys, name, stream)
            monkeypatch.setattr(sys, "argv", ["moeplan", *arguments])
            with pytest.raises(SystemExit) as ended:
                cli.main()
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        return ended.value.code

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["models"],
        ["models", "--format", "json"],
        ["topology", "list", "--format", "csv"],
        ["topology", "show", "laptop"],
        ["topology", "check", "laptop"],
        ["topology", "choose", "--topology", TREE, "--nodes", "1", "--free", "node001"],
        ["topology", "convert", TREE, "--like", "dgx-h100"],
        ["calibrate", "fit", LOG, "-o", "-"],
        ["validate", "--paper", "piper"],
        ["estimate", *CASE],
        [*PIPER, "-o", "-"],
    ],
    ids=" ".join,
)
def test_a_pipe_that_nobody_reads_ends_a_command_as_shells_expect_and_quietly(unread, capfd, arguments):
    assert unread("stdout", *arguments) == 128 + 13
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert "moeplan: " not in err
    assert "Broken pipe" not in err


def test_files_are_written_before_a_report_that_nobody_reads(unread, tmp_path):
    assert unread("stdout", *PIPER, "-o", "best.json") == 141
    assert unread("stdout", "estimate", *CASE, "-o", "given.json") == 141
    assert unread("stdout", "topology", "show", "laptop", "-o", "laptop.svg") == 141
    assert unread("stdout", "calibrate", "fit", LOG, "-o", "mine.toml") == 141
    assert unread("stdout", "simulate", "best.json", "--trace", "trace.json") == 141
    assert read_plan(tmp_path / "best.json").layout.pp == 2
    assert read_plan(tmp_path / "given.json").layout.pp == 1
    assert "</svg>" in (tmp_path / "laptop.svg").read_text()
    assert load_calibration(tmp_path / "mine.toml").name == "mine"
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_what_nobody_reads_on_stderr_stops_nothing(unread, capfd, tmp_path):
    assert unread("stderr", *PIPER, "-o", "best.json") == 0
    assert (tmp_path / "best.json").exists()
    assert "tokens/s" in capfd.readouterr().out
    assert unread("stderr", "models", "--format", "xml") == 2


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


ROWS = [{"what": "a name [bold]of[/] :smile: " + "x" * 300, "count": 1}, {"what": "short", "count": 20_000}]


def test_a_table_that_is_piped_is_as_wide_as_it_needs_to_be_and_says_every_word():
    out = io.StringIO()
    print_table(ROWS, out, title="a title [1] that is " + "longer than the table " * 20)
    lines = out.getvalue().splitlines()
    assert any(ROWS[0]["what"] in line for line in lines)
    assert lines[0] == "a title [1] that is " + "longer than the table " * 19 + "longer than the table"
    assert max(map(len, lines[1:])) == 1 + len(ROWS[0]["what"]) + 2 + len("20,000")
    assert not any(line.endswith(" ") for line in lines)
    assert "\x1b" not in out.getvalue()


def test_a_table_of_short_words_is_narrow():
    out = io.StringIO()
    print_table(ROWS[1:], out)
    assert max(map(len, out.getvalue().splitlines())) < 20


@pytest.mark.parametrize("columns", [20, 60])
def test_a_table_keeps_within_a_terminal_and_loses_no_letter(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    print_table(ROWS, out)
    text = re.sub("\x1b\\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= max(columns, 36)
    assert text.count("x") == 300
    assert "\x1b[3" not in out.getvalue()


@pytest.mark.parametrize("columns", [1, 12, 30])
def test_a_terminal_that_is_too_narrow_keeps_words_and_numbers_whole(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    print_table([{"model": "deepseek-v2-lite and more", "parameters": 235_741_434_880, "attention": "mla"}] * 2, out)
    words = re.sub("\x1b\\[[0-9;]*m", "", out.getvalue()).split()
    assert {"model", "deepseek-v2-lite", "and", "more", "parameters", "235,741,434,880", "attention", "mla"} <= set(
        words
    )


def test_forced_colours_stay_out_of_files(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    print_table(ROWS, out, title="title")
    assert "\x1b" not in out.getvalue()


def test_a_plan_on_stdout_is_utf8_whatever_people_read(monkeypatch, tmp_path):
    """Its model has a name that the encoding of stdout lacks; so has a table, which says it by number."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["moeplan", "estimate", *CASE, "--set", "model.name='Ω'", "-o", "-"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert json.loads(stdout.buffer.getvalue().decode())["case"]["model"]["name"] == "Ω"


def test_a_table_says_by_number_what_an_encoding_lacks(monkeypatch, tmp_path):
    path = tmp_path / "plan.json"
    monkeypatch.setattr(sys, "argv", ["moeplan", "estimate", *CASE, "--set", "model.name='Ω'", "-o", str(path)])
    with pytest.raises(SystemExit):
        cli.main()
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["moeplan", "show", str(path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert b"\\u03a9" in stdout.buffer.getvalue()
