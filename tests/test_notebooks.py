"""Notebooks run from top to bottom, hold public names only, and are committed as they were before they ran."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import moeplan as mp

ROOT = Path(find_spec("moeplan").origin).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300
"""Of one cell: a limit against notebooks that hang, no claim."""


def named(path):
    return path.name


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_is_committed_without_outputs(path):
    for cell in code_cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_uses_public_names_only(path):
    for cell in code_cells(path):
        source = "".join(cell["source"])
        assert set(re.findall(r"\bmp\.(\w+)", source)) <= set(mp.__all__)
        assert not re.search(r"(from|import) moeplan(?! as mp$)", source, re.MULTILINE)
        assert not re.search(r"^\s*(def|class|for|while|if|try)\b", source, re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_runs_and_leaves_no_file_behind(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    here = tmp_path / "here"
    here.mkdir()
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(here)}})
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output.text for output in outputs if output.output_type == "stream" and "Warning:" in output.text]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert list(here.iterdir()) == []
