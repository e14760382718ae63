"""The nodes of a job: what SLURM_JOB_NODELIST holds, or one host a line."""

from __future__ import annotations

import re

from moeplan.errors import SpecError
from moeplan.hostlist import expand
from moeplan.importers.found import Found, unique
from moeplan.importers.slurm import NOT_IN_FILE

_VARIABLE = re.compile(r"^(?:export\s+)?SLURM_(?:JOB_|STEP_)?NODELIST\s*=\s*")
_LISTED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[0-9\[][A-Za-z0-9._,\[\]-]*")


def looks_like(text: str) -> bool:
    """Whether every line is one word with a number in it, as names of nodes are, or the variable is named."""
    lines = [line for line in text.split("\n") if _content(line)]
    return bool(lines) and all(_VARIABLE.match(line.strip()) or _LISTED.fullmatch(_content(line)) for line in lines)


def read_job(text: str, where: str) -> Found:
    """The hosts in their order, repetitions left out; SpecError where a list is broken."""
    hosts: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if content := _content(line):
            hosts += expand(content, f"{where}: line {number}")
    if not hosts:
        raise SpecError(f"{where}: no hosts; a host list such as node[01-04,07] is right")
    notes = [NOT_IN_FILE, "switches are not in the file"]
    if len(set(hosts)) < len(hosts):
        notes.append(f"{len(hosts) - len(set(hosts))} repeated names are left out")
    return Found("hosts", None, unique(tuple(hosts)), (), (), tuple(notes))


def _content(line: str) -> str:
    return _VARIABLE.sub("", re.sub(r"#.*", "", line).strip()).strip("\"'")
