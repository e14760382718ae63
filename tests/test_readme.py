"""The README shows what the tool prints today."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from moeplan import cli

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
