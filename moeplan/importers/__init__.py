"""Readers of what people already have about their machines: one file in, what it says out."""

from __future__ import annotations

import re
from pathlib import Path

from moeplan.errors import SpecError
from moeplan.importers import hwloc, ibnet, job, nccl_xml, rocm, slurm, slurm_yaml, smi, xml_tree
from moeplan.importers.clean import cleaned, text_of
from moeplan.importers.found import Found
from moeplan.spec.record import read_bytes

KNOWN = (
    "Slurm's topology.conf or topology.yaml, `scontrol show topology`, a host list, `nvidia-smi topo -m`,"
    " `rocm-smi --showtopo`, `ibnetdiscover`, XML of NCCL, RCCL or hwloc"
)
_BY_LINES = ("slurm", "hosts")
"""Formats of which a part can look whole."""


def read(path: Path, topology: str = "") -> Found:
    """What the file at `path` says; its format is told from its content. `topology` names one of a topology.yaml.

    Terminal escapes, carriage returns and byte order marks are passed over. SpecError in one line where the file is
    empty, has comments only, is binary, cut or of no format that is known.
    """
    return read_text(text_of(read_bytes(path), str(path)), str(path), topology)


def read_text(text: str, where: str, topology: str = "") -> Found:
    """As `read`, for a text that comes from `where`."""
    text = cleaned(text)
    found = _read(text, where, topology)
    if topology and not slurm_yaml.looks_like(text):
        raise SpecError(f"{where}: {found.format} has no topology {topology!r}; only a topology.yaml has named ones")
    if found.format in _BY_LINES and not text.endswith("\n"):
        return found._replace(notes=(*found.notes, "the last line has no line break after it: the file may be cut"))
    return found


def _read(text: str, where: str, topology: str) -> Found:
    if text.lstrip().startswith("<"):
        return _read_xml(text, where)
    if not _content(text):
        what = "only comments" if text.strip() else "the file is empty"
        raise SpecError(f"no switches or blocks found in {where}: {what}; right is {KNOWN}")
    if ibnet.looks_like(text):
        return ibnet.read_ibnet(text, where)
    if rocm.looks_like(text):
        return rocm.read_rocm(text, where)
    if smi.looks_like(text):
        return smi.read_smi(text, where)
    if slurm_yaml.looks_like(text):
        return slurm_yaml.read_slurm_yaml(text, where, topology)
    if slurm.looks_like(text):
        return slurm.read_slurm(text, where)
    if job.looks_like(text):
        return job.read_job(text, where)
    raise SpecError(f"{where}: begins with {_content(text)[:40]!r}, of no known format; right is {KNOWN}")


def _content(text: str) -> str:
    """The first line that is neither blank nor a comment."""
    lines = (re.sub(r"#.*", "", line).strip() for line in text.split("\n"))
    return next((line for line in lines if line and line != "---"), "")


def _read_xml(text: str, where: str) -> Found:
    root = xml_tree.parse(text.lstrip(), where)
    match root.tag:
        case "system":
            return nccl_xml.read_nccl(root, where)
        case "topology":
            return hwloc.read_hwloc(root, where)
        case "graphs":
            raise SpecError(
                f"{where}: is NCCL's graph file (NCCL_GRAPH_DUMP_FILE); that of NCCL_TOPO_DUMP_FILE is right"
            )
    raise SpecError(f"{where}: XML with the root <{root.tag}>; <system> of NCCL or <topology> of hwloc is right")
